#include "tutti/nn/capacity.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tutti/comm/communicator.h"
#include "tutti/nn/dispatch.h"

namespace tutti::nn {

namespace {

// The choices of the rows of one rank: where in the step each row is, its experts and their weights.
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
        return on_host<T>(ctx, all);
    };
    RowChoices all{gather(mine.index), gather(mine.experts), gather(mine.weights)};
    if (is_rehearsed(ctx))  // then every rank chooses as this one does
        for (size_t i = 0; i < all.experts.size(); ++i) all.experts[i] = mine.experts[i % mine.experts.size()];
    return all;
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
    // The last choice that each expert takes: the least probable, or the one furthest behind.
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

}  // namespace tutti::nn
