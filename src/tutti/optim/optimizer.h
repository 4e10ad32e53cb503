// optim/optimizer.h: the state and the steps of the update rules over shards of parameters (whole parameters, or this
// rank's shards), and clipping.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/optim/rules.h"

namespace tutti::optim {

// Values of a rank that a checkpoint holds: a part of a global tensor.
struct StateTensor {
    std::string name;                     // a parameter's, or "optimizer.m.<parameter>"
    Shape shape;                          // of the global tensor
    std::vector<mesh::HeldBlock> blocks;  // with their places in `values`; other values are padding
    Tensor values;                        // (n)
    bool owned = true;                    // as ParameterShard::owned
};

class Optimizer {
  public:
    // Allocates the state that the rules describe, all zero, in the memory of `offload_device` unless null.
    // `whole_matrices`: for a rule that needs them. `seed`, `compute`: as StepNumbers has them. UsageError when a shard
    // cuts inside a block of a state field.
    Optimizer(ops::Context& ctx, std::vector<ParameterShard> shards, Rules rules = {}, Device* offload_device = nullptr,
              std::unique_ptr<WholeMatrices> whole_matrices = nullptr, uint64_t seed = 0, DType compute = DType::f32);

    // One update with rate `lr`; gradients are multiplied by grad_scale (clip factor / loss scale). `mean_load`: the
    // mean number of choices of an expert in the step.
    void step(double lr, double grad_scale, double mean_load = 0);

    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }
    const std::vector<ParameterShard>& parameter_shards() const { return shards_; }
    // Masters and the rules' state: what this rank and its copies hold of a checkpoint.
    std::vector<StateTensor> state() const;

  private:
    ops::Context& ctx_;
    std::vector<ParameterShard> shards_;
    Rules rules_;
    std::vector<Rules::Group> groups_;  // by shard
    std::vector<std::vector<mesh::HeldBlock>> blocks_;
    std::vector<std::vector<Tensor>> state_;  // by shard and field of its rule
    std::unique_ptr<WholeMatrices> whole_matrices_;
    uint64_t seed_;
    DType compute_;
    int64_t updates_ = 0;
};

// Factor that brings `norm` down to `clip` (0: off): min(1, clip / (norm + 1e-6)), PyTorch's clip_grad_norm_.
double clip_factor(double norm, double clip);

}  // namespace tutti::optim
