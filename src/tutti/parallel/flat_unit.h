// parallel/flat_unit.h: the parameters that one unit owns, in flat buffers: weights, masters, gradients, and this
// rank's shard of each. data_parallel.cpp decides when they are gathered, reduced and released. Below:
// flat_layout.h.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/comm/communicator.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/flat_layout.h"

namespace tutti::parallel {

// What of the state is cut into shards: nothing, optimizer (ZeRO-1), and gradients (2), and weights (3).
enum class Zero : uint8_t { none, optimizer, gradients, weights };

struct FlatOptions {
    Zero zero = Zero::optimizer;
    int shards = 1, shard = 0;  // this rank holds shard `shard`; 1 and 0 for Zero::none
    bool updates = true;        // false: another rank does, and this one has no masters (parameter server)
    bool owned = true;          // false: another rank has the same shard, and counts and saves it
    DType compute = DType::bf16;
    uint64_t seed = 0;
    Device* masters_device = nullptr;  // where the masters live, when not on the rank's device
    Device* weights_device = nullptr;  // the same of the weight shard, for Zero::weights
};

class FlatUnit {
  public:
    // Allocates what stays for the whole run, weights and masters, and draws this rank's part of the initial values
    // (autograd::draw). With more than one shard the
    // weights are not complete before the first gather.
    FlatUnit(ops::Context& ctx, std::vector<autograd::Parameter*> parameters, const FlatOptions& options);

    const std::vector<autograd::Parameter*>& parameters() const { return parameters_; }
    const FlatLayout& layout() const { return layout_; }
    bool owned() const { return options_.owned; }
    // The parts of parameters in this rank's shard; none when another rank updates.
    std::vector<optim::Piece> pieces() const;

    // Weights of all shards. allocate_weights() allocates where they do not stay (ZeRO-3), after which the parameters
    // point into weights(); free_weights() takes them away.
    void allocate_weights();
    void free_weights();
    const Tensor& weights() const { return weights_; }  // (padded), compute type
    const Tensor& weight_shard() const { return weight_shard_; }

    // The weights of this rank's shard become its masters, rounded.
    void round_masters();

    // f32 gradients of all shards. Taken, they are unset (Parameter::gradient_unset) but for the padding, and
    // completed, those to which nothing was added are zero. With ZeRO < 2 the shard is a part of them; else it is taken
    // by itself, not set.
    void allocate_gradients();
    void zero_gradients();
    void complete_gradients();
    void free_gradients();
    void allocate_gradient_shard();
    void free_gradient_shard();
    bool has_gradients() const { return gradients_.defined(); }
    const Tensor& gradients() const { return gradients_; }
    const Tensor& gradient_shard() const { return gradient_shard_; }

  private:
    Tensor fresh(int64_t size, DType dtype, Purpose purpose, Device* offload_device = nullptr) const;

    ops::Context& ctx_;
    std::vector<autograd::Parameter*> parameters_;
    FlatOptions options_;
    FlatLayout layout_;
    Tensor weights_, weight_shard_;  // with ZeRO < 3 the shard is a part of the whole
    Tensor masters_;                 // f32, of the shard; in f32 the weight shard itself
    Tensor gradients_, gradient_shard_;
};

}  // namespace tutti::parallel
