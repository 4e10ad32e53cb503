#include "tutti/autograd/parameter.h"

#include "tutti/base/philox.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

namespace {

const mesh::Mesh& mesh_of(const Position& position, const mesh::Mesh& one_rank) {
    return position.mesh ? *position.mesh : one_rank;
}

// Values that lie one after another both in the global and in the local tensor.
struct Run {
    int64_t global = 0, local = 0, length = 0;
};

void add_runs(const mesh::Block& block, const Shape& global, const Shape& local, std::vector<Run>& runs) {
    const int rank = global.rank();
    const int64_t length = rank ? block.sizes[-1] : 1;
    const int64_t count = length ? block.sizes.numel() / length : 0;
    for (int64_t i = 0; i < count; ++i) {
        Run run{0, 0, length};
        int64_t rest = i, global_stride = 1, local_stride = 1;
        for (int d = rank - 1; d >= 0; --d) {
            const int64_t at = d == rank - 1 ? 0 : rest % block.sizes[d];
            if (d != rank - 1) rest /= block.sizes[d];
            run.global += (block.offset[d] + at) * global_stride;
            run.local += (block.local[d] + at) * local_stride;
            global_stride *= global[d];
            local_stride *= local[d];
        }
        runs.push_back(run);
    }
}

// values[local + j] = std * normal(key, global + j), two to a Philox block.
void draw(const Run& run, RandomKey key, float std, std::vector<float>& values) {
    const auto first = static_cast<uint64_t>(run.global), end = first + static_cast<uint64_t>(run.length);
    float* out = values.data() + run.local;
    for (uint64_t pair = first / 2; 2 * pair < end; ++pair) {
        const auto two = normal_pair(key, pair);
        for (uint64_t k = 0; k < 2; ++k)
            if (const uint64_t index = 2 * pair + k; index >= first && index < end) out[index - first] = std * two[k];
    }
}

}  // namespace

std::vector<float> initial_values(const Stream& stream, const Parameter& p, uint64_t seed, const Position& position) {
    const mesh::Mesh one_rank;
    const mesh::Mesh& mesh = mesh_of(position, one_rank);
    const Shape local = mesh::local_shape(mesh, p.shape, p.placement, p.name);
    std::vector<float> values(static_cast<size_t>(local.numel()), static_cast<float>(p.init.value));
    if (p.init.std == 0) return values;
    const RandomKey key = random_key(seed, p.name);
    const auto std = static_cast<float>(p.init.std);
    std::vector<Run> runs;
    for (const mesh::Block& block : mesh::local_blocks(mesh, position.rank, p.shape, p.placement, p.name))
        add_runs(block, p.shape, local, runs);
    // Drawing is most of the start of a run: 124 M normals take 2.6 s on one core.
    parallel_for(stream, static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) draw(runs[static_cast<size_t>(r)], key, std, values);
    });
    return values;
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
    const std::vector<float> values = initial_values(ctx.device.stream(), p, seed, position);
    allocate(ctx, p, compute, train, position);
    const Tensor f32 = p.master.defined() ? p.master : ops::empty(ctx, p.value.shape(), DType::f32, Purpose::workspace);
    ctx.device.copy_in(f32.view().data, values.data(), f32.bytes());
    if (p.value.dtype() != DType::f32) ops::cast_into(ctx, f32, p.value);
}

}  // namespace tutti::autograd
