// optim/optimizer.h: AdamW and SGD with momentum over pieces of parameters: whole ones, or what sharding left to
// this rank. Reads the gradient, updates the master and rewrites the rounded value in one pass.
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/spec/run_spec.h"

namespace tutti::optim {

using autograd::Parameter;

// A stretch of what this rank holds of a parameter (Parameter::part(), flattened) that this rank updates. Its tensors
// are one-dimensional, of equal size.
struct Piece {
    Parameter* parameter = nullptr;
    int64_t begin = 0;                  // its first element there
    Tensor master;                      // f32
    Tensor value;                       // in the compute type; the master itself when that is f32
    const Tensor* gradients = nullptr;  // f32; where the gradient is while a step has one
    int64_t gradient_begin = 0;         // its first element there
    bool owned = true;                  // of the ranks with equal pieces one owns them: it saves and counts them

    std::vector<mesh::HeldBlock> blocks() const;  // of the parameter, and where they lie in the tensors
    Tensor gradient() const;                      // Error when there is none
};
// Parameters with memory of their own (autograd::materialize), each as one piece.
std::vector<Piece> whole_pieces(const std::vector<Parameter*>& parameters);

// A tensor of the optimizer's state, of the size of its piece: what a checkpoint saves beside the masters.
struct StatePiece {
    std::string name;  // "optimizer.m.<parameter>"
    const Piece* piece = nullptr;
    Tensor values;
};

class Optimizer {
  public:
    // Allocates the moments (f32, zero), in the memory of `offload_device` when there is one (offload).
    Optimizer(ops::Context& ctx, std::vector<Piece> pieces, const spec::OptimizerSpec& spec,
              Device* offload_device = nullptr);

    // One update with rate `lr`; gradients are multiplied by grad_scale (the clip factor) on the way. The bias of an
    // expert that got more choices in the step than `mean_load` falls by spec.expert_bias_rate, of others it rises
    // (Wang et al. 2024).
    void step(double lr, double grad_scale, double mean_load = 0);

    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }
    const std::vector<Piece>& pieces() const { return pieces_; }
    std::vector<StatePiece> state() const;

  private:
    ops::Context& ctx_;
    spec::OptimizerSpec spec_;
    std::vector<Piece> pieces_;
    std::vector<Tensor> first_,
        second_;  // by piece: m and v; for SGD the momentum and nothing; of a bias of experts none
    int64_t updates_ = 0;
};

// Factor that brings `norm` down to `clip` (0: off): min(1, clip / (norm + 1e-6)), PyTorch's clip_grad_norm_.
double clip_factor(double norm, double clip);

}  // namespace tutti::optim
