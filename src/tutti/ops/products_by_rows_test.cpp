// Blocks of the rows of a product, computed separately, have the bits of the whole product: for the reference and every
// CPU table of this machine, any implementation and every epilogue.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/base/testing/draws.h"
#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/testing/bits.h"

namespace tutti::ops::products_by_rows_test {
namespace {

using testing::random;
using testing::same_bits;
using testing::tables;

// x (rows, inner), w (outer, inner): around the numbers of rows at which a table changes the implementation of a
// product.
struct Sizes {
    int64_t rows, inner, outer, equal_blocks = 0;  // of rows; 0: unequal ones
};

Tensor side_by_side(Context& ctx, const Tensor& gate, const Tensor& up) {
    Shape shape = gate.shape();
    shape[-1] *= 2;
    const Tensor both = empty(ctx, shape, gate.dtype());
    copy(ctx, gate, both.narrow(-1, 0, gate.dim(-1)));
    copy(ctx, up, both.narrow(-1, gate.dim(-1), gate.dim(-1)));
    return both;
}

// Results of every function with a product, computed at once or, with `later`, by blocks of rows.
std::vector<Tensor> results(Context& ctx, const Sizes& s, DType dtype, Products* later) {
    const Tensor x = random(ctx, {s.rows, s.inner}, dtype, 1), w = random(ctx, {s.outer, s.inner}, dtype, 2);
    const Tensor dy = random(ctx, {s.rows, s.outer}, dtype, 3), bias = random(ctx, {s.outer}, dtype, 4);
    const Tensor z = random(ctx, {s.rows, s.inner}, dtype, 5), gate = random(ctx, {s.rows, s.inner}, dtype, 6);
    std::vector<Tensor> all;
    const auto finish = [&](const std::vector<Tensor>& made) {
        if (later) {
            std::vector<int64_t> blocks = {1, s.rows / 3, 5, s.rows};  // the last: what remains
            if (s.equal_blocks > 0) blocks.assign(to_size(s.equal_blocks), s.rows / s.equal_blocks);
            int64_t first = 0;
            for (const int64_t block : blocks) {
                const int64_t rows = std::min(block, s.rows - first);
                for (const Product& product : *later) compute_rows(ctx, product, first, rows);
                first += rows;
            }
            later->clear();
        }
        all.insert(all.end(), made.begin(), made.end());
    };
    finish({linear(ctx, x, w, nullptr, later)});
    finish({linear(ctx, x, w, &bias, later)});
    const Activated gelu = linear_gelu(ctx, x, w, &bias, true, later);
    finish({gelu.y, gelu.z});
    const Activated swiglu = linear_swiglu(ctx, Gate::silu, dy, x, w, nullptr, true, later);
    finish({swiglu.y, swiglu.z});
    finish({linear_backward_input(ctx, dy, w, {}, later)});
    finish({linear_backward_input(ctx, dy, w, cast(ctx, z, dtype), later)});
    finish({linear_gelu_backward(ctx, dy, w, z, later)});
    const GateAndUp d = linear_swiglu_backward(ctx, Gate::silu, dy, w, gate, z, later);
    finish({d.gate, d.up});
    finish({linear_swiglu_backward(ctx, Gate::silu, dy, w, side_by_side(ctx, gate, z), later)});
    // As the parts of a fused layer: rows of dy and of y are apart.
    const Tensor wide = random(ctx, {s.rows, 3 * s.outer}, dtype, 7), y = zeros(ctx, {s.rows, 3 * s.outer}, dtype);
    const Tensor part = wide.narrow(-1, s.outer, s.outer);
    finish({linear_backward_input(ctx, part, w, {}, later)});
    finish({linear_backward_input(ctx, part, w, cast(ctx, z, dtype), later)});
    linear_into(ctx, x, w, nullptr, y.narrow(-1, s.outer, s.outer), later);
    finish({y});
    return all;
}

TEST(ProductsByRows, HaveTheBitsOfTheWhole) {
    for (const int threads : {1, 3}) {
        const auto device = make_cpu_device(threads);
        for (const kernels::KernelTable* table : tables()) {
            Context ctx{*device, *table};
            for (const DType dtype : {DType::f32, DType::bf16})
                for (const Sizes& s :
                     std::vector<Sizes>{{8, 32, 16}, {16, 32, 24}, {40, 77, 100}, {300, 260, 270}, {600, 520, 530}}) {
                    if (table == &kernels::reference_table() && s.rows > 40) continue;
                    Products later;
                    const auto whole = results(ctx, s, dtype, nullptr), blocks = results(ctx, s, dtype, &later);
                    for (size_t i = 0; i < whole.size(); ++i)
                        EXPECT_TRUE(same_bits(whole[i], blocks[i]))
                            << table->name << ' ' << dtype << ' ' << s.rows << " x " << s.inner << " x " << s.outer
                            << ", " << threads << " threads, result " << i;
                }
        }
    }
}

// SwiGLU and its gradients have the bits that they have where gate and up are tensors of their own.
TEST(GateAndUp, SideBySideHaveTheBitsOfTheTwo) {
    const auto device = make_cpu_device(2);
    for (const kernels::KernelTable* table : tables()) {
        Context ctx{*device, *table};
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const Shape& shape : {Shape{1, 1, 6}, Shape{2, 3, 40}, Shape{3, 100, 77}}) {
                SCOPED_TRACE(concat(table->name, " ", dtype, " ", shape));
                Shape narrow = shape;
                narrow[-1] = 24;
                const Tensor gate = random(ctx, shape, dtype, 1), up = random(ctx, shape, dtype, 2);
                const Tensor dy = random(ctx, narrow, dtype, 3), w = random(ctx, {24, shape[-1]}, dtype, 4);
                const Tensor both = side_by_side(ctx, gate, up);
                EXPECT_TRUE(same_bits(swiglu(ctx, Gate::silu, both), swiglu(ctx, Gate::silu, gate, up)));
                const auto [dgate, dup] = linear_swiglu_backward(ctx, Gate::silu, dy, w, gate, up);
                EXPECT_TRUE(
                    same_bits(linear_swiglu_backward(ctx, Gate::silu, dy, w, both), side_by_side(ctx, dgate, dup)));
            }
    }
    Context ctx{*device, kernels::reference_table()};
    EXPECT_THROW(swiglu(ctx, Gate::silu, zeros(ctx, {2, 5}, DType::f32)), Error);
}

// Small products, for which a library has many kernels.
TEST(ProductsByRows, HaveTheBitsOfTheWholeWhateverTheSizes) {
    const auto device = make_cpu_device(1);
    const uint64_t key = random_key(11, "sizes");
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t count) { return static_cast<int64_t>(mix64(key + ++drawn) % count); };
    for (int trial = 0; trial < tutti::testing::draws(60, 1000); ++trial) {
        const Sizes s{32 * (1 + draw(2)), 4 * (1 + draw(50)), 4 * (1 + draw(50)), 2 << draw(3)};
        for (const kernels::KernelTable* table : tables()) {
            if (table == &kernels::reference_table()) continue;
            Context ctx{*device, *table};
            for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
                Products later;
                const auto whole = results(ctx, s, dtype, nullptr), blocks = results(ctx, s, dtype, &later);
                for (size_t i = 0; i < whole.size(); ++i)
                    EXPECT_TRUE(same_bits(whole[i], blocks[i]))
                        << table->name << ' ' << dtype << ' ' << s.rows << " x " << s.inner << " x " << s.outer
                        << " in " << s.equal_blocks << ", result " << i;
            }
        }
    }
}

TEST(ProductsByRows, AreRefusedWhereATableHasNone) {
    const auto device = make_cpu_device(1);
    kernels::KernelTable table = kernels::reference_table();
    table.gemm_by_rows = false;
    Context ctx{*device, table};
    Products later;
    const Tensor x = random(ctx, {4, 3}, DType::f32, 1), w = random(ctx, {2, 3}, DType::f32, 2);
    const Tensor y = linear(ctx, x, w, nullptr, &later);
    ASSERT_EQ(later.size(), 1u);
    EXPECT_THROW(compute_rows(ctx, later[0], 0, 2), UsageError);
}

// The memory of the sum is reused where no other handle shares it: that must not show in the result, nor in the sum.
TEST(InputGradients, AreTheSameWhoeverElseHoldsTheSum) {
    for (const kernels::KernelTable* table : tables()) {
        const auto device = make_cpu_device(1);
        Context ctx{*device, *table};
        for (const DType type : {DType::f32, DType::bf16}) {
            const Tensor dy = random(ctx, {40, 24}, type, 1), z = random(ctx, {40, 72}, type, 2);
            const Tensor w = random(ctx, {24, 72}, type, 3), experts = random(ctx, {2, 24, 72}, type, 4);
            const GroupRows rows = {17, 23};
            for (const auto& add_to :
                 {std::function([&](Tensor sum) { return linear_backward_input(ctx, dy, w, std::move(sum)); }),
                  std::function(
                      [&](Tensor sum) { return grouped_backward_input(ctx, dy, experts, rows, std::move(sum)); })}) {
                const Tensor held = cast(ctx, z, type);
                EXPECT_TRUE(same_bits(add_to(held), add_to(cast(ctx, z, type)))) << table->name << ' ' << type;
                EXPECT_TRUE(same_bits(held, z)) << table->name << ' ' << type;
            }
        }
    }
}

}  // namespace
}  // namespace tutti::ops::products_by_rows_test
