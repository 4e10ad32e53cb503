// parallel/flat_unit.h: the parameters that one unit owns, in flat buffers: weights, masters, gradients, and this
// rank's shard of each; and the layout of such a buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/base/ceil_div.h"
#include "tutti/comm/communicator.h"
#include "tutti/kernels/kernel_table.h"
#include "tutti/optim/rule.h"
#include "tutti/parallel/coded_weights.h"

namespace tutti::parallel {

// Shards begin at multiples of this many values, so that the sums of blocks (sums_of_squares) are the same for any
// number of shards. A thousand ranks pad each buffer to a multiple of 1000 grains: 256 Ki values in 1 MiB of f32.
inline constexpr int64_t kShardGrain = kernels::kSumBlock;

// Parameters begin at multiples of this many values: 16 bytes of 16-bit values, the alignment for vector instructions
// and a GPU's copy engine. A parameter of an odd size would otherwise slow down all parameters after it.
inline constexpr int64_t kParameterGrain = 8;

// The places of a unit's parameters in a flat buffer, which is cut into equal shards.
struct FlatLayout {
    struct Gap {
        int64_t begin, size;
    };
    std::vector<int64_t> offsets;  // of each parameter
    std::vector<Gap> gaps;         // padding, after parameters and at the end
    int64_t padded = 0;            // size of the buffer: shards * shard_size; one shard ends with the last parameter
    int64_t shard_size = 0;
};

// Values of a shard of `end` values, padded where they are shared out.
inline int64_t shard_size(int64_t end, int64_t shards, int64_t grain = 1) {
    const int64_t multiple = shards > 1 ? shards * std::lcm(kShardGrain, grain) : 1;
    return round_up(end, multiple) / shards;
}

// `grain`: parameters and shards begin at multiples of so many values, and of kParameterGrain and kShardGrain.
inline FlatLayout flat_layout(const std::vector<int64_t>& sizes, int64_t shards, int64_t grain = 1) {
    FlatLayout layout;
    int64_t end = 0;
    const auto pad_to = [&](int64_t multiple) {
        const int64_t begin = end;
        end = round_up(end, multiple);
        if (end > begin) layout.gaps.push_back({begin, end - begin});
    };
    for (const int64_t size : sizes) {
        pad_to(std::lcm(kParameterGrain, grain));
        layout.offsets.push_back(end);
        end += size;
    }
    layout.shard_size = shard_size(end, shards, grain);
    pad_to(shards * layout.shard_size);
    layout.padded = end;
    return layout;
}

// The part of the state that is sharded: nothing, the optimizer (ZeRO-1), also gradients (2), also weights (3).
enum class Zero : uint8_t { none, optimizer, gradients, weights };

struct FlatOptions {
    Zero zero = Zero::optimizer;
    int shards = 1, shard = 0;  // this rank holds shard `shard`; 1 and 0 for Zero::none
    int64_t grain = 1;          // flat_layout()
    bool frozen = false;        // no rank updates: the weights are all the state
    bool owned = true;          // false: another rank counts and saves the same shard
    DType compute = DType::bf16;
    DType gradients = DType::f32;  // in which they are stored and reduced
    uint64_t seed = 0;
    bool masters = true;               // false: the weights themselves are updated
    Device* masters_device = nullptr;  // offload device of the masters; null: not offloaded
    Device* weights_device = nullptr;  // offload device of the weight shard, for Zero::weights
};

class FlatUnit {
  public:
    // Allocates the memory for the whole run, weights and masters, and draws this rank's part of the initial values
    // (autograd::draw). With more than one shard the weights are incomplete before the first gather. ZeRO-3 keeps no
    // rounded weights beside masters in the device's memory: they are rounded for each gather.
    FlatUnit(ops::Context& ctx, std::vector<autograd::Parameter*> parameters, const FlatOptions& options);

    const std::vector<autograd::Parameter*>& parameters() const { return parameters_; }
    const FlatLayout& layout() const { return layout_; }
    bool owned() const { return options_.owned; }
    // The elements of parameter i, in its part, that lie in shard `shard`; begin = end: none.
    struct Range {
        int64_t begin = 0, end = 0;
    };
    Range range_of(size_t i, int shard) const;
    // The parts of parameters in this rank's shard. Without masters (frozen parameters) the weights
    // take their place.
    std::vector<optim::ParameterShard> parameter_shards() const;

    // Weights of all shards. With ZeRO-3 allocate_weights() allocates weights() and points the parameters into it, and
    // free_weights() frees the memory; otherwise the weights stay allocated.
    void allocate_weights();
    void free_weights();
    const Tensor& weights() const { return weights_; }  // (padded), compute type or codes
    // What this rank gives to a gather: its shard in the compute type, a part of weights() or separate, or the codes of
    // these values. Call after allocate_weights().
    Tensor weight_shard() const;
    // Of weights that are gathered as codes; null: they are not. Before the first allocate_weights() and after each
    // update the magnitudes of all shards are to be found.
    CodedWeights* coded() { return coded_.get(); }
    void add_magnitudes() const { coded_->add_magnitudes(rounded_shard()); }

    // Rounds this rank's masters into its weight shard.
    void round_masters();

    // Gradients of all shards. After allocate_gradients() the parameters have f32 memory, unset
    // (Parameter::gradient_unset) except the padding. complete_gradients() sets gradients without a contribution to
    // zero. Gradients stored in 16 bits are in f32 only while a unit computes its contribution, which round_gradients()
    // adds to the stored ones, rounded once; complete_gradients() does so, too.
    // With ZeRO < 2 the shard is a part of the gradients; otherwise it is allocated separately, uninitialised.
    void allocate_gradients();
    void zero_gradients();
    void round_gradients();
    void complete_gradients();
    void free_gradients();
    void allocate_gradient_shard();
    void add_to_gradient_shard(const Tensor& x);  // f32, overwritten
    void free_gradient_shard();
    bool takes_gradients() const { return contribution_.defined(); }  // the parameters have memory for them
    const Tensor& gradients() const { return gradients_; }
    const Tensor& gradient_shard() const { return gradient_shard_; }

  private:
    Tensor fresh(int64_t size, DType dtype, Purpose purpose, Device* offload_device = nullptr) const;
    Tensor rounded_shard() const;       // the values of the shard in the compute type
    Purpose gradients_purpose() const;  // of the gradients of all shards
    void keep_gradients(const Tensor& gradients);

    ops::Context& ctx_;
    std::vector<autograd::Parameter*> parameters_;
    FlatOptions options_;
    FlatLayout layout_;
    Tensor weights_, weight_shard_;  // with ZeRO < 3 the shard is a part of the whole; undefined: rounded for a gather
    Tensor masters_;                 // f32, of the shard; the weight shard itself in f32, and without masters
    std::unique_ptr<CodedWeights> coded_;
    Tensor gradients_, gradient_shard_;
    Tensor contribution_;  // f32, to which backwards add: the gradients themselves when they are stored in f32
};

}  // namespace tutti::parallel
