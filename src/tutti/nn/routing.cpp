#include "tutti/nn/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tutti/base/to_size.h"

namespace tutti::nn {

RoutingRecord::RoutingRecord(ops::Context& ctx, std::vector<int64_t> layers, const spec::MixtureSpec& spec,
                             int64_t tokens)
    : ctx_(ctx),
      layers_(std::move(layers)),
      experts_(spec.experts),
      top_k_(spec.top_k),
      entropy_(ctx),
      z_(ctx),
      z_scale_(spec.z_coef / static_cast<double>(tokens)) {}

void RoutingRecord::begin() {
    load_.clear();
    step_load_.clear();
    dshares_.clear();
    numbers_.clear();
    means_.clear();
    dropped_ = 0;
    loss_ = {};
}

void RoutingRecord::add(int64_t layer, const std::vector<int64_t>& load, int64_t dropped, const Tensor& entropy) {
    std::vector<int64_t>& sum = load_[layer];
    sum.resize(load.size());
    for (size_t e = 0; e < load.size(); ++e) sum[e] += load[e];
    dropped_ += dropped;
    entropy_.add(entropy);
}

void RoutingRecord::add_z_loss(const Tensor& log_sum, double weight) {
    if (weight == 1) return z_.add_squares(log_sum);
    const Tensor scaled = ops::cast(ctx_, log_sum, DType::f32);
    ops::scale(ctx_, scaled, static_cast<float>(std::sqrt(weight)));
    z_.add_squares(scaled);
}

Tensor RoutingRecord::means_message(int64_t microbatch) {
    const std::shared_ptr<LayerMeans> of = means(microbatch);
    std::vector<double> values = {static_cast<double>(of->layers)};
    for (std::vector<double>* sums : {&of->load, &of->share}) {
        sums->resize(to_size(experts_));
        values.insert(values.end(), sums->begin(), sums->end());
    }
    return Tensor::from_host<double>(ctx_.device, means_shape(), values, Purpose::communication);
}

void RoutingRecord::set_means(int64_t microbatch, const Tensor& message) {
    const std::vector<double> values = on_host<double>(ctx_, message);
    const auto load = values.begin() + 1, share = load + experts_;
    *means(microbatch) = {static_cast<int64_t>(values[0]), {load, share}, {share, values.end()}};
}

RoutingSummary RoutingRecord::take(comm::Communicator& world) {
    std::vector<int64_t> counts(layers_.size() * to_size(experts_) + 1);
    for (size_t l = 0; l < layers_.size(); ++l) {
        const auto found = load_.find(layers_[l]);
        if (found != load_.end())
            std::copy(found->second.begin(), found->second.end(),
                      counts.begin() + static_cast<std::ptrdiff_t>(l * to_size(experts_)));
    }
    counts.back() = dropped_;
    const Tensor sums =
        Tensor::from_host<int64_t>(ctx_.device, {static_cast<int64_t>(counts.size())}, counts, Purpose::communication);
    world.all_reduce(sums).wait();
    counts = on_host<int64_t>(ctx_, sums);
    ExactSum entropy = entropy_.take(), z = z_.take();
    for (ExactSum* sum : {&entropy, &z, &loss_}) world.sum(*sum);

    const auto choices = static_cast<double>(std::accumulate(counts.begin(), counts.end() - 1, int64_t{0}));
    const double mean = choices / static_cast<double>(counts.size() - 1);
    RoutingSummary s{
        .experts = experts_, .layers = layers_, .mean_load = mean, .aux_loss = loss_.value() + z_scale_ * z.value()};
    s.dropped_share = choices > 0 ? static_cast<double>(counts.back()) / choices : 0;
    for (size_t i = 0; i + 1 < counts.size(); ++i)
        s.load.push_back(mean > 0 ? static_cast<double>(counts[i]) / mean : 0);
    if (choices > 0) s.entropy = entropy.value() * static_cast<double>(top_k_) / choices;
    return s;
}

int64_t balanced_segments(const spec::MixtureSpec& spec, const Batch& batch) {
    return spec.aux_loss == "none" ? 0 : spec.aux_loss == "sequence" ? batch.tokens.dim(0) : 1;
}

void sum_loads(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch, const ops::Routed& routed,
               int64_t first_row, const RouterNumbers& numbers) {
    const int64_t N = routed.shares.dim(0), E = spec.experts, T = batch.tokens.dim(1);
    const int64_t S = balanced_segments(spec, batch);
    const Tensor& sums = numbers[RouterNumbers::sums];
    ops::fill(ctx, sums, 0);
    for (int64_t row = 0; row < N;) {
        const int64_t s = S == 1 ? 0 : (first_row + row) / T, end = S == 1 ? N : std::min(N, (s + 1) * T - first_row);
        const auto of_segment = [&](int64_t at) { return sums.narrow(0, at, 1).reshape({E}); };
        ops::count_choices(ctx, routed.experts.narrow(0, row, end - row), of_segment(s));
        ops::bias_backward(ctx, routed.shares.narrow(0, row, end - row), of_segment(S + s));
        row = end;
    }
    comm::Communicator *const microbatch = batch.routing.microbatch, *const step = batch.routing.step;
    if (microbatch) microbatch->all_reduce(sums).wait();
    if (!numbers.has(RouterNumbers::step)) return;
    // Every rank of a microbatch has its whole load, so one of them adds it.
    const Tensor& of_step = numbers[RouterNumbers::step];
    if (microbatch == nullptr || microbatch->rank() == 0)
        ops::copy(ctx, sums.narrow(0, 0, 1).reshape({E}), of_step);
    else
        ops::fill(ctx, of_step, 0);
    step->all_reduce(of_step).wait();
}

namespace {

// Sums over all rows of a microbatch, on all ranks that divide it, by segment: each sequence, or one for all rows.
struct Loads {
    size_t segments = 1;
    std::vector<double> load, share;  // (S, E): sums over rows
};

Loads loads_of(const spec::MixtureSpec& spec, const Batch& batch, RouterNumbers& numbers) {
    const std::vector<double> sums = numbers.values(RouterNumbers::sums);
    const auto half = sums.begin() + static_cast<std::ptrdiff_t>(sums.size() / 2);
    return {to_size(balanced_segments(spec, batch)), {sums.begin(), half}, {half, sums.end()}};
}

// Choices of each expert in the step so far, over all ranks; `load`: those of this microbatch, over the ranks that
// divide it.
std::vector<double> load_so_far(int64_t layer, const Batch& batch, std::vector<double> load, RouterNumbers& numbers) {
    const RoutingContext& routing = batch.routing;
    check(routing.record != nullptr, "an aux_loss of kind global needs a RoutingRecord in the batch");
    if (numbers.has(RouterNumbers::step)) load = numbers.values(RouterNumbers::step);
    std::vector<double>& all = routing.record->step_load(layer);
    all.resize(load.size());
    for (size_t e = 0; e < load.size(); ++e) all[e] += load[e];
    return all;
}

// The loss of the kinds whose whole value is known in the forward, E sum over e of (share of choices of e) (mean
// probability of e), and its gradient by share (Fedus et al. 2022) times loss_scale.
double balance(const spec::MixtureSpec& spec, const Loads& loads, const std::vector<double>& so_far, double factor,
               double loss_scale, std::vector<float>& dshares) {
    const auto E = to_size(spec.experts);
    double loss = 0;
    dshares.resize(loads.share.size());
    for (size_t s = 0; s < loads.segments; ++s) {
        const auto begin = static_cast<std::ptrdiff_t>(s * E);
        const auto sum = [&](const std::vector<double>& x) {
            return std::accumulate(x.begin() + begin, x.begin() + begin + static_cast<std::ptrdiff_t>(E), 0.0);
        };
        const std::vector<double>& counted = so_far.empty() ? loads.load : so_far;
        const double tokens = std::max(sum(loads.load) / static_cast<double>(spec.top_k), 1.0);
        const double all = std::max(sum(counted), 1.0);
        for (size_t e = s * E; e < (s + 1) * E; ++e) {
            const double gradient =
                factor * static_cast<double>(E) * counted[e] / all / tokens / static_cast<double>(loads.segments);
            dshares[e] = static_cast<float>(gradient * loss_scale);
            loss += gradient * loads.share[e];
        }
    }
    return loss;
}

}  // namespace

Balancing balance_loads(const autograd::Tape& tape, const spec::MixtureSpec& spec, int64_t layer, const Batch& batch,
                        const ops::Routed& routed, RouterNumbers& numbers, int64_t first_row) {
    Balancing b;
    if (!tape.training() || (spec.aux_loss == "none" && spec.z_coef == 0)) return b;
    ops::Context& ctx = tape.context();
    const RoutingContext& routing = batch.routing;
    RoutingRecord* record = routing.record;
    const auto tokens = static_cast<double>(tokens_of_microbatch(batch));
    const bool counts = !tape.recomputing() && (routing.microbatch == nullptr || routing.microbatch->rank() == 0);
    if (spec.z_coef > 0) {
        b.z_scale = static_cast<float>(spec.z_coef * batch.share / tokens) * batch.loss_scale;
        if (record && !tape.recomputing())
            record->add_z_loss(routed.log_sum, 1 + static_cast<double>(batch.padded) / tokens);
    }
    if (spec.aux_loss == "none") return b;

    const int64_t E = spec.experts;
    const double factor = spec.aux_coef * batch.share;
    if (spec.aux_loss == "sequence") {
        std::vector<int32_t> segments(to_size(routed.shares.dim(0)));
        for (size_t i = 0; i < segments.size(); ++i)
            segments[i] = static_cast<int32_t>((first_row + static_cast<int64_t>(i)) / batch.tokens.dim(1));
        b.segments = Tensor::from_host<int32_t>(ctx.device, {static_cast<int64_t>(segments.size())}, segments,
                                                Purpose::activations);
    }
    if (spec.aux_loss == "all_layers") {
        check(record != nullptr, "an aux_loss of kind all_layers needs a RoutingRecord in the batch");
        const std::shared_ptr<RoutingRecord::LayerMeans> means = record->means(routing.index);
        const double layers = static_cast<double>(record->layers());
        if (!tape.recomputing()) {
            const Loads loads = loads_of(spec, batch, numbers);
            means->load.resize(loads.load.size());
            means->share.resize(loads.share.size());
            for (size_t e = 0; e < loads.load.size(); ++e) {
                means->load[e] += loads.load[e] / tokens;
                means->share[e] += loads.share[e] / tokens;
            }
            if (++means->layers == record->layers() && counts)
                record->add_loss(factor * static_cast<double>(E) / layers / layers *
                                 std::inner_product(means->load.begin(), means->load.end(), means->share.begin(), 0.0));
        }
        const double scale = factor * static_cast<double>(E) / layers / layers / tokens * batch.loss_scale;
        b.dshares = [&ctx, means, E, scale] {
            std::vector<float> values;
            for (const double load : means->load) values.push_back(static_cast<float>(scale * load));
            return Tensor::from_host<float>(ctx.device, {1, E}, values, Purpose::activations);
        };
        return b;
    }
    std::vector<float> dshares;
    if (record && tape.recomputing()) {
        dshares = record->dshares(layer, routing.index);
    } else {
        const Loads loads = loads_of(spec, batch, numbers);
        const std::vector<double> so_far =
            spec.aux_loss == "global" ? load_so_far(layer, batch, loads.load, numbers) : std::vector<double>();
        const double loss = balance(spec, loads, so_far, factor, batch.loss_scale, dshares);
        if (record) {
            record->dshares(layer, routing.index) = dshares;
            if (counts) record->add_loss(loss);
        }
    }
    b.dshares = [&ctx, dshares, E] {
        return Tensor::from_host<float>(ctx.device, {static_cast<int64_t>(dshares.size()) / E, E}, dshares,
                                        Purpose::activations);
    };
    return b;
}

}  // namespace tutti::nn
