// nn/mixture.h: a mixture of experts as one differentiable function: a router in f32 chooses top_k experts for each
// row, the rows travel to the ranks that have them (nn/dispatch.h), pass SwiGLU there, return and are added with the
// router's weights (Shazeer et al. 2017; Lepikhin et al. 2020). Results are those of one rank, whatever the layout.
//
// Experts lie over the ranks of tensor, context and data parallelism together, so each rank routes rows of its own: of
// a tensor-parallel group, whose ranks all have the same rows unless sequence parallelism parts them, a rank takes an
// equal share.
#pragma once

#include <functional>

#include "tutti/nn/functions.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

struct MixtureLayer {
    const spec::MixtureSpec& spec;
    int64_t layer = 0;       // in the model
    Parameter& router;       // (E, C)
    Parameter* expert_bias;  // (E); null: none
    Parameter &gate, &up;    // (E, F, C)
    Parameter& down;         // (E, C, F)
    // The experts that every token goes to, of x (B, T, C); empty: none. Computed while rows return.
    std::function<Var(const Var& x)> shared = {};
};

// x and the result (B, T, C).
Var mixture(Tape& tape, const Var& x, const MixtureLayer& layer, const Batch& batch);

// y (B, T, C) times sigmoid(x w^T), a number for each row; w (1, C).
Var sigmoid_gate(Tape& tape, const Var& y, const Var& x, Parameter& w);

}  // namespace tutti::nn
