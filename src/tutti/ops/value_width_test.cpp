// Attention with values that are narrower than keys, on a table that takes none: the same bits as on one that does,
// since channels of zeros add exact zeros. And the two operations that latent attention makes its keys with.
#include <gtest/gtest.h>

#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/testing/bits.h"

namespace tutti::ops {
namespace {

using testing::random;

struct Gradients {
    Attention forward;
    Tensor dq, dk, dv;
};

// With `accumulate`, dv is half of a wider tensor, as in ring attention, and all three begin at random values.
Gradients gradients(Context& ctx, int64_t Dv, bool accumulate) {
    const int64_t B = 2, Tq = 5, Tk = 7, H = 4, Hkv = 2, D = 12;
    const Tensor q = random(ctx, {B, Tq, H, D}, DType::f32, 1), k = random(ctx, {B, Tk, Hkv, D}, DType::f32, 2);
    const Tensor v = random(ctx, {B, Tk, Hkv, Dv + 3}, DType::f32, 3).narrow(3, 3, Dv);
    const Tensor dy = random(ctx, {B, Tq, H, Dv}, DType::f32, 4);
    const kernels::AttentionMask mask{.query_offset = 2};
    Gradients g{attention(ctx, q, k, v, mask), random(ctx, {B, Tq, H, D}, DType::f32, 5),
                random(ctx, {B, Tk, Hkv, D}, DType::f32, 6),
                random(ctx, {B, 2 * Tk, Hkv, Dv}, DType::f32, 7).narrow(1, Tk, Tk)};
    attention_backward(ctx, dy, q, k, v, g.forward, mask, g.dq, g.dk, g.dv, accumulate);
    return g;
}

TEST(ValueWidth, IsThatOfKeysWithZerosBehind) {
    const auto device = make_cpu_device(1);
    kernels::KernelTable table = kernels::reference_table();
    Context own{*device, kernels::reference_table()};
    table.own_value_width = false;
    Context widened{*device, table};
    for (const int64_t Dv : {12, 7, 1})
        for (const bool accumulate : {false, true}) {
            const Gradients a = gradients(own, Dv, accumulate), b = gradients(widened, Dv, accumulate);
            EXPECT_EQ(a.forward.y.shape(), (Shape{2, 5, 4, Dv}));
            for (const auto& [x, y] : {std::pair{a.forward.y, b.forward.y},
                                       {a.forward.lse, b.forward.lse},
                                       {a.dq, b.dq},
                                       {a.dk, b.dk},
                                       {contiguous(own, a.dv), contiguous(own, b.dv)}})
                EXPECT_EQ(x.to_floats(), y.to_floats()) << Dv << ' ' << accumulate;
        }
}

TEST(ValueWidth, IsAtMostThatOfKeys) {
    const auto device = make_cpu_device(1);
    Context ctx{*device, kernels::reference_table()};
    const Tensor q = zeros(ctx, {1, 2, 2, 4}, DType::f32), v = zeros(ctx, {1, 2, 2, 5}, DType::f32);
    EXPECT_THROW(attention(ctx, q, q, v, {}), Error);
}

TEST(Heads, AreCopiedAndSummedInTheChannelsOfWiderOnes) {
    const auto device = make_cpu_device(2);
    Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const int64_t B = 2, T = 3, H = 4, D = 5, before = 6;
    const Tensor x = random(ctx, {B, T, 1, D}, DType::f32, 1), heads = zeros(ctx, {B, T, H, before + D}, DType::f32);
    copy_to_heads(ctx, x, heads.narrow(3, before, D));
    const std::vector<float> one = x.to_floats(), all = heads.to_floats();
    for (int64_t i = 0; i < B * T * H * (before + D); ++i) {
        const int64_t d = i % (before + D), token = i / (before + D) / H;
        EXPECT_EQ(all[to_size(i)], d < before ? 0 : one[to_size(token * D + d - before)]);
    }
    const std::vector<float> sum = sum_heads(ctx, heads.narrow(3, before, D)).to_floats();
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_FLOAT_EQ(sum[i], 4 * one[i]);
    EXPECT_THROW(copy_to_heads(ctx, heads, heads), Error);
}

// Channels of wider heads are rotated like heads of their own.
TEST(Heads, AreRotatedInTheirLastChannels) {
    const auto device = make_cpu_device(1);
    const int64_t B = 2, T = 3, H = 2, D = 10, R = 4;
    for (const kernels::KernelTable* table : {&kernels::reference_table(), &kernels::cpu_table(kernels::best_isa())}) {
        Context ctx{*device, *table};
        const std::vector<double> frequency = {1, 0.1};
        RopeTable rotation =
            rope_table(ctx, 8, Tensor::from_host<double>(*device, {2}, frequency, Purpose::workspace), 1);
        rotation.adjacent = true;
        const std::vector<int32_t> position = {0, 1, 2, 5, 6, 7};
        const Tensor positions = Tensor::from_host<int32_t>(*device, {B, T}, position, Purpose::workspace);
        const Tensor x = random(ctx, {B, T, H, D}, DType::f32, 1), last = contiguous(ctx, x.narrow(3, D - R, R));
        const std::vector<float> before = x.to_floats();
        rope(ctx, x.narrow(3, D - R, R), positions, rotation, false);
        rope(ctx, last, positions, rotation, false);
        EXPECT_EQ(contiguous(ctx, x.narrow(3, D - R, R)).to_floats(), last.to_floats());
        const std::vector<float> after = x.to_floats();
        for (size_t i = 0; i < after.size(); ++i)
            if (i % D < D - R) {
                EXPECT_EQ(after[i], before[i]);
            }
    }
}

}  // namespace
}  // namespace tutti::ops
