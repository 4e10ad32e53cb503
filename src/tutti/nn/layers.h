// nn/layers.h: the parts of a model. A model is a list of modules, each one unit: the embedding, the blocks, the head.
// Recomputation, FSDP and pipeline stages work on this list and do not depend on the architecture. A layer is a plain
// struct of parameters with a forward; own() adds its parameters to the unit of its module.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/nn/functions.h"

namespace tutti::nn {

using autograd::Role;

class Module {
  public:
    virtual ~Module() = default;
    // x (B, T, C) in the compute type; the first module ignores it, the last returns losses or logits.
    virtual Var forward(Tape& tape, const Var& x, const Batch& batch) = 0;
    autograd::Unit unit;  // name and parameters, in the order of use; a tied matrix is in both units that use it
};

struct WeightAndBias {
    Parameter weight;
    std::optional<Parameter> bias;
    operator Affine() { return {weight, bias ? &*bias : nullptr}; }
};

// weight (out, in), bias (out)
struct Linear : WeightAndBias {
    Var operator()(Tape& tape, const Var& x) { return linear(tape, x, *this); }
};

struct Embedding {
    Parameter weight;  // (V, C)
    Var operator()(Tape& tape, const Tensor& tokens) { return embedding(tape, tokens, weight); }
};

// weight and bias (C): layer norm; without a bias RMS norm
struct Norm : WeightAndBias {
    double eps = 1e-5;
    float offset = 0;  // of the weight: 1 where it is stored less 1, and begins at 0
    Var operator()(Tape& tape, const Var& x) { return norm(tape, x, *this, eps, offset); }
    SumAndNorm of_sum(Tape& tape, const Var& x, const Var& residual) {
        return add_norm(tape, x, residual, *this, eps, offset);
    }
};

// The last matrix and the loss. The weight is its own, or the embedding's when tied. Must not be moved after
// own_head().
struct Head {
    Parameter own;  // unused when tied
    Parameter* weight = nullptr;
    int64_t vocab = 0;
    double cap = 0;  // of the logits
    Var operator()(Tape& tape, const Var& x, const Batch& batch, bool more = false) {
        return head_loss(tape, x, *weight, vocab, batch, cap, more);
    }
};

struct LinearOptions {
    Role role = Role::replicated;
    double std = 0.02;
    bool bias = false;
    int sections = 1;  // Parameter::sections, grain
    int64_t grain = 1;
};

// `name` without ".weight": "h.3.attn.c_attn".
Linear make_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options);
Embedding make_embedding(const std::string& name, int64_t words, int64_t width, double std, Role role);
Norm make_layer_norm(const std::string& name, int64_t width, double eps);
Norm make_rms_norm(const std::string& name, int64_t width, double eps, Role role = Role::norm, float offset = 0);

// Adds the parameters of layers to a unit, in the order given.
void own(autograd::Unit& unit, WeightAndBias& layer);
void own(autograd::Unit& unit, Embedding& layer);
// Adds all weights first, then the biases, so that the weights form one matrix (ops/fused_linear.h).
void own_adjacent(autograd::Unit& unit, std::initializer_list<WeightAndBias*> layers);
// `tied` null: makes "lm_head.weight" (vocab, width) with normal(0, std).
void own_head(autograd::Unit& unit, Head& head, int64_t vocab, int64_t width, double std, Parameter* tied);
template <class... Layers>
void own_all(autograd::Unit& unit, Layers&... layers) {
    (own(unit, layers), ...);
}

// amplitude times the cosines and sines of position x frequency for positions [0, max_positions), f32; `frequencies`
// (n/2), n <= D. Without positions an empty table.
ops::RopeTable make_rope_table(ops::Context& ctx, int64_t max_positions, const std::vector<double>& frequencies,
                               double amplitude = 1);

}  // namespace tutti::nn
