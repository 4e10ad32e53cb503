// optim/optimizer.h: AdamW and SGD with momentum, clipping, and learning-rate schedules. An update reads the gradient,
// updates the master and rewrites the rounded value in one pass, over shards of parameters: whole parameters, or this
// rank's shards.
#pragma once

#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/spec/run_spec.h"

namespace tutti::optim {

using autograd::Parameter;

// A range of this rank's part of a parameter (Parameter::part(), flattened) that this rank updates. Its tensors are
// one-dimensional, of equal size.
struct ParameterShard {
    Parameter* parameter = nullptr;
    int64_t begin = 0;                  // first element of the range in Parameter::part()
    Tensor master;                      // f32
    Tensor value;                       // in the compute type; the master itself when that is f32
    const Tensor* gradients = nullptr;  // f32; contains the gradient while a step has one
    int64_t gradient_begin = 0;         // first element of the range in `gradients`
    bool owned = true;                  // true on one of the ranks with equal shards, which saves and counts the shard

    std::vector<mesh::HeldBlock> blocks() const;  // of the parameter, with their places in the tensors
    Tensor gradient() const;                      // Error when there is none
};
// Parameters with their own memory (autograd::materialize), one shard each.
std::vector<ParameterShard> whole_shards(const std::vector<Parameter*>& parameters);

// A tensor of the optimizer's state, of the size of its shard, saved in checkpoints beside the masters.
struct StateTensor {
    std::string name;  // "optimizer.m.<parameter>"
    const ParameterShard* shard = nullptr;
    Tensor values;
};

class Optimizer {
  public:
    // Allocates the moments (f32, zero), in the memory of `offload_device` unless null.
    Optimizer(ops::Context& ctx, std::vector<ParameterShard> shards, const spec::OptimizerSpec& spec,
              Device* offload_device = nullptr);

    // One update with rate `lr`; gradients are multiplied by grad_scale (the clip factor). The bias of an expert with
    // more choices in the step than `mean_load` decreases by spec.expert_bias_rate, the bias of the others increases
    // (Wang et al. 2024).
    void step(double lr, double grad_scale, double mean_load = 0);

    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }
    const std::vector<ParameterShard>& parameter_shards() const { return shards_; }
    std::vector<StateTensor> state() const;

  private:
    ops::Context& ctx_;
    spec::OptimizerSpec spec_;
    std::vector<ParameterShard> shards_;
    std::vector<Tensor> first_,
        second_;  // by shard: m and v; for SGD the momentum and nothing; for a bias of experts neither
    int64_t updates_ = 0;
};

// Factor that brings `norm` down to `clip` (0: off): min(1, clip / (norm + 1e-6)), PyTorch's clip_grad_norm_.
double clip_factor(double norm, double clip);

// The learning rate of update `step` (1 .. total_steps), a pure function of the step. Warm-up is linear: step /
// warmup_steps of lr. Then
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi f)) / 2,   f = (step - warmup) / (total - warmup)
//   linear    lr + (min_lr - lr) f
//   constant  lr
//   wsd       lr, then linearly to min_lr over the last decay_steps (0: a tenth of the steps); Hu et al. 2024
double learning_rate(const spec::OptimizerSpec& optimizer, int64_t total_steps, int64_t step);

}  // namespace tutti::optim
