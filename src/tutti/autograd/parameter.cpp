#include "tutti/autograd/parameter.h"

#include "tutti/base/philox.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

namespace {

const mesh::Mesh& mesh_of(const Position& position, const mesh::Mesh& one_rank) {
    return position.mesh ? *position.mesh : one_rank;
}

// Still without its shape and its place in the parameter.
kernels::Normal normal_of(const Parameter& p, uint64_t seed) {
    return {.key = random_key(seed, p.name), .std = static_cast<float>(p.init.std)};
}

// Draws one block as matrices of its last two dims: whatever the rank of the tensor, rows are contiguous in both.
void draw_block(ops::Context& ctx, const mesh::Block& block, const Shape& global, const Tensor& local,
                kernels::Normal normal) {
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
        normal.y = View(local.view().as<float>() + at, DType::f32, {rows, columns});
        normal.y.strides[0] = local.dim(rank - 1);
        normal.first = first;
        normal.row_step = global[rank - 1];
        ops::normal(ctx, normal);
    }
}

}  // namespace

void draw(ops::Context& ctx, const Parameter& p, uint64_t seed, const Tensor& values, const Position& position) {
    if (p.init.std == 0) return ops::fill(ctx, values, static_cast<float>(p.init.value));
    const mesh::Mesh one_rank;
    for (const mesh::Block& block :
         mesh::local_blocks(mesh_of(position, one_rank), position.rank, p.shape, p.placement, p.name))
        draw_block(ctx, block, p.shape, values, normal_of(p, seed));
}

// Rows of 4096, so that all threads draw, and what is left.
void draw_range(ops::Context& ctx, const Parameter& p, uint64_t seed, int64_t begin, const Tensor& values) {
    if (p.init.std == 0) return ops::fill(ctx, values, static_cast<float>(p.init.value));
    constexpr int64_t kRow = 4096;
    const int64_t whole = values.numel() / kRow * kRow;
    kernels::Normal normal = normal_of(p, seed);
    normal.row_step = kRow;
    normal.y = View(values.view().data, DType::f32, {whole / kRow, kRow});
    normal.first = begin;
    ops::normal(ctx, normal);
    normal.y = View(values.view().as<float>() + whole, DType::f32, {1, values.numel() - whole});
    normal.first = begin + whole;
    ops::normal(ctx, normal);
}

void allocate(ops::Context& ctx, Parameter& p, DType compute, bool train, const Position& position) {
    check(compute == DType::f32 || compute == DType::bf16, "parameters compute in f32 or bf16, not in ", compute);
    const mesh::Mesh one_rank;
    const Shape local = mesh::local_shape(mesh_of(position, one_rank), p.shape, p.placement, p.name);
    p.value = ops::empty(ctx, local, compute, Purpose::weights);
    if (compute == DType::f32)
        p.master = p.value;
    else
        p.master = train ? ops::empty(ctx, local, DType::f32, Purpose::optimizer) : Tensor{};
    p.gradient = train ? ops::zeros(ctx, local, DType::f32, Purpose::gradients) : Tensor{};
}

void materialize(ops::Context& ctx, Parameter& p, DType compute, uint64_t seed, bool train, const Position& position) {
    allocate(ctx, p, compute, train, position);
    const Tensor f32 = p.master.defined() ? p.master : ops::empty(ctx, p.value.shape(), DType::f32, Purpose::workspace);
    draw(ctx, p, seed, f32, position);
    if (p.value.dtype() != DType::f32) ops::cast_into(ctx, f32, p.value);
}

}  // namespace tutti::autograd
