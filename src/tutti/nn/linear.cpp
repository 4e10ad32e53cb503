// nn/linear.cpp: linear layers and what is made of them: projections of one input, MLPs (functions.h). Their products
// are made by the rules of their weights (product_rule.h), and communicate at the edges of tensor parallelism
// (overlapped.h).
#include <algorithm>
#include <utility>

#include "tutti/nn/overlapped.h"
#include "tutti/nn/product_rule.h"
#include "tutti/nn/recording.h"
#include "tutti/ops/fused_linear.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;
using autograd::Role;
using ops::GemmRole;

// The bias that this rank adds: if the outputs of several ranks are summed, only the first rank adds it.
const Tensor* bias_of(const Affine& layer) {
    const auto* ranks = layer.weight.tensor_parallel.ranks;
    return layer.weight.role == Role::row && ranks && ranks->rank() > 0 ? nullptr : value_of(layer.bias);
}

// Calls the rule of a weight for one product.
ops::Operand weight_of(ops::Context& ctx, Parameter& w, GemmRole role) {
    return rule_of(w).weight(ctx, w, {role, {}, &w});
}
ops::Operand gradient_of(ops::Context& ctx, const Parameter& w, const Tensor& dy, GemmRole role) {
    return rule_of(w).gradient(ctx, dy, {role, {}, &w});
}
ops::Operand input_of(ops::Context& ctx, const Parameter& w, const Tensor& x) {
    return rule_of(w).input(ctx, x, {GemmRole::forward, {}, &w});
}

using MakeOperand = std::function<ops::Operand()>;

// What the layer's rule saves of its input x, which the forward multiplied as `in`.
MakeOperand saved_input(Tape& tape, const Parameter& w, const Var& x, const ops::Operand& in) {
    return tape.recording() ? rule_of(w).save(tape, x, in, {GemmRole::weight_gradient, {}, &w}) : MakeOperand();
}

// The scale of gradients that the exit of a region gathers as codes; null: it gathers none, and dy are numbers.
using CodesOfGradient = std::shared_ptr<ops::Operand>;

// dy, or the codes that stand for it, for one product.
ops::Operand gradient_of(ops::Context& ctx, const Parameter& w, const Tensor& dy, GemmRole role,
                         const CodesOfGradient& codes) {
    if (codes == nullptr) return gradient_of(ctx, w, dy, role);
    ops::Operand whole = *codes;
    whole.values = dy;
    return rule_of(w).whole(ctx, whole, {role, {}, &w});
}

// The gradients of weight and bias of y = x w^T + b.
autograd::WeightGradient weight_gradient_of(ops::Context& ctx, const Affine& layer, MakeOperand saved,
                                            const CodesOfGradient& codes = {}) {
    return [&ctx, layer, codes, saved = std::move(saved)](const Tensor& dy) {
        if (!layer.weight.frozen())
            ops::linear_backward_weight(ctx, gradient_of(ctx, layer.weight, dy, GemmRole::weight_gradient, codes),
                                        saved(), layer.weight.gradient, adds_to_gradient(layer.weight));
        if (layer.bias && !layer.bias->frozen()) ops::bias_backward(ctx, dy, gradient_to_add_to(ctx, *layer.bias));
    };
}

// Records the node of y = x w^T + b, where y is already computed, of x as the operand `in`. `edge`: null for all but
// the first of several layers of one input.
Var record_linear(Tape& tape, const Var& x, const ops::Operand& in, Affine layer, const Tensor& y,
                  const SharedEdge& edge, const CodesOfGradient& codes = {}) {
    ops::Context& ctx = tape.context();
    return tape.record(
        "linear", {x}, y,
        [&ctx, &weight = layer.weight, edge, codes, wanted = x.id >= 0](const Tensor& dy, Tensors& sums) {
            const auto gradient = [&](ops::Products* later) {
                if (!wanted) return Tensor();
                return ops::linear_backward_input(ctx, gradient_of(ctx, weight, dy, GemmRole::input_gradient, codes),
                                                  weight_of(ctx, weight, GemmRole::input_gradient), std::move(sums[0]),
                                                  later);
            };
            return Tensors{edge ? edge->input_gradient(gradient) : gradient(nullptr)};
        },
        weight_gradient_of(ctx, layer, saved_input(tape, layer.weight, x, in), codes), parameters_of(layer));
}

// y plus the terms of the layer's rule.
Var finished(Tape& tape, const Var& x, Var y, const Affine& layer) {
    return rule_of(layer.weight).after(tape, x, std::move(y), layer);
}

bool any_adds(std::initializer_list<Affine> layers) {
    return std::any_of(layers.begin(), layers.end(), [](const Affine& l) { return rule_of(l.weight).adds(); });
}

bool gathers_codes(const Affine& layer) {
    const autograd::TensorParallel& tp = layer.weight.tensor_parallel;
    return tp.ranks != nullptr && tp.sequence && rule_of(layer.weight).gathers_codes();
}

// The input of layers at the entry of a region, and what their products multiply; layers of one rule share an operand.
struct Entered {
    Var x;
    std::vector<ops::Operand> operands;
};
Entered enter_layers(Tape& tape, const Var& x, std::initializer_list<Affine> layers, const SharedEdge& edge) {
    const Affine& first = *layers.begin();
    const auto like = [](const Affine& a, const Affine& b) { return &rule_of(a.weight) == &rule_of(b.weight); };
    const bool one_rule = std::all_of(layers.begin(), layers.end(), [&](const Affine& l) { return like(l, first); });
    Entered entered;
    if (one_rule && gathers_codes(first)) {
        ops::Operand whole;
        entered.x = enter_tp_region_as_codes(tape, x, first.weight, edge, whole);
        entered.operands.assign(layers.size(), whole);
        return entered;
    }
    entered.x = enter_tp_region(tape, x, first.weight, edge);
    for (auto layer = layers.begin(); layer != layers.end(); ++layer) {
        const bool same = layer != layers.begin() && like(*layer, *(layer - 1));
        entered.operands.push_back(same ? entered.operands.back()
                                        : input_of(tape.context(), layer->weight, entered.x.value));
    }
    return entered;
}

// Of a layer at the exit of a region. A bias reads the gradients themselves.
CodesOfGradient codes_of_gradient(const Affine& layer) {
    return layer.bias == nullptr && gathers_codes(layer) ? std::make_shared<ops::Operand>() : nullptr;
}
Var leave_layer(Tape& tape, Var y, const Affine& layer, const SharedEdge& edge, const CodesOfGradient& codes) {
    return codes ? exit_tp_region_as_codes(tape, y, layer.weight, codes)
                 : exit_tp_region(tape, std::move(y), layer.weight, edge);
}

}  // namespace

std::vector<Var> projections(Tape& tape, const Var& x, std::initializer_list<Affine> layers) {
    ops::Context& ctx = tape.context();
    const SharedEdge edge = edge_of(tape, layers.begin()->weight);
    const Entered entered = enter_layers(tape, x, layers, edge);
    const Var& in = entered.x;
    const Tensors y = edge->reading([&](ops::Products* later) {
        Tensors all;
        for (const Affine& layer : layers)
            all.push_back(ops::linear(ctx, entered.operands[all.size()],
                                      weight_of(ctx, layer.weight, GemmRole::forward), value_of(layer.bias), later));
        return all;
    });
    std::vector<Var> outputs;
    for (const Affine& layer : layers) {
        const size_t i = outputs.size();
        Var z = record_linear(tape, in, entered.operands[i], layer, y[i], i == 0 ? edge : SharedEdge());
        outputs.push_back(finished(tape, in, std::move(z), layer));
    }
    return outputs;
}

Var fused_projections(Tape& tape, const Var& x, const std::vector<Affine>& layers) {
    ops::Context& ctx = tape.context();
    Parameter& first = layers.front().weight;
    const SharedEdge edge = edge_of(tape, first);
    const Var in = enter_tp_region(tape, x, first, edge);
    std::vector<ops::FusedLayer> fused;
    std::vector<Parameter*> parameters;
    for (const Affine& layer : layers) {
        check(&rule_of(layer.weight) == &rule_of(first) && !rule_of(first).adds(),
              "fused projections: ", layer.weight.name, " and ", first.name,
              " need one product rule, which adds no term");
        fused.push_back({weight_of(ctx, layer.weight, GemmRole::forward), layer.bias ? layer.bias->value : Tensor()});
        for (Parameter* p : parameters_of(layer)) parameters.push_back(p);
    }
    const ops::Operand operand = input_of(ctx, first, in.value);
    const Tensor y = edge->reading([&](ops::Products* later) { return ops::fused_linear(ctx, operand, fused, later); });
    return tape.record(
        "fused_linear", {in}, y,
        [&ctx, layers, edge, wanted = in.id >= 0](const Tensor& dy, Tensors& sums) {
            return Tensors{edge->input_gradient([&](ops::Products* later) {
                if (!wanted) return Tensor();
                std::vector<ops::Operand> weights;
                for (const Affine& layer : layers)
                    weights.push_back(weight_of(ctx, layer.weight, GemmRole::input_gradient));
                const auto d = gradient_of(ctx, layers.front().weight, dy, GemmRole::input_gradient);
                return ops::fused_linear_backward_input(ctx, d, weights, std::move(sums[0]), later);
            })};
        },
        [&ctx, layers, saved = saved_input(tape, first, in, operand)](const Tensor& dy) {
            std::vector<ops::FusedGradient> gradients;
            Tensors biases;
            for (const Affine& layer : layers) {
                const bool adds = adds_to_gradient(layer.weight);
                gradients.push_back({gradient_or_scratch(ctx, layer.weight), adds});
                if (layer.bias) biases.push_back(gradient_to_add_to(ctx, *layer.bias));
            }
            const auto d = gradient_of(ctx, layers.front().weight, dy, GemmRole::weight_gradient);
            ops::fused_linear_backward_weight(ctx, d, saved(), gradients);
            if (!biases.empty()) ops::fused_bias_backward(ctx, dy, biases);
        },
        parameters);
}

Var linear_in_region(Tape& tape, const Var& x, Affine layer) {
    ops::Context& ctx = tape.context();
    check(layer.weight.role != Role::row, layer.weight.name, ": a row layer leaves the region of tensor parallelism");
    const ops::Operand in = input_of(ctx, layer.weight, x.value);
    const Tensor y = ops::linear(ctx, in, weight_of(ctx, layer.weight, GemmRole::forward), value_of(layer.bias));
    return finished(tape, x, record_linear(tape, x, in, layer, y, {}), layer);
}

Var linear(Tape& tape, const Var& x, Affine layer) {
    if (layer.weight.role != Role::row) return std::move(projections(tape, x, {layer}).front());
    ops::Context& ctx = tape.context();
    const SharedEdge edge = edge_of(tape, layer.weight);
    const ops::Operand in = input_of(ctx, layer.weight, x.value);
    const auto product = [&](ops::Products* later) {
        return ops::linear(ctx, in, weight_of(ctx, layer.weight, GemmRole::forward), bias_of(layer), later);
    };
    const CodesOfGradient codes = codes_of_gradient(layer);
    Var y = record_linear(tape, x, in, layer, edge->summing(product), edge, codes);
    return leave_layer(tape, finished(tape, x, std::move(y), layer), layer, edge, codes);
}

namespace {

// The second layer of an MLP: y = active w^T + b, where `active`, the activation function of z, is already computed and
// has no node: `backward` makes the gradients of z from those of y and the weight.
using ActivationBackward = std::function<Tensors(const ops::Operand& dy, const ops::Operand& w, ops::Products* later)>;
Var activated_linear(Tape& tape, const char* name, const std::vector<Var>& z, const Var& active, const Tensor& value,
                     Affine layer, ActivationBackward backward) {
    ops::Context& ctx = tape.context();
    const SharedEdge exit = edge_of(tape, layer.weight);
    const CodesOfGradient codes = codes_of_gradient(layer);
    const ops::Operand in = input_of(ctx, layer.weight, value);
    Var sum = tape.record(
        name, z, exit->summing([&](ops::Products* later) {
            return ops::linear(ctx, in, weight_of(ctx, layer.weight, GemmRole::forward), bias_of(layer), later);
        }),
        [&ctx, &weight = layer.weight, exit, codes, backward = std::move(backward)](const Tensor& dy, Tensors&) {
            return exit->reading([&](ops::Products* later) {
                return backward(gradient_of(ctx, weight, dy, GemmRole::input_gradient, codes),
                                weight_of(ctx, weight, GemmRole::input_gradient), later);
            });
        },
        weight_gradient_of(ctx, layer, saved_input(tape, layer.weight, active, in), codes), parameters_of(layer));
    return leave_layer(tape, std::move(sum), layer, exit, codes);
}

}  // namespace

Var gelu_mlp(Tape& tape, const Var& input, Affine in, Affine out) {
    if (any_adds({in, out})) return linear(tape, gelu(tape, linear(tape, input, in)), out);
    ops::Context& ctx = tape.context();
    const SharedEdge entry = edge_of(tape, in.weight);
    const Entered entered = enter_layers(tape, input, {in}, entry);
    const Var& x = entered.x;
    const ops::Operand& operand = entered.operands[0];
    const auto [before, y] = entry->reading([&](ops::Products* later) {
        return ops::linear_gelu(ctx, operand, weight_of(ctx, in.weight, GemmRole::forward), value_of(in.bias),
                                tape.recording(), later);
    });
    const Var z = record_linear(tape, x, operand, in, before, entry);
    tape.saves(y);
    const Var active = recomputable(tape, {y, -1}, [&ctx, z = z.value] { return ops::gelu(ctx, z); });
    return activated_linear(tape, "gelu_linear", {z}, active, y, out,
                            [&ctx, z = z.value](const ops::Operand& dy, const ops::Operand& w, ops::Products* later) {
                                return Tensors{ops::linear_gelu_backward(ctx, dy, w, z, later)};
                            });
}

Var swiglu_mlp(Tape& tape, const Var& input, Affine gate, Affine up, Affine down, ops::Gate g) {
    if (any_adds({gate, up, down})) {
        const std::vector<Var> z = projections(tape, input, {gate, up});
        return linear(tape, swiglu(tape, z[0], z[1], g), down);
    }
    ops::Context& ctx = tape.context();
    const bool fused = fuses(ctx, {gate, up});
    std::vector<Var> z;  // gate(x) and up(x), or both side by side
    Tensor y;
    if (fused) {
        z = {fused_projections(tape, input, {gate, up})};
        y = ops::swiglu(ctx, g, z[0].value);
    } else {
        const SharedEdge entry = edge_of(tape, gate.weight);
        const Entered entered = enter_layers(tape, input, {gate, up}, entry);
        const Var& x = entered.x;
        const ops::Operand &of_gate = entered.operands[0], &of_up = entered.operands[1];
        const auto [gated, upper] = entry->reading([&](ops::Products* later) {
            const Tensor first =
                ops::linear(ctx, of_gate, weight_of(ctx, gate.weight, GemmRole::forward), value_of(gate.bias), later);
            return std::pair{first,
                             ops::linear_swiglu(ctx, g, first, of_up, weight_of(ctx, up.weight, GemmRole::forward),
                                                value_of(up.bias), tape.recording(), later)};
        });
        z = {record_linear(tape, x, of_gate, gate, gated, entry), record_linear(tape, x, of_up, up, upper.z, {})};
        y = upper.y;
    }
    tape.saves(y);
    const Var active = recomputable(tape, {y, -1}, [&ctx, fused, g, z] {
        return fused ? ops::swiglu(ctx, g, z[0].value) : ops::swiglu(ctx, g, z[0].value, z[1].value);
    });
    return activated_linear(tape, "swiglu_linear", z, active, y, down,
                            [&ctx, fused, g, z](const ops::Operand& dy, const ops::Operand& w, ops::Products* later) {
                                if (fused)
                                    return Tensors{ops::linear_swiglu_backward(ctx, g, dy, w, z[0].value, later)};
                                auto d = ops::linear_swiglu_backward(ctx, g, dy, w, z[0].value, z[1].value, later);
                                return Tensors{std::move(d.gate), std::move(d.up)};
                            });
}

}  // namespace tutti::nn
