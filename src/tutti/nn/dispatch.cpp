#include "tutti/nn/dispatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace tutti::nn {

namespace {

Tensor upload(ops::Context& ctx, const Shape& shape, const std::vector<int32_t>& values) {
    return Tensor::from_host<int32_t>(ctx.device, shape, values, Purpose::activations);
}

// The number of rows that each rank sends to each expert of this rank, (P, experts of a rank); `counts` (E): rows that
// this rank sends to each expert.
std::vector<int32_t> exchange_counts(ops::Context& ctx, comm::Communicator& ranks, int etp,
                                     const std::vector<int64_t>& counts) {
    const auto P = static_cast<size_t>(ranks.size()), own = static_cast<size_t>(ranks.rank());
    const size_t local = counts.size() * static_cast<size_t>(etp) / P;
    const auto owner = [&](size_t rank) { return rank / static_cast<size_t>(etp); };
    std::vector<int32_t> sent;
    for (size_t p = 0; p < P; ++p)
        for (size_t e = 0; e < local; ++e) sent.push_back(static_cast<int32_t>(counts[owner(p) * local + e]));
    const auto shape = Shape{static_cast<int64_t>(sent.size())};
    const Tensor x = upload(ctx, shape, sent), y = ops::empty(ctx, shape, DType::i32, Purpose::communication);
    const std::vector<int64_t> each(P, static_cast<int64_t>(local));
    ranks.all_to_all(x, each, y, each).wait();
    const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(own * local);
    return ctx.values->of_ranks(y, {begin, begin + static_cast<std::ptrdiff_t>(local)});
}

// The choices of the rows of one rank: the index of each row in the step, its experts and their weights.
struct RowChoices {
    std::vector<int64_t> index;    // (N)
    std::vector<int32_t> experts;  // (N, k)
    std::vector<float> weights;    // (N, k)
};

// The choices of all ranks, one after another, padded to the rows of the rank with the most by rows without an expert.
RowChoices gathered(ops::Context& ctx, comm::Communicator& ranks, RowChoices mine, size_t k) {
    const auto rows = static_cast<int64_t>(ranks.max(static_cast<double>(mine.index.size())));
    const int64_t P = ranks.size();
    mine.index.resize(static_cast<size_t>(rows));
    mine.experts.resize(static_cast<size_t>(rows) * k, -1);
    mine.weights.resize(static_cast<size_t>(rows) * k);
    const auto gather = [&]<class T>(const std::vector<T>& values) {
        const auto size = static_cast<int64_t>(values.size());
        const Tensor part = Tensor::from_host<T>(ctx.device, {size}, values, Purpose::communication);
        const Tensor all = ops::empty(ctx, {P * size}, part.dtype(), Purpose::communication);
        ranks.all_gather(part, all).wait();
        return all;
    };
    return {on_host<int64_t>(ctx, gather(mine.index)), ctx.values->of_ranks(gather(mine.experts), mine.experts),
            on_host<float>(ctx, gather(mine.weights))};
}

}  // namespace

int64_t drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                             const Tensor& weights, int64_t first_row, std::vector<int32_t>& choices) {
    if (spec.capacity_factor == 0) return 0;
    const auto k = static_cast<size_t>(spec.top_k);
    const auto N = static_cast<int64_t>(choices.size() / k);
    const Tensor index = batch.row_index.reshape({batch.row_index.numel()});
    const Tensor rows = index.dim(0) == N ? index : index.narrow(0, first_row, N);  // rows_of() may have cut them
    RowChoices all{on_host<int64_t>(ctx, ops::contiguous(ctx, rows)), choices, on_host<float>(ctx, weights)};
    const RowChoices mine = all;
    comm::Communicator* ranks = batch.routing.microbatch;
    if (ranks) all = gathered(ctx, *ranks, std::move(all), k);

    const auto tokens = static_cast<double>(tokens_of_microbatch(batch));
    const auto capacity = static_cast<size_t>(
        std::ceil(tokens * static_cast<double>(spec.top_k) / static_cast<double>(spec.experts) * spec.capacity_factor));
    // An expert takes its choices in this order: by probability, or by the place of the row.
    using Place = std::tuple<float, int64_t, size_t>;
    const bool by_weight = spec.drop == "probability";
    const auto place = [&](const RowChoices& of, size_t i) {
        return Place{by_weight ? -of.weights[i] : 0.0f, of.index[i / k], i % k};
    };
    std::vector<std::vector<Place>> of_expert(static_cast<size_t>(spec.experts));
    for (size_t i = 0; i < all.experts.size(); ++i)
        if (all.experts[i] >= 0) of_expert[static_cast<size_t>(all.experts[i])].push_back(place(all, i));
    for (std::vector<Place>& places : of_expert)
        if (places.size() > capacity) std::sort(places.begin(), places.end());
    int64_t dropped = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
        const std::vector<Place>& places = of_expert[static_cast<size_t>(choices[i])];
        if (places.size() <= capacity || (capacity > 0 && place(mine, i) <= places[capacity - 1])) continue;
        choices[i] = -1;
        ++dropped;
    }
    return dropped;
}

Dispatch make_dispatch(ops::Context& ctx, const std::vector<int32_t>& choices, int64_t k, int64_t all_experts,
                       const autograd::ExpertParallel& ranks) {
    const auto E = static_cast<size_t>(all_experts), etp = static_cast<size_t>(ranks.etp);
    const auto K = static_cast<size_t>(k), N = choices.size() / K;
    const size_t P = ranks.ranks ? static_cast<size_t>(ranks.ranks->size()) : 1, local = E * etp / P;
    std::vector<std::vector<int32_t>> of_expert(E);  // choices, in the order of rows
    for (size_t i = 0; i < choices.size(); ++i)
        if (choices[i] >= 0) of_expert.at(static_cast<size_t>(choices[i])).push_back(static_cast<int32_t>(i));

    Dispatch d;
    std::vector<int32_t> sent, slots(N * K * etp, -1);
    for (size_t p = 0; p < P; ++p) {
        const size_t before = sent.size(), copy = p % etp;
        for (size_t e = p / etp * local; e < (p / etp + 1) * local; ++e)
            for (const int32_t choice : of_expert[e]) {
                const size_t row = static_cast<size_t>(choice) / K, j = static_cast<size_t>(choice) % K;
                slots[row * K * etp + copy * K + j] = static_cast<int32_t>(sent.size());
                sent.push_back(static_cast<int32_t>(row));
            }
        if (ranks.ranks) d.to.push_back(static_cast<int64_t>(sent.size() - before));
    }
    d.sent = upload(ctx, {static_cast<int64_t>(sent.size())}, sent);
    d.slots = upload(ctx, {static_cast<int64_t>(N), static_cast<int64_t>(K * etp)}, slots);

    std::vector<int64_t> counts;
    for (const auto& rows : of_expert) counts.push_back(static_cast<int64_t>(rows.size()));
    if (!ranks.ranks) {
        d.rows = counts;
        return d;
    }
    const std::vector<int32_t> arriving = exchange_counts(ctx, *ranks.ranks, ranks.etp, counts);
    d.rows.assign(local, 0);
    std::vector<int64_t> begin;  // of each rank's rows of each expert, in the order of arrival
    int64_t total = 0;
    for (size_t p = 0; p < P; ++p) {
        const int64_t before = total;
        for (size_t e = 0; e < local; ++e) {
            begin.push_back(total);
            d.rows[e] += arriving[p * local + e];
            total += arriving[p * local + e];
        }
        d.from.push_back(total - before);
    }
    std::vector<int32_t> order, places(static_cast<size_t>(total));
    for (size_t e = 0; e < local; ++e)
        for (size_t p = 0; p < P; ++p)
            for (int32_t i = 0; i < arriving[p * local + e]; ++i) {
                const auto arrival = static_cast<size_t>(begin[p * local + e] + i);
                places[arrival] = static_cast<int32_t>(order.size());
                order.push_back(static_cast<int32_t>(arrival));
            }
    d.order = upload(ctx, {total}, order);
    d.places = upload(ctx, {total}, places);
    return d;
}

Exchange::Exchange(ops::Context& ctx, comm::Communicator& ranks, const Tensor& x, const std::vector<int64_t>& to,
                   const std::vector<int64_t>& from)
    : sent_(x) {
    const int64_t C = x.dim(1), rows = std::accumulate(from.begin(), from.end(), int64_t{0});
    received_ = ops::empty(ctx, {rows, C}, x.dtype());
    const auto values = [&](const std::vector<int64_t>& of_ranks) {
        std::vector<int64_t> counts;
        for (const int64_t n : of_ranks) counts.push_back(n * C);
        return counts;
    };
    work_ = ranks.all_to_all(x, values(to), received_, values(from));
}

void Exchange::wait() {
    work_.wait();
    sent_ = {};
}

}  // namespace tutti::nn
