// Every kernel that has a backward, differentiated by central differences. All views are f64, so the reference kernels
// run in double from end to end and the tolerance is that of the difference quotient alone.
//
// For L = sum dy y and g = (L(x + h) - L(x - h)) / 2h, Taylor gives g - L' = h^2/6 L''' + O(h^4). The quotient with 2h
// has four times that error, so |g(2h) - g(h)| = h^2/2 |L'''| measures the third derivative: three times the error of
// g, our margin for the h^4 term. Rounding: all values are of order one; L is a sum of n terms dy y, each y a sum of at
// most K terms, so |dL| <= (n + K) u S with S = sum |dy| (|y| + 1), and the quotient is off by at most |dL| / h.
// h = 2^-13 makes the two parts about equal for L''' of order one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "tutti/base/testing/unit_roundoff.h"
#include "tutti/kernels/kernel_table.h"

// g++ 12 takes the temporary of `Array y({40})` for uninitialized when the file is large.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace tutti::kernels {
namespace {

constexpr double kStep = 0x1p-13;

struct Array {
    Shape shape;
    std::vector<double> values;
    explicit Array(const Shape& s) : shape(s), values(static_cast<size_t>(s.numel())) {}
    View view() { return View(values.data(), DType::f64, shape); }
    double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
    double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
    int64_t size() const { return shape.numel(); }
};

Array random(const Shape& shape, const char* purpose) {
    Array a(shape);
    for (size_t i = 0; i < a.values.size(); ++i) a.values[i] = normal(random_key(7, purpose), i);
    return a;
}

class Gradient : public testing::Test {
  protected:
    const KernelTable& table = reference_table();
    const Stream stream;

    // `forward` fills y from whatever x holds now; `gradient` is what the backward kernel says about x.
    // `terms` is K, the longest inner sum of the forward.
    void expect_gradient(const char* what, Array& x, const Array& gradient, const Array& dy, const Array& y,
                         int64_t terms, const std::function<void()>& forward) {
        ASSERT_EQ(x.size(), gradient.size());
        const auto loss_at = [&](int64_t i, double value) {
            const double kept = std::exchange(x[i], value);
            forward();
            x[i] = kept;
            double loss = 0;
            for (int64_t n = 0; n < y.size(); ++n) loss += dy[n] * y[n];
            return loss;
        };
        forward();
        double magnitude = 0;
        for (int64_t n = 0; n < y.size(); ++n) magnitude += std::abs(dy[n]) * (std::abs(y[n]) + 1);
        const double rounding = static_cast<double>(y.size() + terms) * unit_roundoff(DType::f64) * magnitude / kStep;
        for (int64_t i = 0; i < x.size(); ++i) {
            const double h = kStep, at = x[i];
            const double quotient = (loss_at(i, at + h) - loss_at(i, at - h)) / (2 * h);
            const double coarse = (loss_at(i, at + 2 * h) - loss_at(i, at - 2 * h)) / (4 * h);
            EXPECT_NEAR(gradient[i], quotient, std::abs(coarse - quotient) + rounding) << what << " element " << i;
        }
        forward();
    }
};

TEST_F(Gradient, Relu) {
    Array x = random({3, 7}, "x"), dy = random({3, 7}, "dy"), y({3, 7}), dx({3, 7});
    for (double& v : x.values) v += v > 0 ? 0.01 : -0.01;  // the kink is not differentiable
    const auto forward = [&] { table.relu_forward(stream, x.view(), y.view()); };
    forward();
    table.relu_backward(stream, dy.view(), y.view(), dx.view());
    expect_gradient("dx", x, dx, dy, y, 1, forward);
}

TEST_F(Gradient, Gelu) {
    Array x = random({40}, "x"), dy = random({40}, "dy"), y({40}), dx({40});
    x[0] = 0, x[1] = 6, x[2] = -6;
    table.gelu_backward(stream, dy.view(), x.view(), dx.view());
    expect_gradient("dx", x, dx, dy, y, 10, [&] { table.gelu_forward(stream, x.view(), y.view()); });
}

TEST_F(Gradient, Swiglu) {
    for (const Gate g : {Gate::silu, Gate::gelu, Gate::sigmoid}) {
        Array gate = random({40}, "gate"), up = random({40}, "up"), dy = random({40}, "dy"), y({40}), dgate({40}),
              dup({40});
        gate[0] = 0, gate[1] = 20, gate[2] = -20;
        const auto forward = [&] { table.swiglu_forward(stream, g, gate.view(), up.view(), y.view()); };
        table.swiglu_backward(stream, g, dy.view(), gate.view(), up.view(), dgate.view(), dup.view());
        expect_gradient("dgate", gate, dgate, dy, y, 10, forward);
        expect_gradient("dup", up, dup, dy, y, 10, forward);
    }
}

TEST_F(Gradient, Dropout) {
    Array x = random({4, 9}, "x"), dy = random({4, 9}, "dy"), y({4, 9}), dx({4, 9});
    std::vector<int64_t> rows = {5, 0, 1000, 6};
    const Dropout dropout{.key = 3,
                          .probability = 0.4f,
                          .row_index = View(rows.data(), DType::i64, {4}),
                          .column_offset = 2,
                          .columns_total = 20};
    table.dropout(stream, dy.view(), dropout, dx.view());
    expect_gradient("dx", x, dx, dy, y, 1, [&] { table.dropout(stream, x.view(), dropout, y.view()); });
}

TEST_F(Gradient, Embedding) {
    Array weight = random({5, 3}, "w"), dy = random({6, 3}, "dy"), y({6, 3}), dweight({5, 3});
    std::vector<int32_t> tokens = {4, 0, 4, 2, 4, 6};  // rows 1 to 5 are held
    const View token_view(tokens.data(), DType::i32, {6});
    table.embedding_backward(stream, token_view, dy.view(), 1, dweight.view());
    expect_gradient("dweight", weight, dweight, dy, y, 1,
                    [&] { table.embedding_forward(stream, token_view, weight.view(), 1, y.view()); });
}

TEST_F(Gradient, Norms) {
    const int64_t N = 4, C = 7;
    Array x = random({N, C}, "x"), w = random({C}, "w"), b = random({C}, "b"), dy = random({N, C}, "dy");
    Array y({N, C}), means({N}), rstd({N}), dx({N, C});
    for (double& v : x.values) v += 1;  // a mean that matters
    for (const auto& [centred, offset] : {std::pair(true, 0.0f), {false, 0.0f}, {false, 1.0f}}) {
        SCOPED_TRACE(centred ? "layer norm" : "RMS norm");
        Array dw({C}), db({C});
        const View bias = centred ? b.view() : View(), mean = centred ? means.view() : View();
        const auto forward = [&, offset = offset] {
            table.norm_forward(stream,
                               {x.view(), w.view(), bias, 1e-2f, y.view(), mean, rstd.view(), View(), View(), offset});
        };
        forward();
        table.norm_backward_input(stream,
                                  {dy.view(), x.view(), w.view(), mean, rstd.view(), dx.view(), View(), offset});
        table.norm_backward_weight(stream, dy.view(), x.view(), mean, rstd.view(), dw.view(),
                                   centred ? db.view() : View());
        expect_gradient("dx", x, dx, dy, y, C, forward);
        expect_gradient("dw", w, dw, dy, y, C, forward);
        if (centred) expect_gradient("db", b, db, dy, y, C, forward);
    }
}

// L = sum dy y + sum ds s, of s = x + residual and y = norm(s): what comes back through s is what the norm adds to.
TEST_F(Gradient, NormsOfASum) {
    const int64_t N = 4, C = 7;
    Array x = random({N, C}, "x"), residual = random({N, C}, "residual"), w = random({C}, "w"), b = random({C}, "b");
    Array gradients = random({2, N, C}, "dy and ds"), outputs({2, N, C}), means({N}), rstd({N}), dx({N, C});
    const auto half = [&](Array& both, int64_t i) { return View(&both[i * N * C], DType::f64, {N, C}); };
    const View y = half(outputs, 0), s = half(outputs, 1), dy = half(gradients, 0), ds = half(gradients, 1);
    for (const bool centred : {true, false}) {
        SCOPED_TRACE(centred ? "layer norm" : "RMS norm");
        const View bias = centred ? b.view() : View(), mean = centred ? means.view() : View();
        const auto forward = [&] {
            table.norm_forward(stream, {x.view(), w.view(), bias, 1e-2f, y, mean, rstd.view(), residual.view(), s});
        };
        forward();
        table.norm_backward_input(stream, {dy, s, w.view(), mean, rstd.view(), dx.view(), ds});
        expect_gradient("dx", x, dx, gradients, outputs, C, forward);
    }
}

// L = sum dout o + sum dafter S, with a document that begins between the first and the last token; of the rule and of
// the scan.
TEST_F(Gradient, DeltaRule) {
    for (const bool corrects : {true, false}) {
        SCOPED_TRACE(corrects ? "rule" : "scan");
        const int64_t B = 2, T = 5, Hk = 2, Hv = 4, Dk = 3, Dv = 2, tokens = B * T * Hv * Dv, states = B * Hv * Dk * Dv;
        Array query = random({B, T, Hk, Dk}, "query"), key = random({B, T, Hk, Dk}, "key");
        Array value = random({B, T, Hv, Dv}, "value"), g = random({B, T, Hv}, "g"), b = random({B, T, Hv}, "b");
        Array before = random({B, Hv, Dk, Dv}, "before"), outputs({tokens + states}), skip = random({Hv}, "skip");
        Array dskip(skip.shape);
        Array gradients = random({tokens + states}, "gradients"), dquery(query.shape), dkey(key.shape),
              dvalue(value.shape);
        Array dg(g.shape), db(b.shape), dbefore(before.shape);
        for (double& v : g.values) v = -std::abs(v);
        std::vector<int32_t> positions = {4, 5, 6, 0, 1, 9, 0, 1, 2, 3};
        const auto first = [&](Array& both) { return View(both.values.data(), DType::f64, {B, T, Hv, Dv}); };
        const auto second = [&](Array& both) { return View(&both[tokens], DType::f64, {B, Hv, Dk, Dv}); };
        const DeltaRule f{.corrects = corrects,
                          .query = query.view(),
                          .key = key.view(),
                          .value = value.view(),
                          .g = g.view(),
                          .b = b.view(),
                          .skip = corrects ? View() : skip.view(),
                          .positions = View(positions.data(), DType::i32, {B, T}),
                          .before = before.view()};
        const auto forward = [&] { table.delta_rule_forward(stream, f, first(outputs), second(outputs)); };
        table.delta_rule_backward(stream, f,
                                  {.dout = first(gradients),
                                   .after = second(gradients),
                                   .dquery = dquery.view(),
                                   .dkey = dkey.view(),
                                   .dvalue = dvalue.view(),
                                   .dg = dg.view(),
                                   .db = db.view(),
                                   .dbefore = dbefore.view()});
        expect_gradient("dquery", query, dquery, gradients, outputs, 20, forward);
        expect_gradient("dkey", key, dkey, gradients, outputs, 20, forward);
        expect_gradient("dvalue", value, dvalue, gradients, outputs, 20, forward);
        expect_gradient("dg", g, dg, gradients, outputs, 20, forward);
        expect_gradient("db", b, db, gradients, outputs, 20, forward);
        expect_gradient("dbefore", before, dbefore, gradients, outputs, 20, forward);
        if (corrects) continue;
        table.delta_rule_backward_skip(stream, first(gradients), value.view(), dskip.view());
        expect_gradient("dskip", skip, dskip, gradients, outputs, 20, forward);
    }
}

// RMS norm of three groups, each with weights of its own.
TEST_F(Gradient, NormOfGroups) {
    const int64_t N = 6, C = 4;
    Array x = random({N, C}, "x"), w = random({3 * C}, "w"), dy = random({N, C}, "dy"), y({N, C}), rstd({N}),
          dx({N, C});
    Array dw(w.shape);
    const auto forward = [&] {
        table.norm_forward(stream, {x.view(), w.view(), {}, 1e-2f, y.view(), {}, rstd.view(), {}, {}});
    };
    forward();
    table.norm_backward_input(stream, {dy.view(), x.view(), w.view(), {}, rstd.view(), dx.view(), {}});
    table.norm_backward_weight(stream, dy.view(), x.view(), {}, rstd.view(), dw.view(), {});
    expect_gradient("dx", x, dx, dy, y, C, forward);
    expect_gradient("dw", w, dw, dy, y, N, forward);
}

// g and dt; the first steps are cut.
TEST_F(Gradient, DecayWithSteps) {
    const int64_t N = 4, H = 3;
    Array x = random({N, H}, "x"), a_log = random({H}, "a_log"), dt_bias = random({H}, "dt_bias"), both({2, N, H});
    Array d = random({2, N, H}, "d"), dx(x.shape), da_log(a_log.shape), ddt_bias(dt_bias.shape);
    x[0] = 30, x[1] = -30;
    const auto half = [&](Array& all, int64_t i) { return View(&all[i * N * H], DType::f64, {N, H}); };
    const Decay f{x.view(), a_log.view(), dt_bias.view(), {0.01F, 5}};
    const auto forward = [&] { table.decay_forward(stream, f, half(both, 0), half(both, 1)); };
    table.decay_backward_input(stream, f, half(d, 0), half(d, 1), dx.view());
    table.decay_backward_weight(stream, f, half(d, 0), half(d, 1), da_log.view(), ddt_bias.view());
    expect_gradient("dx", x, dx, d, both, 3, forward);
    expect_gradient("da_log", a_log, da_log, d, both, 3, forward);
    expect_gradient("ddt_bias", dt_bias, ddt_bias, d, both, 3, forward);
}

TEST_F(Gradient, Decay) {
    const int64_t N = 4, H = 3;
    Array x = random({N, H}, "x"), a_log = random({H}, "a_log"), dt_bias = random({H}, "dt_bias");
    Array dg = random({N, H}, "dg"), g(x.shape), dx(x.shape), da_log(a_log.shape), ddt_bias(dt_bias.shape);
    x[0] = 30, x[1] = -30;
    const Decay f{x.view(), a_log.view(), dt_bias.view()};
    const auto forward = [&] { table.decay_forward(stream, f, g.view(), {}); };
    table.decay_backward_input(stream, f, dg.view(), {}, dx.view());
    table.decay_backward_weight(stream, f, dg.view(), {}, da_log.view(), ddt_bias.view());
    expect_gradient("dx", x, dx, dg, g, 3, forward);
    expect_gradient("da_log", a_log, da_log, dg, g, 3, forward);
    expect_gradient("ddt_bias", dt_bias, ddt_bias, dg, g, 3, forward);
}

// L = sum dz z + sum after state: what comes back through u of the last tokens is what later ones add.
TEST_F(Gradient, ShortConvolution) {
    const int64_t B = 2, T = 5, C = 3, K = 4, tokens = B * T * C, halo = B * (K - 1) * C;
    Array b = random({B, T, C}, "b"), c = random({B, T, C}, "c"), x = random({B, T, C}, "x"), w = random({C, K}, "w");
    Array bias = random({C}, "bias"), before = random({B, K - 1, C}, "before"), outputs({tokens + halo});
    Array gradients = random({tokens + halo}, "dz and after"), db(b.shape), dc(c.shape), dx(x.shape), dw(w.shape);
    Array dbias(bias.shape), dbefore(before.shape);
    const auto first = [&](Array& both) { return View(both.values.data(), DType::f64, {B, T, C}); };
    const auto second = [&](Array& both) { return View(&both[tokens], DType::f64, {B, K - 1, C}); };
    const auto last = [&](Array& all) {
        View rows = all.view();
        rows.data = &all[(T - (K - 1)) * C];
        rows.shape[1] = K - 1;
        return rows;
    };
    std::vector<int32_t> positions = {2, 3, 4, 5, 6, 9, 10, 0, 1, 2};  // in the second sequence a document begins
    const ShortConvolution f{.b = b.view(),
                             .c = c.view(),
                             .x = x.view(),
                             .w = w.view(),
                             .bias = bias.view(),
                             .positions = View(positions.data(), DType::i32, {B, T}),
                             .before = before.view()};
    const auto forward = [&] {
        table.short_convolution_forward(stream, f, first(outputs));
        table.short_convolution_state(stream, last(b), last(x), before.view(), second(outputs));
    };
    table.short_convolution_backward_input(
        stream, f,
        {.dz = first(gradients), .db = db.view(), .dc = dc.view(), .dx = dx.view(), .after = second(gradients)});
    table.short_convolution_backward_before(stream, f, first(gradients), dbefore.view());
    table.short_convolution_backward_weight(stream, f, first(gradients), dw.view(), dbias.view());
    expect_gradient("db", b, db, gradients, outputs, K, forward);
    expect_gradient("dc", c, dc, gradients, outputs, K, forward);
    expect_gradient("dx", x, dx, gradients, outputs, K, forward);
    expect_gradient("dw", w, dw, gradients, outputs, K, forward);
    expect_gradient("dbias", bias, dbias, gradients, outputs, K, forward);
    expect_gradient("dbefore", before, dbefore, gradients, outputs, K, forward);
}

TEST_F(Gradient, RopeInverse) {
    const int64_t N = 4, H = 2, D = 6, P = 5;
    Array x = random({N, H, D}, "x"), dy = random({N, H, D}, "dy"), y({N, H, D}), dx({N, H, D});
    Array cosines({P, D / 2}), sines({P, D / 2});
    for (int64_t i = 0; i < cosines.size(); ++i) cosines[i] = std::cos(0.3 * i), sines[i] = std::sin(0.3 * i);
    std::vector<int32_t> positions = {3, 0, 4, 1};
    const View at(positions.data(), DType::i32, {N});
    for (const bool adjacent : {false, true}) {
        dx = dy;
        table.rope(stream, dx.view(), at, cosines.view(), sines.view(), true, adjacent);
        expect_gradient("dx", x, dx, dy, y, 2, [&] {
            y = x;
            table.rope(stream, y.view(), at, cosines.view(), sines.view(), false, adjacent);
        });
    }
}

struct AttentionSizes {
    const char* name;
    int64_t B, Tq, Tk, H, Hkv, D;
    bool causal;
    int64_t query_offset;
    int64_t window = 0;
    std::vector<int32_t> first_key = {};  // (B, Tq)
    float cap = 0;
    int64_t Dv = D;
};

class AttentionGradient : public Gradient, public testing::WithParamInterface<AttentionSizes> {};

TEST_P(AttentionGradient, OfQueryKeyAndValue) {
    auto [name, B, Tq, Tk, H, Hkv, D, causal, query_offset, window, first_key, cap, Dv] = GetParam();
    const View documents = first_key.empty() ? View() : View(first_key.data(), DType::i32, {B, Tq});
    Array q = random({B, Tq, H, D}, "q"), k = random({B, Tk, Hkv, D}, "k"), v = random({B, Tk, Hkv, Dv}, "v");
    Array o({B, Tq, H, Dv}), lse({B, H, Tq}), dy = random(o.shape, "dy"), dq(q.shape), dk(k.shape), dv(v.shape);
    const AttentionMask mask{.causal = causal, .query_offset = query_offset, .window = window, .first_key = documents};
    const auto forward = [&] {
        table.attention_forward(stream, {.q = q.view(),
                                         .k = k.view(),
                                         .v = v.view(),
                                         .o = o.view(),
                                         .lse = lse.view(),
                                         .scale = 0.5f,
                                         .cap = cap,
                                         .mask = mask});
    };
    forward();
    table.attention_backward(stream, {.q = q.view(),
                                      .k = k.view(),
                                      .v = v.view(),
                                      .o = o.view(),
                                      .lse = lse.view(),
                                      .dy = dy.view(),
                                      .dq = dq.view(),
                                      .dk = dk.view(),
                                      .dv = dv.view(),
                                      .scale = 0.5f,
                                      .cap = cap,
                                      .mask = mask});
    expect_gradient("dq", q, dq, dy, o, D + Tk, forward);
    expect_gradient("dk", k, dk, dy, o, D + Tk, forward);
    expect_gradient("dv", v, dv, dy, o, D + Tk, forward);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, AttentionGradient,
    testing::Values(AttentionSizes{"causal", 2, 4, 4, 2, 2, 3, true, 0},
                    AttentionSizes{"all_keys", 1, 3, 5, 2, 2, 4, false, 0},
                    AttentionSizes{"grouped_queries", 2, 4, 4, 4, 2, 3, true, 0},
                    AttentionSizes{"later_queries_one_kv_head", 1, 3, 5, 3, 1, 2, true, 2},
                    AttentionSizes{"queries_that_see_no_key", 1, 4, 3, 1, 1, 2, true, -2},
                    AttentionSizes{"window", 1, 5, 5, 2, 1, 3, true, 0, 2},
                    AttentionSizes{"documents", 2, 4, 4, 1, 1, 3, true, 0, 0, {0, 0, 2, 3, 0, 1, 2, 2}},
                    AttentionSizes{"documents_and_window", 1, 5, 5, 1, 1, 3, true, 0, 2, {0, 0, 0, 3, 3}},
                    AttentionSizes{"capped_scores", 1, 5, 5, 2, 1, 3, true, 0, 3, {}, 0.5f},
                    AttentionSizes{"short_values", 2, 4, 4, 2, 2, 5, true, 0, 0, {}, 0, 3}),
    [](const auto& form) { return form.param.name; });

TEST_F(Gradient, CrossEntropy) {
    const int64_t N = 4, V = 7, vocab = 5;
    Array logits = random({N, V}, "x"), losses({N}), dlogits(logits.shape), dy({N});
    for (double& d : dy.values) d = 0.25;  // grad_scale is the same for all rows
    std::vector<int32_t> targets = {4, 0, -100, 2};
    const View target_view(targets.data(), DType::i32, {N});
    dlogits.values = logits.values;
    table.cross_entropy(stream, {.logits = dlogits.view(),
                                 .targets = target_view,
                                 .losses = losses.view(),
                                 .vocab = vocab,
                                 .grad_scale = 0.25f,
                                 .gradient = true});
    expect_gradient("dlogits", logits, dlogits, dy, losses, V, [&] {
        table.cross_entropy(stream,
                            {.logits = logits.view(), .targets = target_view, .losses = losses.view(), .vocab = vocab});
    });
}

// Through a cap: the table's gradient is that of z, where the logits are cap tanh(z / cap).
TEST_F(Gradient, CappedCrossEntropy) {
    const int64_t N = 4, V = 7, vocab = 5;
    const float cap = 0.8f;
    Array z = random({N, V}, "x"), capped(z.shape), losses({N}), dz(z.shape), dy({N});
    for (double& d : dy.values) d = 0.25;
    std::vector<int32_t> targets = {4, 0, -100, 2};
    const View target_view(targets.data(), DType::i32, {N});
    dz.values = z.values;
    table.soft_cap(stream, dz.view(), cap);
    for (int64_t i = 0; i < z.size(); ++i) EXPECT_NEAR(dz[i], cap * std::tanh(z[i] / cap), 1e-15);
    table.cross_entropy(stream, {.logits = dz.view(),
                                 .targets = target_view,
                                 .losses = losses.view(),
                                 .vocab = vocab,
                                 .grad_scale = 0.25f,
                                 .gradient = true,
                                 .cap = cap});
    expect_gradient("dz", z, dz, dy, losses, V, [&] {
        capped.values = z.values;
        table.soft_cap(stream, capped.view(), cap);
        table.cross_entropy(stream,
                            {.logits = capped.view(), .targets = target_view, .losses = losses.view(), .vocab = vocab});
    });
}

TEST_F(Gradient, SquaredError) {
    const int64_t N = 3, C = 5;
    Array x = random({N, C}, "x"), target = random({N, C}, "target"), losses({N}), dx({N, C}), dy({N});
    for (double& d : dy.values) d = 0.5;
    table.squared_error(stream, x.view(), target.view(), 0.5f, losses.view(), dx.view());
    expect_gradient("dx", x, dx, dy, losses, C,
                    [&] { table.squared_error(stream, x.view(), target.view(), 1, losses.view(), View()); });
}

// y = x w^T + b, the linear layer: dx = dy w, dw += dy^T x, db += sum of rows of dy.
TEST_F(Gradient, LinearLayer) {
    const int64_t M = 4, N = 3, K = 5;
    Array x = random({M, K}, "x"), w = random({N, K}, "w"), bias = random({N}, "b"), dy = random({M, N}, "dy");
    Array y({M, N}), dx({M, K}), dw({N, K}), db({N});
    const auto forward = [&] {
        table.gemm(stream, {.a = x.view(), .b = w.view(), .c = y.view(), .transpose_b = true, .bias = bias.view()});
    };
    table.gemm(stream, {.a = dy.view(), .b = w.view(), .c = dx.view()});
    table.gemm(stream, {.a = dy.view(), .b = x.view(), .c = dw.view(), .transpose_a = true, .accumulate = true});
    table.bias_backward(stream, dy.view(), db.view());
    expect_gradient("dx", x, dx, dy, y, K, forward);
    expect_gradient("dw", w, dw, dy, y, K, forward);
    expect_gradient("db", bias, db, dy, y, K, forward);
}

// y = x w (GPT-2 stores its weights so): dx = dy w^T, dw += x^T dy. And y = x^T w^T: dx = w^T dy^T, dw += dy^T x^T.
TEST_F(Gradient, OtherProducts) {
    const int64_t M = 4, N = 3, K = 5;
    Array x = random({M, K}, "x"), w = random({K, N}, "w"), dy = random({M, N}, "dy"), y({M, N}), dx({M, K}),
          dw({K, N});
    table.gemm(stream, {.a = dy.view(), .b = w.view(), .c = dx.view(), .transpose_b = true});
    table.gemm(stream, {.a = x.view(), .b = dy.view(), .c = dw.view(), .transpose_a = true, .accumulate = true});
    const auto plain = [&] { table.gemm(stream, {.a = x.view(), .b = w.view(), .c = y.view()}); };
    expect_gradient("dx", x, dx, dy, y, K, plain);
    expect_gradient("dw", w, dw, dy, y, K, plain);

    Array xt = random({K, M}, "xt"), wt = random({N, K}, "wt"), dxt({K, M}), dwt({N, K});
    table.gemm(stream, {.a = wt.view(), .b = dy.view(), .c = dxt.view(), .transpose_a = true, .transpose_b = true});
    table.gemm(stream, {.a = dy.view(), .b = xt.view(), .c = dwt.view(), .transpose_a = true, .transpose_b = true});
    const auto both = [&] {
        table.gemm(stream, {.a = xt.view(), .b = wt.view(), .c = y.view(), .transpose_a = true, .transpose_b = true});
    };
    expect_gradient("dxt", xt, dxt, dy, y, K, both);
    expect_gradient("dwt", wt, dwt, dy, y, K, both);
}

// L = sum dweights weights + sum D shares + z_scale sum log_sum^2, where rows of a segment have one D.
struct RoutingSizes {
    const char* name;
    int64_t k;
    bool sigmoid, normalise;
    int64_t groups, chosen_groups, group_best;
    bool shares, segments;
    float z_scale;
};
class RoutingGradient : public Gradient, public testing::WithParamInterface<RoutingSizes> {};

TEST_P(RoutingGradient, AllForms) {
    const RoutingSizes s = GetParam();
    const int64_t N = 5, E = 6, k = s.k;
    Array logits = random({N, E}, "logits"), bias = random({E}, "bias"), weights({N, k}), entropy({N}), log_sum({N});
    Array shares({N, E}), dweights = random({N, k}, "dweights"), D = random({3, E}, "D"), dlogits({N, E});
    std::vector<int32_t> experts(static_cast<size_t>(N * k)), segments = {2, 0, 0, 1, 2};
    if (!s.segments) std::fill(segments.begin(), segments.end(), 0);
    const View segment_view(segments.data(), DType::i32, {N});
    const Routing routing{.logits = logits.view(),
                          .bias = bias.view(),
                          .sigmoid = s.sigmoid,
                          .groups = s.groups,
                          .chosen_groups = s.chosen_groups,
                          .group_best = s.group_best,
                          .normalise = s.normalise,
                          .epsilon = 0.125f,
                          .scale = 1.5f,
                          .experts = View(experts.data(), DType::i32, {N, k}),
                          .weights = weights.view(),
                          .shares = shares.view(),
                          .entropy = entropy.view(),
                          .log_sum = log_sum.view()};
    Array y({N * (k + E + 1)}), dy(y.shape);  // weights, shares and log_sum^2
    for (int64_t i = 0; i < N * k; ++i) dy[i] = dweights[i];
    for (int64_t i = 0; s.shares && i < N * E; ++i) dy[N * k + i] = D[segments[static_cast<size_t>(i / E)] * E + i % E];
    for (int64_t n = 0; n < N; ++n) dy[N * (k + E) + n] = s.z_scale;
    const auto forward = [&] {
        table.route(stream, routing);
        for (int64_t i = 0; i < N * k; ++i) y[i] = weights[i];
        for (int64_t i = 0; i < N * E; ++i) y[N * k + i] = shares[i];
        for (int64_t n = 0; n < N; ++n) y[N * (k + E) + n] = log_sum[n] * log_sum[n];
    };
    forward();
    table.route_backward(stream, {.forward = routing,
                                  .dweights = dweights.view(),
                                  .dshares = s.shares ? D.view() : View(),
                                  .segments = s.segments ? segment_view : View(),
                                  .z_scale = s.z_scale,
                                  .dlogits = dlogits.view()});
    expect_gradient("dlogits", logits, dlogits, dy, y, 4 * E, forward);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, RoutingGradient,
    testing::Values(RoutingSizes{"softmax", 2, false, false, 1, 1, 1, false, false, 0},
                    RoutingSizes{"softmax_normalised", 2, false, true, 1, 1, 1, false, false, 0},
                    RoutingSizes{"sigmoid", 3, true, false, 1, 1, 1, false, false, 0},
                    RoutingSizes{"sigmoid_normalised", 3, true, true, 1, 1, 1, false, false, 0},
                    RoutingSizes{"softmax_shares", 2, false, true, 1, 1, 1, true, false, 0},
                    RoutingSizes{"sigmoid_shares", 2, true, true, 1, 1, 1, true, false, 0},
                    RoutingSizes{"one_expert_by_segments", 1, false, false, 1, 1, 1, true, true, 0.25f},
                    RoutingSizes{"sigmoid_by_segments", 2, true, false, 1, 1, 1, true, true, 0.25f},
                    RoutingSizes{"groups", 2, false, true, 3, 2, 1, true, true, 0.25f},
                    RoutingSizes{"sigmoid_groups", 2, true, true, 2, 1, 1, true, true, 0.5f},
                    RoutingSizes{"all_experts", 6, false, true, 1, 1, 1, true, true, 0},
                    RoutingSizes{"sigmoid_groups_by_their_best_two", 3, true, true, 3, 2, 2, true, true, 0}),
    [](const auto& form) { return form.param.name; });

TEST_F(Gradient, CombineRows) {
    const int64_t M = 7, N = 3, k = 2, C = 4;
    Array x = random({M, C}, "x"), weights = random({N, k}, "weights"), dy = random({N, C}, "dy"), y({N, C});
    Array dx({M, C}), dweights({N, k});
    std::vector<int32_t> row = {5, 0, -1, 3, 6, -4};
    const View rows(row.data(), DType::i32, {N, k});
    const auto forward = [&] { table.combine_rows(stream, x.view(), rows, weights.view(), y.view()); };
    table.combine_rows_backward(stream, dy.view(), x.view(), rows, weights.view(), dx.view(), dweights.view());
    expect_gradient("dx", x, dx, dy, y, k, forward);
    expect_gradient("dweights", weights, dweights, dy, y, k, forward);
}

// The linear layers of three experts, one of them without rows.
TEST_F(Gradient, GroupedProducts) {
    const int64_t M = 5, N = 3, K = 4, E = 3;
    Array x = random({M, K}, "x"), w = random({E, N, K}, "w"), dy = random({M, N}, "dy"), y({M, N}), dx({M, K});
    Array dw({E, N, K});
    const std::vector<int64_t> rows = {2, 0, 3};
    const auto multiply = [&](const Gemm& all) { table.grouped_gemm(stream, {.all = all, .rows = rows}); };
    const auto forward = [&] { multiply({.a = x.view(), .b = w.view(), .c = y.view(), .transpose_b = true}); };
    multiply({.a = dy.view(), .b = w.view(), .c = dx.view()});
    multiply({.a = dy.view(), .b = x.view(), .c = dw.view(), .transpose_a = true, .accumulate = true});
    expect_gradient("dx", x, dx, dy, y, K, forward);
    expect_gradient("dw", w, dw, dy, y, K, forward);
}

}  // namespace
}  // namespace tutti::kernels
