#include "tutti/nn/mixture.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/dispatch.h"
#include "tutti/nn/product_rule.h"
#include "tutti/nn/recording.h"
#include "tutti/nn/routing.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;
using ops::GemmRole;

kernels::Routing how_to_route(const spec::MixtureSpec& s) {
    const bool sigmoid = s.score == "sigmoid";
    return {.sigmoid = sigmoid,
            .groups = s.groups,
            .chosen_groups = s.top_groups,
            .group_best = s.group_best > 0 ? s.group_best : std::max<int64_t>(s.top_k / s.top_groups, 1),
            .normalise = s.normalise,
            .epsilon = sigmoid ? static_cast<float>(s.epsilon) : 0.0f,
            .scale = static_cast<float>(s.scale)};
}

Tensor as_f32(ops::Context& ctx, const Tensor& x) {
    return x.dtype() == DType::f32 ? x : ops::cast(ctx, x, DType::f32);
}

// The plain rule's operand of a router's weight in f32.
ops::Operand weight_in_f32(ops::Context& ctx, Parameter& w, GemmRole role) {
    ops::Operand operand = rule_of(w).weight(ctx, w, {role});
    return operand.values.dtype() == DType::f32 ? operand : as_f32(ctx, operand.values);
}

// Rows [first, first + count) of x (N, C), and the inverse: x (count, C) as these rows among N, the others zero.
Tensor rows_taken(ops::Context& ctx, const Tensor& x, int64_t first, int64_t count) {
    return ops::contiguous(ctx, x.narrow(0, first, count));
}
Tensor rows_placed(ops::Context& ctx, const Tensor& x, int64_t first, int64_t N) {
    const Tensor y = ops::zeros(ctx, {N, x.dim(1)}, x.dtype());
    ops::copy(ctx, x, y.narrow(0, first, x.dim(0)));
    return y;
}

Var take_rows(Tape& tape, const Var& x, int64_t first, int64_t count) {
    ops::Context& ctx = tape.context();
    return tape.record("take_rows", {x}, rows_taken(ctx, x.value, first, count),
                       [&ctx, first, N = x.value.dim(0)](const Tensor& dy, Tensors&) {
                           return Tensors{rows_placed(ctx, dy, first, N)};
                       });
}

Var place_rows(Tape& tape, const Var& x, int64_t first, int64_t N) {
    ops::Context& ctx = tape.context();
    return tape.record("place_rows", {x}, rows_placed(ctx, x.value, first, N),
                       [&ctx, first, count = x.value.dim(0)](const Tensor& dy, Tensors&) {
                           return Tensors{rows_taken(ctx, dy, first, count)};
                       });
}

// x (N, C) w^T + b in f32, whatever the type of x, w and b.
Var logits_of(Tape& tape, const Var& x, Affine router) {
    ops::Context& ctx = tape.context();
    Parameter& w = router.weight;
    const Tensor bias = router.bias ? as_f32(ctx, router.bias->value) : Tensor();
    const Tensor logits =
        ops::linear(ctx, as_f32(ctx, x.value), weight_in_f32(ctx, w, GemmRole::forward), router.bias ? &bias : nullptr);
    return tape.record(
        "router", {x}, logits,
        [&ctx, &w, type = x.value.dtype()](const Tensor& dy, Tensors&) {
            const Tensor dx = ops::linear_backward_input(ctx, dy, weight_in_f32(ctx, w, GemmRole::input_gradient));
            return Tensors{type == DType::f32 ? dx : ops::cast(ctx, dx, type)};
        },
        [&ctx, router, saved = autograd::SavedTensor(x)](const Tensor& dy) {
            Parameter& weight = router.weight;
            if (!weight.frozen())
                ops::linear_backward_weight(ctx, dy, as_f32(ctx, saved.take()), weight.gradient,
                                            adds_to_gradient(weight));
            if (router.bias) ops::bias_backward(ctx, dy, gradient_to_add_to(ctx, *router.bias));
        },
        parameters_of(router));
}

// Adds the load (E) to the gradient of the bias, from which the optimizer balances it (Wang et al. 2024).
void count_load(Tape& tape, Parameter& bias, const Tensor& load) {
    ops::Context& ctx = tape.context();
    ops::accumulate(ctx, load, gradient_to_add_to(ctx, bias));
    tape.gradient_taken(bias);
}

// A router's pass in progress.
struct Routes {
    ops::Routed routed;
    Tensor unmasked;  // (N, k) i32: the experts of all rows, where routed.experts has -1 for padding; or undefined
    std::unique_ptr<RouterNumbers> numbers;
    Dispatch dispatch;
    Tensor sent;  // the row of each place to be sent (sort_for_dispatch)
};

// Rows of this rank among those that all ranks of a tensor-parallel group have, or all rows.
struct OwnRows {
    int64_t first = 0, count = 0;        // first: in batch.tokens
    int64_t most = 0;                    // of the rank with the most
    std::vector<TokenRun> padding = {};  // among them
};

OwnRows own_rows(const Batch& batch, int64_t first, int64_t count, int64_t most) {
    OwnRows own{first, count, most};
    for (const TokenRun& run : batch.padding) {
        const int64_t begin = std::max(run.begin - first, int64_t{0});
        const int64_t end = std::min(run.begin + run.tokens - first, count);
        if (begin < end) own.padding.push_back({begin, end - begin});
    }
    return own;
}

void clear_padding(ops::Context& ctx, const Tensor& x, const std::vector<TokenRun>& padding) {
    if (!x.defined()) return;
    for (const TokenRun& run : padding) ops::fill(ctx, x.narrow(0, run.begin, run.tokens), 0);
}

// Padding goes to no expert and is in no sum over rows, so that it takes no capacity and has no part in loads and
// losses.
void leave_out_padding(ops::Context& ctx, Routes& r, const std::vector<TokenRun>& padding) {
    if (padding.empty()) return;
    r.unmasked = r.routed.experts;
    r.routed.experts = ops::empty(ctx, r.unmasked.shape(), DType::i32);
    ctx.device.copy(r.routed.experts.view().data, r.unmasked.view().data, r.unmasked.bytes());
    for (const TokenRun& run : padding) {
        const Tensor rows = r.routed.experts.narrow(0, run.begin, run.tokens);
        const std::vector<int32_t> none(to_size(rows.numel()), -1);
        ctx.device.copy_in(rows.view().data, none.data(), rows.bytes());
    }
    for (const Tensor* x : {&r.routed.shares, &r.routed.entropy, &r.routed.log_sum}) clear_padding(ctx, *x, padding);
}

// Queues the choice of experts, the sums of the balancing losses, the capacity and the order in which rows are sent,
// and a copy of the numbers of all this to the host.
Routes begin_route(Tape& tape, const Tensor& logits, const MixtureLayer& l, const Batch& batch, const OwnRows& rows) {
    ops::Context& ctx = tape.context();
    const spec::MixtureSpec& s = l.spec;
    const autograd::ExpertParallel& ep = l.up.weight.expert_parallel;
    const int64_t E = s.experts, P = ep.ranks ? ep.ranks->size() : 1;
    RoutingRecord* record = batch.routing.record;
    const std::vector<float>* known =
        tape.recomputing() && record ? &record->numbers(l.layer, batch.routing.index) : nullptr;
    const int64_t segments = tape.training() ? balanced_segments(s, batch) : 0;
    const bool drops = tape.training() && s.capacity_factor > 0;

    Routes r;
    r.routed = ops::route(ctx, logits, l.expert_bias ? l.expert_bias->value : Tensor(), s.top_k, how_to_route(s),
                          segments > 0);
    leave_out_padding(ctx, r, rows.padding);
    using Numbers = RouterNumbers;
    std::array<Shape, Numbers::kParts> shapes = {Shape{E}};
    if (drops) shapes[Numbers::accepted] = {E};
    if (ep.ranks) shapes[Numbers::arriving] = {P, E * ep.etp / P};
    if (segments > 0) shapes[Numbers::sums] = {2 * segments, E};
    if (segments > 0 && s.aux_loss == "global" && batch.routing.step) shapes[Numbers::step] = {E};
    r.numbers = std::make_unique<Numbers>(ctx, shapes);
    Numbers& numbers = *r.numbers;
    if (known && !known->empty()) numbers.know(*known);

    if (segments > 0 && !numbers.known()) sum_loads(ctx, s, batch, r.routed, rows.first, numbers);
    Tensor choices = r.routed.experts;
    if (drops) {
        ops::count_choices(ctx, choices, numbers[Numbers::load]);
        choices = drop_beyond_capacity(ctx, s, batch, r.routed, rows.first, rows.most);
    }
    r.sent = sort_for_dispatch(ctx, choices, ep, numbers[drops ? Numbers::accepted : Numbers::load],
                               numbers[Numbers::arriving], numbers.known(), r.dispatch);
    numbers.send();
    return r;
}

// Waits for the numbers: records them, and completes r.dispatch. Returns the weights (N, k).
Var end_route(Tape& tape, const Var& logits, const MixtureLayer& l, const Batch& batch, const OwnRows& rows,
              Routes& r) {
    ops::Context& ctx = tape.context();
    const spec::MixtureSpec& s = l.spec;
    RouterNumbers& numbers = *r.numbers;
    const int64_t k = s.top_k;
    const auto total = [](const RouterNumbers::Counts& of) {
        return std::accumulate(of.begin(), of.end(), int64_t{0});
    };
    int64_t routed_rows = rows.count;
    for (const TokenRun& run : rows.padding) routed_rows -= run.tokens;
    const auto load = ctx.values->loads(numbers.counts(RouterNumbers::load), routed_rows, k);
    check(total(load) == routed_rows * k, "layer ", l.layer, ": a router chose experts outside of the ", s.experts,
          " that it has, ", routed_rows * k - total(load), " times");
    auto accepted = load;
    if (numbers.has(RouterNumbers::accepted)) {
        const int64_t ranks = batch.routing.microbatch ? batch.routing.microbatch->size() : 1;
        accepted = ctx.values->accepted(numbers.counts(RouterNumbers::accepted), load, capacity_of(s, batch), ranks);
    }
    const Balancing balancing = balance_loads(tape, s, l.layer, batch, r.routed, numbers, rows.first);
    if (tape.training() && !tape.recomputing()) {
        if (RoutingRecord* record = batch.routing.record) {
            record->add(l.layer, load, total(load) - total(accepted), r.routed.entropy);
            record->numbers(l.layer, batch.routing.index) = numbers.values();
        }
        if (l.expert_bias) count_load(tape, *l.expert_bias, numbers[RouterNumbers::load]);
    }
    using Numbers = RouterNumbers;
    const autograd::ExpertParallel& ep = l.up.weight.expert_parallel;
    int64_t multiple = 1;
    for (const Parameter* w : {&l.gate.weight, &l.up.weight, &l.down.weight})
        multiple = std::lcm(multiple, rule_of(*w).multiple_of_rows(ctx));
    const Tensor& arriving = numbers[ep.ranks                         ? Numbers::arriving
                                     : numbers.has(Numbers::accepted) ? Numbers::accepted
                                                                      : Numbers::load];
    make_dispatch(ctx, ep, accepted, arriving, numbers.counts(Numbers::arriving), multiple, r.dispatch);
    ops::Routed routed = std::move(r.routed);
    routed.shares = routed.entropy = {};
    if (r.unmasked.defined()) routed.experts = std::move(r.unmasked);
    return tape.record("route", {logits}, routed.weights,
                       [&ctx, x = logits.value, routed, how = how_to_route(s), balancing, padding = rows.padding](
                           const Tensor& dy, Tensors&) {
                           const Tensor dshares = balancing.dshares ? balancing.dshares() : Tensor();
                           const Tensor dx = ops::route_backward(ctx, x, routed, how, dy, dshares, balancing.segments,
                                                                 balancing.z_scale);
                           clear_padding(ctx, dx, padding);
                           return Tensors{dx};
                       });
}

// x (N, C) to the rows of this rank's experts, (R, C), one expert after another. `sent`: rows of x in the order in
// which they are sent, and others behind.
Var send_to_experts(Tape& tape, const Var& x, const Tensor& sent, const Dispatch& d, comm::Communicator* ranks) {
    ops::Context& ctx = tape.context();
    Tensor rows = sent.narrow(0, 0, d.sent_rows);
    if (ranks) {
        Exchange exchange(ctx, *ranks, rows, d.to, d.from);
        exchange.wait();
        rows = exchange.rows();
    }
    if (d.order.defined()) rows = ops::gather_rows(ctx, rows, d.order);
    return tape.record("send_to_experts", {x}, rows, [&ctx, d, ranks](const Tensor& dy, Tensors&) {
        Tensor back = d.order.defined() ? ops::gather_rows(ctx, dy, d.places) : dy;
        if (ranks) {
            Exchange exchange(ctx, *ranks, back, d.from, d.to);
            exchange.wait();
            back = exchange.rows();
        }
        return Tensors{ops::combine_rows(ctx, back, d.slots)};
    });
}

// Records the node of y = x w^T of each row by its expert, or of `name`, a function of z before it, whose gradients
// `backward` makes from those of y and the weight. `in`: the operand that the forward multiplied, of x.
using GroupedBackward = std::function<Tensors(const ops::Operand& dy, const ops::Operand& w, Tensors& sums)>;
Var record_grouped(Tape& tape, const char* name, const std::vector<Var>& z, const Var& x, const ops::Operand& in,
                   Affine layer, const Dispatch& d, const Tensor& y, GroupedBackward backward) {
    ops::Context& ctx = tape.context();
    const ops::GroupRows& rows = d.rows;
    Parameter& w = layer.weight;
    const ProductRule& rule = rule_of(w);
    std::function<ops::Operand()> saved;
    if (tape.recording()) saved = rule.save(tape, x, in, {GemmRole::weight_gradient, rows, &w});
    return tape.record(
        name, z, y,
        [&ctx, &w, &rule, rows, padding = d.padding(), backward = std::move(backward)](const Tensor& dy,
                                                                                       Tensors& sums) {
            const Use use{GemmRole::input_gradient, rows, &w, padding};
            return backward(rule.gradient(ctx, dy, use), rule.weight(ctx, w, use), sums);
        },
        [&ctx, layer, &rule, rows, saved = std::move(saved)](const Tensor& dy) {
            Parameter& weight = layer.weight;
            if (!weight.frozen()) {
                const auto of_dy = rule.gradient(ctx, dy, {GemmRole::weight_gradient, rows, &weight});
                ops::grouped_backward_weight(ctx, of_dy, saved(), weight.gradient, rows, adds_to_gradient(weight));
            }
            if (layer.bias) ops::grouped_bias_backward(ctx, dy, gradient_to_add_to(ctx, *layer.bias), rows);
        },
        parameters_of(layer));
}

// y, whose rows of padding become zeros.
Tensor without_padding(ops::Context& ctx, const Tensor& y, const Dispatch& d) {
    return ops::gather_rows(ctx, ops::gather_rows(ctx, y, d.places), d.order);
}

// down(unit of gate(x) and up(x)), of each row by its expert. Of ranks that divide an expert the first adds the bias of
// down; the gradient of this bias is the same on all of them.
Var experts(Tape& tape, const Var& x, const MixtureLayer& l, const Dispatch& d) {
    ops::Context& ctx = tape.context();
    const ops::GroupRows& rows = d.rows;
    for (const Parameter* w : {&l.gate.weight, &l.up.weight, &l.down.weight})
        check<UsageError>(!rule_of(*w).adds(), w->name, ": a product rule that adds a term serves no experts");
    const auto input = [&](const Parameter& w, const Tensor& of) {
        return rule_of(w).input(ctx, of, {GemmRole::forward, rows, &w, d.padding()});
    };
    const auto weight = [&](Parameter& w) { return rule_of(w).weight(ctx, w, {GemmRole::forward, rows, &w}); };
    const auto linear = [&](const char* name, Affine layer, const ops::Operand& in, const Tensor& y) {
        return record_grouped(tape, name, {x}, x, in, layer, d, y,
                              [&ctx, rows](const ops::Operand& dy, const ops::Operand& of, Tensors& sums) {
                                  return Tensors{ops::grouped_backward_input(ctx, dy, of, rows, std::move(sums[0]))};
                              });
    };
    const bool gated_by_another = &l.gate.weight != &l.up.weight;
    const ops::Operand of_gate = input(l.gate.weight, x.value);
    const ops::Operand of_up = &rule_of(l.up.weight) == &rule_of(l.gate.weight) ? of_gate : input(l.up.weight, x.value);
    const Tensor gated = ops::grouped_linear(ctx, of_gate, weight(l.gate.weight), value_of(l.gate.bias), rows);
    const ops::Activated upper = gated_by_another
                                     ? ops::grouped_linear_swiglu(ctx, l.unit, gated, of_up, weight(l.up.weight),
                                                                  value_of(l.up.bias), rows, tape.recording())
                                     : ops::Activated{.z = gated, .y = ops::swiglu(ctx, l.unit, gated, gated)};
    const Var g = linear(gated_by_another ? "expert_gate" : "expert_up", l.gate, of_gate, gated);
    const Var u = gated_by_another ? linear("expert_up", l.up, of_up, upper.z) : g;
    // Biases fill rows of padding, which would have a part in the scale of the rows.
    const bool clears = d.padding() > 0 && (l.gate.bias != nullptr || l.up.bias != nullptr);
    const Tensor unit_of_rows = clears ? without_padding(ctx, upper.y, d) : upper.y;
    tape.saves(unit_of_rows);
    const Var active =
        recomputable(tape, {unit_of_rows, -1}, [&ctx, d, clears, unit = l.unit, g = g.value, u = u.value] {
            const Tensor y = ops::swiglu(ctx, unit, g, u);
            return clears ? without_padding(ctx, y, d) : y;
        });
    const ops::Operand of_down = input(l.down.weight, unit_of_rows);
    const autograd::ExpertParallel& ep = l.down.weight.expert_parallel;
    const bool adds_bias = ep.ranks == nullptr || ep.ranks->rank() % ep.etp == 0;
    return record_grouped(
        tape, "expert_down", {g, u}, active, of_down, l.down, d,
        ops::grouped_linear(ctx, of_down, weight(l.down.weight), adds_bias ? value_of(l.down.bias) : nullptr, rows),
        [&ctx, unit = l.unit, rows, g = g.value, u = u.value](const ops::Operand& dy, const ops::Operand& of,
                                                              Tensors&) {
            ops::GateAndUp dz = ops::grouped_swiglu_backward(ctx, unit, dy, of, g, u, rows);
            return Tensors{std::move(dz.gate), std::move(dz.up)};
        });
}

// Shared by the nodes send_back and combine: in the forward the rows that return from the experts, in the backward
// their gradients, which go to the experts.
using UnderWay = std::shared_ptr<Exchange>;

// The rows of y without their padding, in the order of arrival.
Var take_arrivals(Tape& tape, const Var& y, const Dispatch& d) {
    ops::Context& ctx = tape.context();
    return tape.record("take_arrivals", {y}, ops::gather_rows(ctx, y.value, d.places),
                       [&ctx, d](const Tensor& dy, Tensors&) { return Tensors{ops::gather_rows(ctx, dy, d.order)}; });
}

// Starts to return the outputs y (R, C) of the experts to the ranks that sent the rows, (M, C), which must not be read
// before `way` is complete. In the backward the gradient arrives through `way`.
Var send_back(Tape& tape, const Var& y, const Dispatch& d, comm::Communicator& ranks, const UnderWay& way) {
    ops::Context& ctx = tape.context();
    *way = Exchange(ctx, ranks, ops::gather_rows(ctx, y.value, d.places), d.from, d.to);
    return tape.record("send_back", {y}, way->rows(), [&ctx, d, way](const Tensor& dy, Tensors&) {
        way->wait();
        *way = {};
        return Tensors{ops::gather_rows(ctx, dy, d.order)};
    });
}

// The weights (N, k), once for each of the `copies` in which the rows were sent: (N, k copies).
Var repeated(Tape& tape, const Var& weights, int64_t copies) {
    if (copies == 1) return weights;
    ops::Context& ctx = tape.context();
    const int64_t N = weights.value.dim(0), k = weights.value.dim(1);
    const Tensor all = ops::empty(ctx, {N, k * copies}, DType::f32);
    for (int64_t i = 0; i < copies; ++i) ops::copy(ctx, weights.value, all.narrow(1, i * k, k));
    return tape.record("repeated", {weights}, all, [&ctx, k, copies](const Tensor& dy, Tensors&) {
        const Tensor sum = ops::contiguous(ctx, dy.narrow(1, 0, k));
        for (int64_t i = 1; i < copies; ++i) ops::accumulate(ctx, ops::contiguous(ctx, dy.narrow(1, i * k, k)), sum);
        return Tensors{sum};
    });
}

// The weighted sum of the outputs of a row's experts. `way`: the exchange that brings y in the forward and takes its
// gradient in the backward; null: none.
Var combine(Tape& tape, const Var& y, const Var& weights, const Dispatch& d, comm::Communicator* ranks,
            const UnderWay& way) {
    ops::Context& ctx = tape.context();
    if (way) {
        way->wait();
        *way = {};
    }
    return tape.record("combine", {y, weights}, ops::combine_rows(ctx, y.value, d.slots, weights.value),
                       [&ctx, y = y.value, w = weights.value, d, ranks, way](const Tensor& dy, Tensors&) {
                           ops::CombineGradients g = ops::combine_rows_backward(ctx, dy, y, d.slots, w);
                           if (!way) return Tensors{g.dx, g.dweights};
                           *way = Exchange(ctx, *ranks, g.dx, d.to, d.from);
                           return Tensors{way->rows(), g.dweights};
                       });
}

}  // namespace

Var mixture(Tape& tape, const Var& x, const MixtureLayer& l, const Batch& batch) {
    ops::Context& ctx = tape.context();
    const Shape shape = x.value.shape();
    const int64_t C = shape[-1], N = x.value.numel() / C;
    const autograd::TensorParallel& tp = l.router.weight.tensor_parallel;
    const bool shares = tp.ranks && !tp.sequence;  // rows that all ranks have
    const int64_t P = tp.ranks ? tp.ranks->size() : 1, p = tp.ranks ? tp.ranks->rank() : 0;
    const int64_t first = shares ? N * p / P : 0, count = shares ? N * (p + 1) / P - first : N;

    Var rows = reshape(tape, shares ? copy_to_region(tape, x, *tp.ranks) : x, {N, C});
    if (shares) rows = take_rows(tape, rows, first, count);
    const Var logits = logits_of(tape, rows, l.router);
    const OwnRows own = own_rows(batch, tp.sequence && tp.ranks ? N * p : first, count, shares ? ceil_div(N, P) : N);
    Routes routes = begin_route(tape, logits.value, l, batch, own);
    // These run while the host waits for the numbers.
    if (l.into_latent) rows = linear(tape, rows, {*l.into_latent, nullptr});
    Tensor sent = ops::gather_rows(ctx, rows.value, std::exchange(routes.sent, {}));
    Var weights = end_route(tape, logits, l, batch, own, routes);
    const autograd::ExpertParallel& ep = l.up.weight.expert_parallel;
    weights = repeated(tape, weights, ep.etp);
    const Dispatch d = std::move(routes.dispatch);

    Var y = experts(tape, send_to_experts(tape, rows, std::exchange(sent, {}), d, ep.ranks), l, d);
    const UnderWay way = ep.ranks ? std::make_shared<Exchange>() : nullptr;
    if (ep.ranks)
        y = send_back(tape, y, d, *ep.ranks, way);
    else if (d.order.defined())
        y = take_arrivals(tape, y, d);
    const Var shared = l.shared ? l.shared(x) : Var();
    y = combine(tape, y, weights, d, ep.ranks, way);
    if (l.from_latent) y = linear(tape, y, {*l.from_latent, nullptr});
    if (shares) y = place_rows(tape, y, first, N);
    y = reshape(tape, y, shape);
    if (shares) y = reduce_from_region(tape, std::move(y), *tp.ranks);
    return l.shared ? add(tape, y, shared) : y;
}

// Computed as the combination of a single expert that gets all rows.
Var sigmoid_gate(Tape& tape, const Var& y, const Var& x, Parameter& w) {
    ops::Context& ctx = tape.context();
    const Shape shape = y.value.shape();
    const int64_t C = shape[-1], N = y.value.numel() / C;
    const kernels::Routing how{.sigmoid = true};
    const Var logits = logits_of(tape, reshape(tape, x, {N, C}), {w, nullptr});
    ops::Routed routed = ops::route(ctx, logits.value, {}, 1, how, false);
    const Var gate = tape.record("sigmoid", {logits}, routed.weights,
                                 [&ctx, x = logits.value, routed, how](const Tensor& dy, Tensors&) {
                                     return Tensors{ops::route_backward(ctx, x, routed, how, dy, {}, {}, 0)};
                                 });
    std::vector<int32_t> each(to_size(N));
    for (size_t i = 0; i < each.size(); ++i) each[i] = static_cast<int32_t>(i);
    Dispatch d;
    d.slots = Tensor::from_host<int32_t>(ctx.device, {N, 1}, each, Purpose::activations);
    return reshape(tape, combine(tape, reshape(tape, y, {N, C}), gate, d, nullptr, nullptr), shape);
}

}  // namespace tutti::nn
