// nn/mixture.h: a mixture of experts as one differentiable function. A router in f32 chooses top_k experts for each
// row; the rows are sent to the ranks that have these experts (nn/dispatch.h), pass an MLP there, return, and are
// summed with the router's weights (Shazeer et al. 2017; Lepikhin et al. 2020). Every layout gives the results of one
// rank.
//
// Experts are divided over the ranks of tensor, context and data parallelism together, so each rank must route rows of
// its own. The ranks of a tensor-parallel group have the same rows unless sequence parallelism divides them; each then
// routes an equal part.
#pragma once

#include <functional>

#include "tutti/nn/functions.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

struct MixtureLayer {
    const spec::MixtureSpec& spec;
    int64_t layer = 0;       // in the model
    Affine router;           // (E, C) and (E)
    Parameter* expert_bias;  // (E), of the choice alone; null: none
    ops::Gate unit = ops::Gate::silu;
    Affine gate, up;  // (E, F, C) and (E, F); one and the same: the unit has no gate but up, relu(x) x
    Affine down;      // (E, C, F) and (E, C)
    // (L, C) and (C, L): the experts work on L channels, C in the shapes above. Null: on the input itself.
    Parameter *into_latent = nullptr, *from_latent = nullptr;
    // The shared experts, applied to all tokens x (B, T, C), computed while rows return; empty: none.
    std::function<Var(const Var& x)> shared = {};
};

// x and the result (B, T, C).
Var mixture(Tape& tape, const Var& x, const MixtureLayer& layer, const Batch& batch);

// y (B, T, C) times sigmoid(x w^T), one number for each row; w (1, C).
Var sigmoid_gate(Tape& tape, const Var& y, const Var& x, Parameter& w);

}  // namespace tutti::nn
