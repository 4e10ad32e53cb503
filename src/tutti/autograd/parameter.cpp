#include "tutti/autograd/parameter.h"

#include "tutti/base/philox.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

namespace {

const mesh::Mesh& mesh_of(const Position& position, const mesh::Mesh& one_rank) {
    return position.mesh ? *position.mesh : one_rank;
}

// Draws one block as matrices of its last two dims: whatever the rank of the tensor, rows are contiguous in both.
void draw(ops::Context& ctx, const mesh::Block& block, const Shape& global, const Tensor& local, RandomKey key,
          float std) {
    const int rank = global.rank();
    const int64_t columns = block.sizes[-1], rows = rank > 1 ? block.sizes[-2] : 1;
    const int64_t matrices = block.sizes.numel() == 0 ? 0 : block.sizes.numel() / (rows * columns);
    for (int64_t i = 0; i < matrices; ++i) {
        int64_t rest = i, global_stride = 1, local_stride = 1, first = 0, at = 0;
        for (int d = rank - 1; d >= 0; --d) {
            const bool outer = d < rank - 2;
            const int64_t index = outer ? rest % block.sizes[d] : 0;
            if (outer) rest /= block.sizes[d];
            first += (block.offset[d] + index) * global_stride;
            at += (block.local[d] + index) * local_stride;
            global_stride *= global[d];
            local_stride *= local.dim(d);
        }
        View y(local.view().as<float>() + at, DType::f32, {rows, columns});
        y.strides[0] = local.dim(rank - 1);
        ops::normal(ctx, {.y = y, .key = key, .std = std, .first = first, .row_step = global[rank - 1]});
    }
}

}  // namespace

Tensor initial_values(ops::Context& ctx, const Parameter& p, uint64_t seed, Purpose purpose, const Position& position) {
    const mesh::Mesh one_rank;
    const mesh::Mesh& mesh = mesh_of(position, one_rank);
    Tensor values = ops::empty(ctx, mesh::local_shape(mesh, p.shape, p.placement, p.name), DType::f32, purpose);
    if (p.init.std == 0) {
        ops::fill(ctx, values, static_cast<float>(p.init.value));
        return values;
    }
    const RandomKey key = random_key(seed, p.name);
    for (const mesh::Block& block : mesh::local_blocks(mesh, position.rank, p.shape, p.placement, p.name))
        draw(ctx, block, p.shape, values, key, static_cast<float>(p.init.std));
    return values;
}

void materialize(ops::Context& ctx, Parameter& p, DType compute, uint64_t seed, bool train, const Position& position) {
    check(compute == DType::f32 || compute == DType::bf16, "parameters compute in f32 or bf16, not in ", compute);
    const bool separate_master = compute != DType::f32;
    p.master = initial_values(ctx, p, seed, separate_master ? Purpose::optimizer : Purpose::weights, position);
    p.value = separate_master ? ops::cast(ctx, p.master, compute, Purpose::weights) : p.master;
    if (!train && separate_master) p.master = {};
    p.gradient = train ? ops::zeros(ctx, p.value.shape(), DType::f32, Purpose::gradients) : Tensor{};
}

}  // namespace tutti::autograd
