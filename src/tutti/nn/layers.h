// nn/layers.h: parameters with a forward. A layer is a plain struct; making one adds its parameters to the module's
// unit.
#pragma once

#include <optional>

#include "tutti/nn/module.h"

namespace tutti::nn {

using autograd::Init;
using autograd::Role;

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
    Var operator()(Tape& tape, const Var& x) { return norm(tape, x, *this, eps); }
    SumAndNorm of_sum(Tape& tape, const Var& x, const Var& residual) { return add_norm(tape, x, residual, *this, eps); }
};

// The last matrix and the loss. Its weight is one of its own, or, tied, that of the embedding. Must not be moved after
// own_head.
struct Head {
    Parameter own;  // unused when tied
    Parameter* weight = nullptr;
    int64_t vocab = 0;
    Var operator()(Tape& tape, const Var& x, const Batch& batch) { return head_loss(tape, x, *weight, vocab, batch); }
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
Norm make_rms_norm(const std::string& name, int64_t width, double eps, Role role = Role::norm);

// Adds the parameters of layers to a unit, in the order given.
void own(autograd::Unit& unit, WeightAndBias& layer);
void own(autograd::Unit& unit, Embedding& layer);
// `tied` null: makes "lm_head.weight" (vocab, width) with normal(0, std).
void own_head(autograd::Unit& unit, Head& head, int64_t vocab, int64_t width, double std, Parameter* tied);
template <class... Layers>
void own_all(autograd::Unit& unit, Layers&... layers) {
    (own(unit, layers), ...);
}

// amplitude times the cosines and sines of position x frequency for positions [0, max_positions), f32; `frequencies`
// (D/2).
ops::RopeTable make_rope_table(ops::Context& ctx, int64_t max_positions, const std::vector<double>& frequencies,
                               double amplitude = 1);

}  // namespace tutti::nn
