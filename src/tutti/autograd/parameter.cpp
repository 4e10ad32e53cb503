#include "tutti/autograd/parameter.h"

#include "tutti/base/philox.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

namespace {

const mesh::Mesh& mesh_of(const Position& position, const mesh::Mesh& one_rank) {
    return position.mesh ? *position.mesh : one_rank;
}

// Calls visit(local index, global index, run length) for each contiguous run of a block.
template <class Visit>
void for_each_run(const mesh::Block& block, const Shape& global, const Shape& local, Visit&& visit) {
    const int rank = global.rank();
    const int64_t run = rank ? block.sizes[-1] : 1;
    const int64_t runs = run ? block.sizes.numel() / run : 0;
    for (int64_t i = 0; i < runs; ++i) {
        int64_t rest = i, global_index = 0, local_index = 0, global_stride = 1, local_stride = 1;
        for (int d = rank - 1; d >= 0; --d) {
            const int64_t at = d == rank - 1 ? 0 : rest % block.sizes[d];
            if (d != rank - 1) rest /= block.sizes[d];
            global_index += (block.offset[d] + at) * global_stride;
            local_index += (block.local[d] + at) * local_stride;
            global_stride *= global[d];
            local_stride *= local[d];
        }
        visit(local_index, global_index, run);
    }
}

}  // namespace

std::vector<float> initial_values(const Parameter& p, uint64_t seed, const Position& position) {
    const mesh::Mesh one_rank;
    const mesh::Mesh& mesh = mesh_of(position, one_rank);
    const Shape local = mesh::local_shape(mesh, p.shape, p.placement, p.name);
    std::vector<float> values(static_cast<size_t>(local.numel()), static_cast<float>(p.init.value));
    if (p.init.std == 0) return values;
    const RandomKey key = random_key(seed, p.name);
    const auto std = static_cast<float>(p.init.std);
    for (const mesh::Block& block : mesh::local_blocks(mesh, position.rank, p.shape, p.placement, p.name))
        for_each_run(block, p.shape, local, [&](int64_t local_index, int64_t global_index, int64_t run) {
            for (int64_t j = 0; j < run; ++j)
                values[static_cast<size_t>(local_index + j)] =
                    std * normal(key, static_cast<uint64_t>(global_index + j));
        });
    return values;
}

void materialize(ops::Context& ctx, Parameter& p, DType compute, uint64_t seed, bool train, const Position& position) {
    check(compute == DType::f32 || compute == DType::bf16, "parameters compute in f32 or bf16, not in ", compute);
    const std::vector<float> values = initial_values(p, seed, position);
    const mesh::Mesh one_rank;
    const Shape local = mesh::local_shape(mesh_of(position, one_rank), p.shape, p.placement, p.name);
    const bool separate_master = compute != DType::f32;
    const Purpose purpose = separate_master ? Purpose::optimizer : Purpose::weights;
    p.master = Tensor::from_host<float>(ctx.device, local, values, purpose);
    p.value = separate_master ? ops::cast(ctx, p.master, compute, Purpose::weights) : p.master;
    if (!train && separate_master) p.master = {};
    p.gradient = train ? ops::zeros(ctx, local, DType::f32, Purpose::gradients) : Tensor{};
}

}  // namespace tutti::autograd
