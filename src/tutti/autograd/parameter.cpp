#include "tutti/autograd/parameter.h"

#include "tutti/base/philox.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {

namespace {

// Elements [first, first + n) of the flattened global tensor. Rows of 4096, so that all threads draw, and the remaining
// elements.
void draw_run(ops::Context& ctx, kernels::Normal normal, int64_t first, int64_t n, float* values) {
    constexpr int64_t kRow = 4096;
    const int64_t whole = n / kRow * kRow;
    normal.row_step = kRow;
    for (const auto& [begin, rows, columns] :
         {std::array{int64_t{0}, whole / kRow, kRow}, {whole, int64_t{1}, n - whole}}) {
        normal.y = View(values + begin, DType::f32, {rows, columns});
        normal.first = first + begin;
        ops::normal(ctx, normal);
    }
}

void draw_block(ops::Context& ctx, kernels::Normal normal, const Shape& global, const mesh::Block& block,
                float* values) {
    const int64_t first = mesh::flat_begin(global, block);
    if (mesh::flat_end(global, block) - first == block.numel())
        return draw_run(ctx, normal, first, block.numel(), values);
    // As matrices of the last two dims.
    const int rank = global.rank();
    mesh::Block matrix = block;
    for (int d = 0; d < rank - 2; ++d) matrix.sizes[d] = 1;
    const int64_t count = block.numel() / matrix.numel();
    normal.row_step = global[-1];
    for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i;
        for (int d = rank - 3; d >= 0; rest /= block.sizes[d], --d)
            matrix.offset[d] = block.offset[d] + rest % block.sizes[d];
        normal.y = View(values + i * matrix.numel(), DType::f32, {block.sizes[-2], block.sizes[-1]});
        normal.first = mesh::flat_begin(global, matrix);
        ops::normal(ctx, normal);
    }
}

// Each element by itself, on the host.
void draw_each(ops::Context& ctx, const Parameter& p, uint64_t seed, const mesh::HeldBlock& held,
               const Tensor& values) {
    const RandomKey key = random_key(seed, p.name);
    std::vector<float> drawn;
    mesh::for_each_run(held.block, mesh::whole_block(p.shape), held.block, [&](int64_t first, int64_t, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
            drawn.push_back(static_cast<float>(p.init.each(first + i, uniform(key, static_cast<uint64_t>(first + i)))));
    });
    const auto n = static_cast<int64_t>(drawn.size());
    ops::copy(ctx, Tensor::from_host<float>(ctx.device, {n}, drawn, Purpose::workspace),
              values.narrow(0, held.begin, n));
}

}  // namespace

void draw(ops::Context& ctx, const Parameter& p, uint64_t seed, const std::vector<mesh::HeldBlock>& blocks,
          const Tensor& values) {
    int64_t padding = values.numel();
    for (const mesh::HeldBlock& held : blocks) padding -= held.block.numel();
    if (padding > 0) ops::fill(ctx, values, 0);
    const kernels::Normal normal{.key = random_key(seed, p.name), .std = static_cast<float>(p.init.std)};
    for (const auto& [block, begin] : blocks) {
        if (block.numel() == 0) continue;
        if (p.init.each) {
            draw_each(ctx, p, seed, {block, begin}, values);
            continue;
        }
        if (p.init.std == 0)
            ops::fill(ctx, values.narrow(0, begin, block.numel()), static_cast<float>(p.init.value));
        else
            draw_block(ctx, normal, p.shape, block, values.view().as<float>() + begin);
    }
}

void allocate(ops::Context& ctx, Parameter& p, DType compute, bool train) {
    check(is_compute_dtype(compute), "parameters compute in f32, bf16 or f16, not in ", compute);
    const Shape local = p.part().shape;
    p.value = ops::empty(ctx, local, p.type(compute), Purpose::weights);
    if (p.value.dtype() == DType::f32)
        p.master = p.value;
    else
        p.master = train && !p.frozen() ? ops::empty(ctx, local, DType::f32, Purpose::optimizer) : Tensor{};
    p.gradient = train && !p.frozen() ? ops::zeros(ctx, local, DType::f32, Purpose::gradients) : Tensor{};
}

void materialize(ops::Context& ctx, Parameter& p, DType compute, uint64_t seed, bool train) {
    allocate(ctx, p, compute, train);
    const Tensor f32 = p.master.defined() ? p.master : ops::empty(ctx, p.value.shape(), DType::f32, Purpose::workspace);
    draw(ctx, p, seed, p.part().blocks, f32.reshape({f32.numel()}));
    if (p.value.dtype() != DType::f32) ops::cast_into(ctx, f32, p.value);
}

}  // namespace tutti::autograd
