// autograd/parameter.h: a trainable tensor, with its global name, its global shape and the part that this rank holds.
// Initial values, shards, gradient sums, checkpoints and resharding follow from these three.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/mesh/mesh.h"
#include "tutti/ops/weight_forms.h"

namespace tutti::comm {
class Communicator;
}
namespace tutti::nn {
class ProductRule;
}

namespace tutti::autograd {

// The role of a parameter in tensor parallelism. Models name roles; parallel::apply() derives the part of each rank and
// the ranks over which the gradient is summed.
enum class Role : uint8_t {
    replicated,  // biases of row
    column,      // (out, in) of a linear whose outputs are split; its bias
    key_value,   // column of the key and value heads, of which there may be fewer than ranks
    head_group,  // column of groups that several heads share, of `grain` rows; fewer groups than ranks: all on each
    row,         // (out, in) of a linear whose inputs are split
    vocabulary,  // rows are words: embedding and head
    position,    // learned positions
    norm,        // of all channels of a token
    every_head,  // used by each of the heads, which are split: the norm of queries or keys

    router,         // (E, in) of a mixture of experts: each rank routes some of the tokens
    expert_bias,    // (E) of a router
    expert_column,  // (E, out, in): a column for each of E experts
    expert_row,     // (E, out, in)
    expert,         // (E, out): bias of expert_row; that of expert_column, (E, out), has the role of its matrix
};

// The ranks over which the layer of a parameter is distributed.
struct TensorParallel {
    comm::Communicator* ranks = nullptr;  // null: this rank computes the whole layer
    bool sequence = false;                // between the products each rank has a part of the rows (nn/collectives.h)
    int64_t pieces = 1;                   // of a product; one is summed while the next is computed (nn/overlapped.h)
};

// The ranks over which the experts of a layer are distributed.
struct ExpertParallel {
    comm::Communicator* ranks = nullptr;  // along etp and ep; null: this rank has all experts
    int etp = 1;                          // consecutive ranks that share the same experts
};

struct Init {
    double std = 0;    // normal(0, std); 0: constant
    double value = 0;  // the constant
    // In place of both, of parameters of few values: that of element `index` of the whole parameter, of a number
    // uniform in [0, 1) of its own.
    std::function<double(int64_t index, double uniform)> each = {};
};

// What a training step does with a parameter.
enum class Training : uint8_t {
    updated,  // the optimizer updates it with its gradient
    // The bias of experts, always f32: its `gradient` is the number of choices of each expert in the microbatches of a
    // step, summed over the ranks as a gradient; the optimizer has a separate rule for it.
    counted,
    frozen,  // keeps its value: no gradient, no master, no state of the optimizer
};

// Where files of weights (the safetensors of transformers) hold a parameter.
struct StoredAs {
    std::string name;  // of the tensor; "": the parameter's. With a '*': a tensor for each index of dim 0, an expert
    bool transposed = false;  // the file holds (in, out)
    // The parameter is blocks of `row_block` rows of a tensor of `rows` rows, which begin at first_row, first_row +
    // row_step, ...; rows 0: it is the whole tensor. Of experts in one tensor, (E, out, in) or (E, out), each has
    // `rows` of them, and is transposed by itself.
    int64_t first_row = 0, rows = 0, row_step = 1, row_block = 1;
};

// How a gather brings the weight of a layer as codes of 8 bits, one form for all its products (precision.gather).
struct GatheredCodes {
    DType format = DType::e4m3;
    kernels::GroupShape group = {};
    bool powers_of_two = true;
    comm::Communicator* ranks = nullptr;  // that hold parts of a tensor of one scale; null: this part is the tensor
    // Of delayed scaling, at the time of a gather: where the largest magnitude is recorded, and the factor; undefined:
    // it is not recorded, the factor follows from the magnitudes.
    struct Given {
        Tensor amax, factor;
    };
    std::function<Given()> given = {};
};

struct Parameter {
    std::string name;  // global: "h.11.attn.c_proj.weight", with the global layer index
    Shape shape;       // global
    Role role = Role::replicated;
    Init init;
    int sections = 1;   // of dim 0: 3 for a fused q | k | v
    int64_t grain = 1;  // indices of the split dim that stay together: head_dim for a dim of heads
    Training training = Training::updated;
    StoredAs stored_as = {};

    // Set by parallel::apply(); nullopt: this rank holds the whole parameter.
    std::optional<mesh::Part> local = {};
    mesh::Axes partial = {};  // axes along which ranks have partial sums of the gradient, which must be added
    mesh::Axes copies = {};   // axes along which ranks hold the same elements, `partial` among them
    // Positions along pp of the ranks that hold the parameter, ascending; empty: this rank alone.
    std::vector<int> pipeline_ranks = {};
    TensorParallel tensor_parallel = {};
    ExpertParallel expert_parallel = {};
    // How products multiply by this weight (nn/product_rule.h); null: by its value.
    std::shared_ptr<const nn::ProductRule> rule = {};

    std::optional<GatheredCodes> gathered = {};  // nothing: gathers bring values

    Tensor value;                 // what forward reads, in the compute type; where codes are gathered: codes.values
    Tensor master;                // f32; shares memory with value when the compute type is f32. Of a frozen one: none
    Tensor gradient;              // f32, accumulated over the microbatches of a step. Of a frozen one: none
    bool gradient_unset = false;  // no contribution yet: the first one overwrites the gradient's memory
    ops::Operand codes = {};      // what a gather brought, while it is in memory; else without scales
    ops::WeightForms forms = {};  // of value, for products

    bool of_experts() const { return role == Role::expert_column || role == Role::expert_row || role == Role::expert; }
    // A matrix, or one for each expert or channel; false for biases and weights of norms.
    bool is_matrix() const { return shape.rank() >= (of_experts() ? 3 : 2); }
    // A matrix of a product with tokens, or one for each expert; false also for the taps (C, 1, K) of a convolution,
    // which are a filter of each channel.
    bool multiplies() const { return shape.rank() == (of_experts() ? 3 : 2); }
    mesh::Part part() const { return local.value_or(mesh::whole_part(shape)); }
    bool frozen() const { return training == Training::frozen; }
    DType type(DType compute) const { return role == Role::expert_bias ? DType::f32 : compute; }  // of value
    bool decays() const { return is_matrix(); }  // weight decay leaves biases and norm weights alone
};

// Allocates value, master and gradient of the local shape and draws the initial values: element e of the *global*
// tensor is normal(random_key(seed, name), e), so that any layout starts from the same weights. `train` false: value
// only.
void materialize(ops::Context& ctx, Parameter& parameter, DType compute, uint64_t seed, bool train);

// Allocates the memory only; value and master are not set.
void allocate(ops::Context& ctx, Parameter& parameter, DType compute, bool train);

// Writes the initial values of these blocks into `values`, f32 (n). Elements outside all blocks become zero.
void draw(ops::Context& ctx, const Parameter& parameter, uint64_t seed, const std::vector<mesh::HeldBlock>& blocks,
          const Tensor& values);

}  // namespace tutti::autograd
