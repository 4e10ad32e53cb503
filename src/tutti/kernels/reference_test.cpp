// The reference kernels against values that can be worked out without them: by hand, by a closed form, by an identity.
// Views are f64 except in tests of rounding. kClose: sums of at most 100 terms of order one, 100 u = 1.1e-14.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tutti/base/testing/unit_roundoff.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::reference_test {
namespace {

constexpr double kClose = 100 * unit_roundoff(DType::f64);
// A parameter such as 0.9f is off by u relative before the kernel sees it.
constexpr double kFloatParameter = 4 * unit_roundoff(DType::f32);

View f64(std::vector<double>& values, const Shape& shape) { return View(values.data(), DType::f64, shape); }
View f64(std::vector<double>& values) { return f64(values, {static_cast<int64_t>(values.size())}); }
View i32(std::vector<int32_t>& values) {
    return View(values.data(), DType::i32, {static_cast<int64_t>(values.size())});
}

std::vector<double> random(int64_t n, const char* purpose) {
    std::vector<double> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = normal(random_key(11, purpose), i);
    return values;
}

class Reference : public testing::Test {
  protected:
    const KernelTable& table = reference_table();
    const Stream stream;
};

// 1 + 2^-8 + 2^-30 is nearer to 1 + 2^-7 than to 1. Through a float it would lose the 2^-30, become a tie and go to 1.
TEST_F(Reference, RoundsOnceOnTheWayTo16Bits) {
    std::vector<double> x = {1 + 0x1p-8 + 0x1p-30,
                             1 + 0x1p-8,
                             -(1 + 0x1p-8 + 0x1p-30),
                             1 + 0x1.8p-7 - 0x1p-30,
                             std::numeric_limits<double>::infinity(),
                             1e300,
                             0x1p-200,
                             -0.0};
    std::vector<uint16_t> y(8);
    table.cast(stream, f64(x), View(y.data(), DType::bf16, {8}));
    EXPECT_EQ(y, (std::vector<uint16_t>{0x3f81, 0x3f80, 0xbf81, 0x3f81, 0x7f80, 0x7f80, 0x0000, 0x8000}));

    std::vector<double> z = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11, 65519.999999};
    table.cast(stream, f64(z), View(y.data(), DType::f16, {3}));
    EXPECT_EQ(y[0], 0x3c01);
    EXPECT_EQ(y[1], 0x3c00);
    EXPECT_EQ(y[2], 0x7bff);
}

TEST_F(Reference, ElementwiseByHand) {
    std::vector<double> x = {1, -2, 0.5}, y(3), up = {2, 1, 1};
    table.gelu_forward(stream, f64(x), f64(y));  // from Python's math.tanh
    EXPECT_NEAR(y[0], 0.8411919906082768, kClose);
    EXPECT_NEAR(y[1], -0.04540230591222494, kClose);
    EXPECT_NEAR(y[2], 0.34571400982514394, kClose);
    table.swiglu_forward(stream, Gate::silu, f64(x), f64(up), f64(y));  // 1 sigmoid(1) 2
    EXPECT_NEAR(y[0], 1.4621171572600098, kClose);
    table.relu_forward(stream, f64(x), f64(y));
    EXPECT_EQ(y, (std::vector<double>{1, 0, 0.5}));
    table.add(stream, f64(x), f64(up), f64(y));
    EXPECT_EQ(y, (std::vector<double>{3, -1, 1.5}));
    table.accumulate(stream, f64(x), f64(y));
    EXPECT_EQ(y, (std::vector<double>{4, -3, 2}));
    table.scale(stream, f64(y), 0.5f);
    EXPECT_EQ(y, (std::vector<double>{2, -1.5, 1}));
    table.sums_of_squares(stream, f64(y), View(up.data(), DType::f64, {1}));
    EXPECT_EQ(up[0], 4 + 2.25 + 1);
    std::vector<double> ones(kSumBlock + 3, 1.0);
    table.sums_of_squares(stream, f64(ones), View(up.data(), DType::f64, {2}));
    EXPECT_EQ(up[0], kSumBlock);
    EXPECT_EQ(up[1], 3);
    table.fill(stream, f64(y), 0.25f);
    EXPECT_EQ(y, (std::vector<double>{0.25, 0.25, 0.25}));
}

TEST_F(Reference, DropoutKeepsItsShareAndItsMeanAndKnowsNoRanks) {
    const int64_t N = 64, C = 100;
    std::vector<double> x(N * C, 1.0), whole(x), half(N * C / 2);
    std::vector<int64_t> rows(N);
    for (int64_t n = 0; n < N; ++n) rows[static_cast<size_t>(n)] = 3 * n;
    Dropout dropout{.key = random_key(1, "dropout"),
                    .probability = 0.25f,
                    .row_index = View(rows.data(), DType::i64, {N}),
                    .columns_total = C};
    table.dropout(stream, f64(x, {N, C}), dropout, f64(whole, {N, C}));
    int64_t kept = 0;
    for (double v : whole) {
        EXPECT_TRUE(v == 0 || v == 1 / 0.75) << v;
        kept += v != 0;
    }
    // Binomial: 6400 draws, standard deviation sqrt(6400 0.25 0.75) = 34.6; five of them.
    EXPECT_NEAR(static_cast<double>(kept), 0.75 * N * C, 5 * 34.6);

    // The right half of the columns, as a tensor-parallel rank sees it.
    dropout.column_offset = C / 2;
    std::vector<double> ones(N * C / 2, 1.0);
    table.dropout(stream, f64(ones, {N, C / 2}), dropout, f64(half, {N, C / 2}));
    for (int64_t n = 0; n < N; ++n)
        for (int64_t c = 0; c < C / 2; ++c)
            ASSERT_EQ(half[static_cast<size_t>(n * C / 2 + c)], whole[static_cast<size_t>(n * C + C / 2 + c)]);
}

TEST_F(Reference, GemmByHandInAllForms) {
    // [1 2 3; 4 5 6] [1 0; 2 1; 0 3] = [5 11; 14 23]
    std::vector<double> a = {1, 2, 3, 4, 5, 6}, at = {1, 4, 2, 5, 3, 6}, b = {1, 0, 2, 1, 0, 3},
                        bt = {1, 2, 0, 0, 1, 3};
    std::vector<double> bias = {100, 200};
    for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
            std::vector<double> c = {-1, -1, -1, -1};
            const View left = ta ? f64(at, {3, 2}) : f64(a, {2, 3}), right = tb ? f64(bt, {2, 3}) : f64(b, {3, 2});
            Gemm gemm{.a = left, .b = right, .c = f64(c, {2, 2}), .transpose_a = ta, .transpose_b = tb};
            table.gemm(stream, gemm);
            EXPECT_EQ(c, (std::vector<double>{5, 11, 14, 23})) << ta << tb;
            gemm.accumulate = true;
            gemm.bias = f64(bias);
            table.gemm(stream, gemm);
            EXPECT_EQ(c, (std::vector<double>{110, 222, 128, 246})) << ta << tb;
        }
    // A leading dim: the 2 x 2 corner of a 2 x 3 array, whose last column must stay.
    std::vector<double> c(6, 7.0);
    View corner = f64(c, {2, 3});
    corner.shape[1] = 2;
    table.gemm(stream, {.a = f64(a, {2, 3}), .b = f64(b, {3, 2}), .c = corner});
    EXPECT_EQ(c, (std::vector<double>{5, 11, 7, 14, 23, 7}));
}

TEST_F(Reference, EmbeddingByHand) {
    std::vector<int32_t> tokens = {2, 0, 2};
    std::vector<double> weight = {1, 2, 3, 4, 5, 6}, y(6), dweight(6, 0.5);
    table.embedding_forward(stream, i32(tokens), f64(weight, {3, 2}), 0, f64(y, {3, 2}));
    EXPECT_EQ(y, (std::vector<double>{5, 6, 1, 2, 5, 6}));
    table.embedding_backward(stream, i32(tokens), f64(y, {3, 2}), 0, f64(dweight, {3, 2}));
    EXPECT_EQ(dweight, (std::vector<double>{1.5, 2.5, 0.5, 0.5, 10.5, 12.5}));
    table.bias_backward(stream, f64(y, {3, 2}), f64(weight, {2}));  // columns sum to 11 and 14, onto 1 and 2
    EXPECT_EQ(weight[0], 12);
    EXPECT_EQ(weight[1], 16);
}

TEST_F(Reference, EmbeddingOfRowsOneAndTwoByHand) {
    std::vector<int32_t> tokens = {2, 0, 1, 3, 2};
    std::vector<double> weight = {1, 2, 3, 4}, y(10, 9.0), dweight(4, 0.5);
    table.embedding_forward(stream, i32(tokens), f64(weight, {2, 2}), 1, f64(y, {5, 2}));
    EXPECT_EQ(y, (std::vector<double>{3, 4, 0, 0, 1, 2, 0, 0, 3, 4}));
    std::vector<double> dy = {1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
    table.embedding_backward(stream, i32(tokens), f64(dy, {5, 2}), 1, f64(dweight, {2, 2}));
    EXPECT_EQ(dweight, (std::vector<double>{3.5, 3.5, 6.5, 6.5}));
}

TEST_F(Reference, NormsByHand) {
    // Row 1 3 5 7: mean 4, variance 5. Mean square 21.
    std::vector<double> x = {1, 3, 5, 7}, w = {1, 2, 1, 1}, b = {0, 0, 10, 0}, y(4), mean(1), rstd(1);
    table.norm_forward(stream, {f64(x, {1, 4}), f64(w), f64(b), 0, f64(y, {1, 4}), f64(mean), f64(rstd)});
    EXPECT_EQ(mean[0], 4);
    EXPECT_NEAR(rstd[0], 1 / std::sqrt(5.0), kClose);
    EXPECT_NEAR(y[0], -3 / std::sqrt(5.0), kClose);
    EXPECT_NEAR(y[1], -2 / std::sqrt(5.0), kClose);
    EXPECT_NEAR(y[2], 1 / std::sqrt(5.0) + 10, kClose);
    table.norm_forward(stream, {f64(x, {1, 4}), f64(w), f64(b), 4, f64(y, {1, 4}), f64(mean), f64(rstd)});
    EXPECT_NEAR(rstd[0], 1.0 / 3, kClose);
    table.norm_forward(stream, {f64(x, {1, 4}), f64(w), {}, 4, f64(y, {1, 4}), {}, f64(rstd)});
    EXPECT_NEAR(rstd[0], 0.2, kClose);
    EXPECT_NEAR(y[1], 3 * 0.2 * 2, kClose);
}

// A rotation keeps lengths; the product of a rotated query and a rotated key depends on their distance only (Su et
// al.).
TEST_F(Reference, RopeRotates) {
    const int64_t D = 8, P = 20;
    std::vector<double> cosines(P * D / 2), sines(P * D / 2);
    for (int64_t p = 0; p < P; ++p)
        for (int64_t k = 0; k < D / 2; ++k) {
            const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(k) / D);
            cosines[static_cast<size_t>(p * D / 2 + k)] = std::cos(angle);
            sines[static_cast<size_t>(p * D / 2 + k)] = std::sin(angle);
        }
    const auto rotated = [&](std::vector<double> x, int32_t position, bool inverse) {
        std::vector<int32_t> at = {position};
        table.rope(stream, f64(x, {1, 1, D}), i32(at), f64(cosines, {P, D / 2}), f64(sines, {P, D / 2}), inverse,
                   false);
        return x;
    };
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
        double total = 0;
        for (size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
        return total;
    };
    const auto q = random(D, "q"), k = random(D, "k");
    EXPECT_NEAR(dot(rotated(q, 13, false), rotated(q, 13, false)), dot(q, q), kClose * dot(q, q));
    EXPECT_NEAR(dot(rotated(q, 5, false), rotated(k, 2, false)), dot(rotated(q, 19, false), rotated(k, 16, false)),
                1e2 * kClose);
    EXPECT_GT(std::abs(dot(rotated(q, 5, false), rotated(k, 2, false)) - dot(q, k)), 1e-3);
    const auto back = rotated(rotated(q, 7, false), 7, true);
    for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(back[i], q[i], kClose * 10);
    // Pair (0, D/2) at position 1 turns by one radian, counter-clockwise.
    const auto unit = rotated({1, 0, 0, 0, 0, 0, 0, 0}, 1, false);
    EXPECT_NEAR(unit[0], std::cos(1.0), kClose);
    EXPECT_NEAR(unit[4], std::sin(1.0), kClose);
}

// Equal keys: every visible value counts the same, so O is their mean and lse = S + ln(number of them).
TEST_F(Reference, AttentionOverEqualKeysIsAMean) {
    const int64_t T = 5, D = 2;
    std::vector<double> q = random(T * D, "q"), k(T * D, 1.0), v = random(T * D, "v"), o(T * D), lse(T);
    const AttentionForward forward{.q = f64(q, {1, T, 1, D}),
                                   .k = f64(k, {1, T, 1, D}),
                                   .v = f64(v, {1, T, 1, D}),
                                   .o = f64(o, {1, T, 1, D}),
                                   .lse = f64(lse, {1, 1, T}),
                                   .scale = 0.5f,
                                   .mask = {.query_offset = -1}};
    table.attention_forward(stream, forward);
    EXPECT_EQ(lse[0], -std::numeric_limits<double>::infinity());  // query 0 sees no key with offset -1
    EXPECT_EQ(o[0], 0);
    double mean = 0;
    for (size_t i = 1; i < T; ++i) {
        mean += v[(i - 1) * D];
        EXPECT_NEAR(o[i * D], mean / static_cast<double>(i), kClose);
        EXPECT_NEAR(lse[i], 0.5 * (q[i * D] + q[i * D + 1]) + std::log(static_cast<double>(i)), kClose);
    }
}

TEST_F(Reference, CrossEntropyOfUniformLogitsIsLogV) {
    const int64_t vocab = 50, V = 64;
    std::vector<double> logits(2 * V, 3.0), losses(2);
    for (int64_t v = vocab; v < V; ++v) logits[static_cast<size_t>(v)] = 1e30;  // padding must not count
    std::vector<int32_t> targets = {7, -100};
    table.cross_entropy(stream, {.logits = f64(logits, {2, V}),
                                 .targets = i32(targets),
                                 .losses = f64(losses),
                                 .vocab = vocab,
                                 .grad_scale = 2,
                                 .gradient = true});
    EXPECT_NEAR(losses[0], std::log(50.0), kClose);
    EXPECT_EQ(losses[1], 0);
    for (int64_t v = 0; v < V; ++v) {
        EXPECT_NEAR(logits[static_cast<size_t>(v)], v >= vocab ? 0 : 2 * (0.02 - (v == 7 ? 1 : 0)), kClose) << v;
        EXPECT_EQ(logits[static_cast<size_t>(V + v)], 0) << v;
    }
}

// Words 0 to 2 at -infinity, words 3 to 5 at ln 1, ln 2, ln 3, of which the last is padding. The target is word 4.
TEST_F(Reference, CrossEntropyInShardsByHand) {
    const double kInfinity = std::numeric_limits<double>::infinity();
    std::vector<double> masked(3, -kInfinity), counted = {0, std::log(2), std::log(3)}, partials(6), losses(1);
    std::vector<int32_t> targets = {4};
    const CrossEntropy left{.logits = f64(masked, {1, 3}), .targets = i32(targets), .losses = f64(losses), .vocab = 5};
    CrossEntropy shards[] = {left, left};
    shards[1].logits = f64(counted, {1, 3});
    shards[1].first_word = 3;
    for (const size_t p : {size_t{0}, size_t{1}}) {
        shards[p].partials = View(&partials[3 * p], DType::f64, {3, 1});
        table.cross_entropy_partial(stream, shards[p]);
    }
    EXPECT_EQ(partials, (std::vector<double>{-kInfinity, 0, 0, std::log(2), 1.5, std::log(2)}));
    for (CrossEntropy& shard : shards) {
        shard.partials = f64(partials, {2, 3, 1});
        shard.gradient = true;
        table.cross_entropy_finish(stream, shard);
        EXPECT_NEAR(losses[0], std::log(1.5), kClose);  // p = 2/3
    }
    EXPECT_EQ(masked, std::vector<double>(3, 0.0));
    EXPECT_NEAR(counted[0], 1.0 / 3, kClose);
    EXPECT_NEAR(counted[1], -1.0 / 3, kClose);
    EXPECT_EQ(counted[2], 0);
}

TEST_F(Reference, SquaredErrorByHand) {
    std::vector<double> x = {1, 2, 3, 4}, target = {0, 2, 5, 1}, losses(2), dx(4);
    table.squared_error(stream, f64(x, {2, 2}), f64(target, {2, 2}), 0.5f, f64(losses), f64(dx, {2, 2}));
    EXPECT_EQ(losses, (std::vector<double>{1, 13}));
    EXPECT_EQ(dx, (std::vector<double>{1, 0, -2, 3}));
}

// From zero moments the bias-corrected m is g and v is g^2: the step is lr sign(g), whatever the betas and the scale.
TEST_F(Reference, AdamWFirstStepIsTheSign) {
    std::vector<double> p = {1, 1, 2}, m(3), v(3), g = {5, -0.001, 1};
    std::vector<uint16_t> value(3);
    const OptimizerPiece piece{.master = f64(p),
                               .gradient = f64(g),
                               .value = View(value.data(), DType::bf16, {3}),
                               .m = {f64(m)},
                               .v = {f64(v)},
                               .weight_decay = 0.5f};
    const AdamW step{.pieces = {&piece, 1},
                     .lr = 0.125f,
                     .eps = 0,
                     .correction1 = 1 - 0.9f,
                     .correction2 = 1 - 0.95f,
                     .grad_scale = 4};
    table.adamw(stream, step);
    const double decayed = 0.125 * 0.5;
    EXPECT_NEAR(p[0], 1 - 0.125 - decayed, kFloatParameter);
    EXPECT_NEAR(p[1], 1 + 0.125 - decayed, kFloatParameter);
    EXPECT_NEAR(p[2], 2 - 0.125 - 2 * decayed, kFloatParameter);
    EXPECT_NEAR(m[0], 0.1 * 20, 20 * kFloatParameter);
    EXPECT_NEAR(v[0], 0.05 * 400, 400 * kFloatParameter);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(bf16_value(value[i]), p[i], unit_roundoff(DType::bf16) * p[i]);
}

// A constant gradient under momentum mu: u_1 = g, u_2 = (1 + mu) g.
TEST_F(Reference, SgdGathersMomentum) {
    std::vector<double> p = {1}, u = {0}, g = {2};
    OptimizerPiece piece{.master = f64(p), .gradient = f64(g), .m = {f64(u)}};
    const Sgd step{.pieces = {&piece, 1}, .lr = 0.25f, .momentum = 0.5f};
    table.sgd(stream, step);
    EXPECT_EQ(p[0], 1 - 0.25 * 2);
    table.sgd(stream, step);
    EXPECT_EQ(u[0], 3);
    EXPECT_EQ(p[0], 0.5 - 0.25 * 3);
    Sgd decay = step;
    decay.grad_scale = 0;
    piece.weight_decay = 4;
    decay.momentum = 0;
    table.sgd(stream, decay);
    EXPECT_EQ(p[0], -0.25 + 0.25 * 4 * 0.25);
}

}  // namespace
}  // namespace tutti::kernels::reference_test
