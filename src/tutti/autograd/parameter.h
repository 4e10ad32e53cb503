// autograd/parameter.h: a trainable tensor, known by its global name, global shape and placement. Initial values,
// shards, checkpoints and resharding all follow from these three.
#pragma once

#include <functional>
#include <string>

#include "tutti/mesh/mesh.h"
#include "tutti/ops/context.h"

namespace tutti::autograd {

// How a parameter takes part in tensor parallelism. Models name roles; parallel::apply() turns them into placements.
enum class Role : uint8_t {
    replicated,  // norm weights
    column,      // (out, in) of a linear whose outputs are split
    row,         // (out, in) of a linear whose inputs are split
    vocabulary,  // rows are words: embedding and head
    position,    // learned positions
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
    int sections = 1;  // of dim 0: 3 for a fused q | k | v
    mesh::Placement placement;

    Tensor value;                 // what forward reads, in the compute type
    Tensor master;                // f32; shares memory with value when the compute type is f32
    Tensor gradient;              // f32, accumulated over the microbatches of a step
    bool gradient_unset = false;  // it has no term yet: the first one overwrites whatever its memory holds

    bool decays() const { return shape.rank() >= 2; }  // weight decay leaves biases and norm weights alone
};

// Where a rank stands: which blocks of a parameter it holds.
struct Position {
    const mesh::Mesh* mesh = nullptr;  // nullptr: one rank
    int rank = 0;
};

// Allocates value, master and gradient of the local shape and draws the initial values: element e of the *global*
// tensor is normal(random_key(seed, name), e), so that any layout starts from the same weights. `train` false: value
// only.
void materialize(ops::Context& ctx, Parameter& parameter, DType compute, uint64_t seed, bool train,
                 const Position& position = {});

// Only the memory; value and master are not set.
void allocate(ops::Context& ctx, Parameter& parameter, DType compute, bool train, const Position& position = {});

// The initial values alone, into `values`: f32, of the local shape.
void draw(ops::Context& ctx, const Parameter& parameter, uint64_t seed, const Tensor& values,
          const Position& position = {});
// Those of elements [begin, begin + values.numel()) of the flattened parameter.
void draw_range(ops::Context& ctx, const Parameter& parameter, uint64_t seed, int64_t begin, const Tensor& values);

}  // namespace tutti::autograd
