#include "tutti/nn/dispatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"

namespace tutti::nn {

// --- numbers for the host ---

RouterNumbers::RouterNumbers(ops::Context& ctx, const std::array<Shape, kParts>& shapes) : ctx_(ctx) {
    int64_t total = 0;
    for (const Shape& shape : shapes) total += shape.rank() > 0 ? shape.numel() : 0;
    all_ = ops::empty(ctx, {total}, DType::f32, Purpose::communication);
    int64_t at = 0;
    for (size_t i = 0; i < kParts; ++i) {
        if (shapes[i].rank() == 0) continue;
        parts_[i] = all_.narrow(0, at, shapes[i].numel()).reshape(shapes[i]);
        at += shapes[i].numel();
    }
}

void RouterNumbers::know(const std::vector<float>& values) {
    check(static_cast<int64_t>(values.size()) == all_.numel(), "a router's numbers: ", values.size(),
          " of an earlier pass, ", all_.numel(), " of this one");
    ctx_.device.copy_in(all_.view().data, values.data(), all_.bytes());
    values_ = values;
    known_ = true;
}

void RouterNumbers::send() {
    if (!known_) copy_ = ctx_.device.copy_to_host_async(all_.view().data, all_.bytes());
}

const std::vector<float>& RouterNumbers::values() {
    if (copy_) {
        const auto values = copy_->values<float>();
        values_.assign(values.begin(), values.end());
        copy_.reset();
    }
    return values_;
}

std::vector<double> RouterNumbers::values(Part part) {
    values();
    std::ptrdiff_t begin = 0;
    for (size_t i = 0; i < part; ++i) begin += has(static_cast<Part>(i)) ? parts_[i].numel() : 0;
    const auto first = values_.begin() + begin;
    return {first, first + (has(part) ? parts_[part].numel() : 0)};
}

RouterNumbers::Counts RouterNumbers::counts(Part part) {
    const std::vector<double> numbers = values(part);
    return {numbers.begin(), numbers.end()};
}

// --- capacity ---

int64_t capacity_of(const spec::MixtureSpec& spec, const Batch& batch) {
    const auto tokens = static_cast<double>(tokens_of_microbatch(batch));
    const double capacity =
        std::ceil(tokens * static_cast<double>(spec.top_k) / static_cast<double>(spec.experts) * spec.capacity_factor);
    return static_cast<int64_t>(std::min(capacity, tokens));  // a token chooses an expert once at most
}

namespace {

// x (N, ...) of all ranks, one after another, with rows of `padding` behind those of ranks that have fewer than `rows`.
template <class T>
Tensor gathered(ops::Context& ctx, comm::Communicator& ranks, const Tensor& x, int64_t rows, T padding) {
    const int64_t N = x.dim(0), width = N > 0 ? x.numel() / N : (x.rank() > 1 ? x.dim(1) : 1);
    Tensor part = x;
    if (N < rows) {
        const std::vector<T> values(to_size(rows * width), padding);
        part = Tensor::from_host<T>(ctx.device, {rows, width}, values, Purpose::communication);
        ctx.device.copy(part.view().data, x.view().data, x.bytes());
    }
    const Tensor all = ops::empty(ctx, {ranks.size() * rows, width}, x.dtype(), Purpose::communication);
    ranks.all_gather(part, all).wait();
    return all;
}

}  // namespace

Tensor drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                            const ops::Routed& routed, int64_t first_row, int64_t most_rows) {
    const int64_t N = routed.experts.dim(0);
    const Tensor index = batch.row_index.reshape({batch.row_index.numel()});
    Tensor rows = index.dim(0) == N ? index : index.narrow(0, first_row, N);  // rows_of() may have cut them
    // An expert takes its choices by probability, or by the place of the row.
    Tensor choices = routed.experts, weights = spec.drop == "probability" ? routed.weights : Tensor();
    int64_t first = 0;
    if (comm::Communicator* ranks = batch.routing.microbatch) {
        rows = gathered<int64_t>(ctx, *ranks, ops::contiguous(ctx, rows), most_rows, 0);
        choices = gathered<int32_t>(ctx, *ranks, choices, most_rows, -1);
        if (weights.defined()) weights = gathered<float>(ctx, *ranks, weights, most_rows, 0);
        first = ranks->rank() * most_rows;
    }
    return ops::accept_choices(ctx, choices, rows, weights, spec.experts, capacity_of(spec, batch), first, N);
}

// --- destinations ---

namespace {

// Writes the number of rows that each rank sends to each expert of this rank, (P, L); `counts` (E): choices of this
// rank. Each of the `etp` ranks that divide an expert gets all its rows.
void exchange_counts(ops::Context& ctx, comm::Communicator& ranks, int etp, const Tensor& counts,
                     const Tensor& arriving) {
    const int64_t P = ranks.size(), L = arriving.dim(1);
    Tensor sent = counts;
    if (etp > 1) {
        sent = ops::empty(ctx, {P / etp, etp * L}, DType::f32, Purpose::communication);
        for (int copy = 0; copy < etp; ++copy)
            ops::copy(ctx, counts.reshape({P / etp, L}), sent.narrow(1, copy * L, L));
    }
    const std::vector<int64_t> each(to_size(P), L);
    ranks.all_to_all(sent, each, arriving, each).wait();
}

}  // namespace

Tensor sort_for_dispatch(ops::Context& ctx, const Tensor& choices, const autograd::ExpertParallel& ranks,
                         const Tensor& counts, const Tensor& arriving, bool known, Dispatch& d) {
    const int64_t owners = ranks.ranks ? ranks.ranks->size() / ranks.etp : 1;
    ops::SortedChoices sorted = ops::sort_choices(ctx, choices, counts, owners, ranks.etp);
    d.slots = std::move(sorted.slots);
    if (ranks.ranks && !known) exchange_counts(ctx, *ranks.ranks, ranks.etp, counts, arriving);
    return std::move(sorted.sent);
}

namespace {

// Pads d.rows and sets the order of the R rows that arrive.
void order_rows(ops::Context& ctx, const Tensor& arriving, int64_t R, int64_t multiple, Dispatch& d) {
    int64_t padded = 0;
    for (int64_t& rows : d.rows) padded += rows = round_up(rows, multiple);
    ops::Arrivals arrivals = ops::order_arrivals(ctx, arriving, R, multiple, padded);
    d.order = std::move(arrivals.order);
    d.places = std::move(arrivals.places);
}

}  // namespace

void make_dispatch(ops::Context& ctx, const autograd::ExpertParallel& ranks, const RouterNumbers::Counts& counts,
                   const Tensor& arriving, const RouterNumbers::Counts& arriving_values, int64_t multiple,
                   Dispatch& d) {
    const auto sum = [](const auto& from, size_t begin, size_t size) {
        const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
        return std::accumulate(first, first + static_cast<std::ptrdiff_t>(size), int64_t{0});
    };
    d.sent_rows = sum(counts, 0, counts.size()) * ranks.etp;
    if (!ranks.ranks) {
        d.rows = counts;
        if (multiple > 1) order_rows(ctx, arriving.reshape({1, arriving.numel()}), d.sent_rows, multiple, d);
        return;
    }
    const auto P = to_size(ranks.ranks->size()), own = to_size(ranks.ranks->rank());
    const auto etp = to_size(ranks.etp);
    const size_t L = counts.size() * etp / P;
    const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(own / etp * L);
    const RouterNumbers::Counts all =
        ctx.values->of_ranks(arriving_values, {begin, begin + static_cast<std::ptrdiff_t>(L)});
    d.rows.assign(L, 0);
    for (size_t p = 0; p < P; ++p) {
        d.to.push_back(sum(counts, p / etp * L, L));
        d.from.push_back(sum(all, p * L, L));
        for (size_t e = 0; e < L; ++e) d.rows[e] += all[p * L + e];
    }
    order_rows(ctx, arriving, sum(d.from, 0, P), multiple, d);
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
