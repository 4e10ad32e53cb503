// autograd/parameter.h: a trainable tensor, known by its global name, its global shape and what of it this rank holds.
// Initial values, shards, gradient sums, checkpoints and resharding all follow from these.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/mesh/mesh.h"
#include "tutti/ops/context.h"

namespace tutti::comm {
class Communicator;
}

namespace tutti::autograd {

// How a parameter takes part in tensor parallelism. Models name roles; parallel::apply() says what a rank holds of each
// and over which ranks its gradient is summed.
enum class Role : uint8_t {
    replicated,  // biases of row
    column,      // (out, in) of a linear whose outputs are split; its bias
    key_value,   // column of the key and value heads, of which there may be fewer than ranks
    row,         // (out, in) of a linear whose inputs are split
    vocabulary,  // rows are words: embedding and head
    position,    // learned positions
    norm,        // of all channels of a token
    every_head,  // used by each of the heads, which are split: the norm of queries or keys

    router,         // (E, in) of a mixture of experts: each rank routes some of the tokens
    expert_bias,    // (E) of a router: no gradient trains it, see below
    expert_column,  // (E, out, in): a column for each of E experts
    expert_row,     // (E, out, in)
};

// The ranks that the layer of a parameter is spread over.
struct TensorParallel {
    comm::Communicator* ranks = nullptr;  // null: this rank computes the whole layer
    bool sequence = false;                // between the products each rank has a part of the rows (nn/collectives.h)
    int64_t pieces = 1;                   // of a product, of which one is summed beside the next (nn/overlapped.h)
};

// The ranks that the experts of a layer are spread over.
struct ExpertParallel {
    comm::Communicator* ranks = nullptr;  // along etp and ep; null: this rank has all experts
    int etp = 1;                          // ranks, one after another, that share out the same experts
};

struct Init {
    double std = 0;    // normal(0, std); 0: constant
    double value = 0;  // the constant
};

struct Parameter {
    std::string name;  // global: "h.11.attn.c_proj.weight", with the global layer index
    Shape shape;       // global
    Role role = Role::replicated;
    Init init;
    int sections = 1;   // of dim 0: 3 for a fused q | k | v
    int64_t grain = 1;  // indices of the split dim that stay together: head_dim where it is one of heads

    // As parallel::apply() says; nullopt: this rank holds all of it.
    std::optional<mesh::Part> local = {};
    mesh::Axes partial = {};  // axes along which ranks have partial sums of its gradient: these are added up
    mesh::Axes copies = {};   // axes along which ranks hold the same elements, `partial` among them
    // The same of pipeline stages: places along pp of the ranks that hold it, rising; empty: this one alone.
    std::vector<int> pipeline_ranks = {};
    TensorParallel tensor_parallel = {};
    ExpertParallel expert_parallel = {};

    Tensor value;                 // what forward reads, in the compute type
    Tensor master;                // f32; shares memory with value when the compute type is f32
    Tensor gradient;              // f32, accumulated over the microbatches of a step
    bool gradient_unset = false;  // it has no term yet: the first one overwrites whatever its memory holds

    bool of_experts() const { return role == Role::expert_column || role == Role::expert_row; }
    mesh::Part part() const { return local.value_or(mesh::whole_part(shape)); }
    // Of an expert_bias: it is f32 everywhere. What stands in for its gradient is how many choices each expert got, in
    // the microbatches of a step; it is summed over the ranks as a gradient is, and the optimizer has a rule of its
    // own.
    bool trained() const { return role != Role::expert_bias; }
    DType type(DType compute) const { return trained() ? compute : DType::f32; }  // of value
    bool decays() const { return shape.rank() >= 2; }  // weight decay leaves biases and norm weights alone
};

// Allocates value, master and gradient of the local shape and draws the initial values: element e of the *global*
// tensor is normal(random_key(seed, name), e), so that any layout starts from the same weights. `train` false: value
// only.
void materialize(ops::Context& ctx, Parameter& parameter, DType compute, uint64_t seed, bool train);

// Only the memory; value and master are not set.
void allocate(ops::Context& ctx, Parameter& parameter, DType compute, bool train);

// The initial values of these blocks, into `values` f32 (n). What belongs to no block becomes zero.
void draw(ops::Context& ctx, const Parameter& parameter, uint64_t seed, const std::vector<mesh::HeldBlock>& blocks,
          const Tensor& values);

}  // namespace tutti::autograd
