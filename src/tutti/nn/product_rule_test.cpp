// Product rules. Factors that are powers of two change no other bit of a product, so the factor of each result says
// which operands its product read; a low-rank term is compared with the weight that it is merged into.
#include "tutti/nn/product_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/mixture.h"
#include "tutti/nn/quantized.h"

namespace tutti::nn::product_rule_test {
namespace {

using ops::GemmRole;
using ops::Operand;

constexpr int64_t kB = 2, kT = 3, kC = 8, kF = 12, kE = 4;

using Values = std::map<std::string, std::vector<float>>;

Tensor random(ops::Context& ctx, const Shape& shape, const std::string& name) {
    std::vector<float> values(to_size(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = normal(random_key(7, name), i);
    return Tensor::from_host<float>(ctx.device, shape, values, Purpose::activations);
}

Tensor times(ops::Context& ctx, const Tensor& x, float factor) {
    const Tensor y = ops::cast(ctx, x, x.dtype());
    ops::scale(ctx, y, factor);
    return y;
}

// Every operand times a factor of its role.
class Factors final : public ProductRule {
  public:
    Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override {
        return times(ctx, x, use.role == GemmRole::forward ? 0.5f : 8);
    }
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        return w.forms.kept(ctx, use.role,
                            [&] { return Operand(times(ctx, w.value, use.role == GemmRole::forward ? 2 : 4)); });
    }
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override {
        return times(ctx, dy, use.role == GemmRole::input_gradient ? 16 : 32);
    }
};

// The weights of the layers below, and what is computed of them.
struct Layers {
    Layers(ops::Context& ctx, const std::shared_ptr<const ProductRule>& rule) : ctx_(ctx) {
        for (const char* name : {"a", "b"}) add(name, {kF, kC}, Role::column, rule);
        add("down", {kC, kF}, Role::row, rule);
        for (const char* name : {"gate", "up"}) add(name, {kE, kF, kC}, Role::expert_column, rule);
        add("experts", {kE, kC, kF}, Role::expert_row, rule);
        add("router", {kE, kC}, Role::router, {});
    }
    Affine operator[](const char* name) { return {parameters_.at(name), nullptr}; }

    // The outputs, and the gradients of x and of the weights that were used.
    Values run(const std::function<std::vector<Var>(Tape&, const Var&)>& forward, bool selective = false) {
        Tape tape(ctx_, true);
        tape.set_selective(selective);
        const Var x = tape.input(random(ctx_, {kB, kT, kC}, "x"));
        Values values;
        const std::vector<Var> y = forward(tape, x);
        Var sum = y[0];
        for (size_t i = 0; i < y.size(); ++i) {
            values[concat("y", i)] = y[i].value.to_host<float>();
            if (i > 0) sum = nn::add(tape, sum, y[i]);
        }
        tape.backward(sum, random(ctx_, sum.value.shape(), "dy"));
        values["x"] = tape.take_gradient(x).to_host<float>();
        for (auto& [name, p] : parameters_) values[name] = p.gradient.to_host<float>();
        return values;
    }

  private:
    void add(const std::string& name, const Shape& shape, Role role, const std::shared_ptr<const ProductRule>& rule) {
        Parameter& p = parameters_[name];
        p = {.name = name, .shape = shape, .role = role, .init = {.std = 0.4}, .rule = rule};
        autograd::materialize(ctx_, p, DType::f32, 3, true);
    }
    ops::Context& ctx_;
    std::map<std::string, Parameter> parameters_;
};

void expect_factors(const Values& plain, const Values& ruled, const std::map<std::string, float>& factors) {
    for (const auto& [name, factor] : factors) {
        const std::vector<float>&expected = plain.at(name), &values = ruled.at(name);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NE(expected[i], 0) << name << ' ' << i;
            ASSERT_EQ(values[i], factor * expected[i]) << name << ' ' << i;
        }
    }
}

// Runs `forward` of layers with the plain rule and with Factors, with fused projections and without, with forms of
// weights kept and not, and with selective recompute and without.
void expect_factors(const std::function<std::vector<Var>(Layers&, Tape&, const Var&)>& forward,
                    const std::map<std::string, float>& factors) {
    const auto device = make_cpu_device(2);
    for (const bool fused : {false, true})
        for (const bool keeps : {false, true})
            for (const bool selective : {false, true}) {
                SCOPED_TRACE(concat("fused ", fused, ", forms ", keeps, ", selective ", selective));
                kernels::KernelTable table = kernels::cpu_table(kernels::best_isa());
                table.fused_projections = fused;
                ops::Context ctx{*device, table};
                Layers plain(ctx, nullptr), ruled(ctx, std::make_shared<Factors>());
                const ops::KeepForms forms(ctx, keeps);
                expect_factors(plain.run([&](Tape& t, const Var& x) { return forward(plain, t, x); }, selective),
                               ruled.run([&](Tape& t, const Var& x) { return forward(ruled, t, x); }, selective),
                               factors);
            }
}

constexpr float kForward = 0.5f * 2, kInput = 16 * 4, kWeight = 32 * 8;

TEST(ProductRule, OfALinearLayerMakesEveryOperand) {
    expect_factors([](Layers& l, Tape& t, const Var& x) { return std::vector{linear(t, x, l["a"])}; },
                   {{"y0", kForward}, {"x", kInput}, {"a", kWeight}});
}

TEST(ProductRule, OfProjectionsMakesEveryOperand) {
    expect_factors(
        [](Layers& l, Tape& t, const Var& x) {
            return projections(t, x, {l["a"], l["b"]});
        },
        {{"y0", kForward}, {"y1", kForward}, {"x", kInput}, {"a", kWeight}, {"b", kWeight}});
    expect_factors(
        [](Layers& l, Tape& t, const Var& x) {
            return std::vector{fused_projections(t, x, {l["a"], l["b"]})};
        },
        {{"y0", kForward}, {"x", kInput}, {"a", kWeight}, {"b", kWeight}});
}

// The gradient that reaches the first layers has passed the input gradient of the last.
TEST(ProductRule, OfAnMlpMakesEveryOperand) {
    expect_factors([](Layers& l, Tape& t, const Var& x) { return std::vector{gelu_mlp(t, x, l["a"], l["down"])}; },
                   {{"y0", kForward}, {"x", kInput * kInput}, {"a", kInput * kWeight}, {"down", kWeight}});
    expect_factors(
        [](Layers& l, Tape& t, const Var& x) { return std::vector{swiglu_mlp(t, x, l["a"], l["b"], l["down"])}; },
        {{"y0", kForward},
         {"x", kInput * kInput},
         {"a", kInput * kWeight},
         {"b", kInput * kWeight},
         {"down", kWeight}});
}

// All experts take every token, so that no gradient is zero. The router multiplies plainly; x has its gradient too.
TEST(ProductRule, OfExpertsMakesEveryOperand) {
    const spec::MixtureSpec s{.experts = kE, .top_k = kE, .ffn = kF};
    const auto device = make_cpu_device(2);
    const auto forward = [&](Layers& l, Tape& t, const Var& x) {
        const MixtureLayer layer{.spec = s,
                                 .router = l["router"],
                                 .expert_bias = nullptr,
                                 .gate = l["gate"],
                                 .up = l["up"],
                                 .down = l["experts"]};
        const Batch batch = make_batch(*device, std::vector<int32_t>(kB * (kT + 1), 1), kB, 0);
        return std::vector{mixture(t, x, layer, batch)};
    };
    expect_factors(
        forward,
        {{"y0", kForward}, {"router", 1}, {"gate", kInput * kWeight}, {"up", kInput * kWeight}, {"experts", kWeight}});
}

// A rule that keeps no form of a weight makes one for every product; one that keeps forms makes one for every role,
// and another when the weight has changed.
TEST(ProductRule, FormsOfWeightsAreMadeOnceUntilTheUpdate) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    Layers l(ctx, std::make_shared<Factors>());
    Parameter& w = l["a"].weight;
    const auto values = [&](GemmRole role) { return rule_of(w).weight(ctx, w, {role}).values; };
    const Tensor once = values(GemmRole::forward);
    EXPECT_NE(values(GemmRole::forward).buffer(), once.buffer());
    Tensor kept, kept_backward;
    {
        const ops::KeepForms forms(ctx, true);
        kept = values(GemmRole::forward), kept_backward = values(GemmRole::input_gradient);
        EXPECT_EQ(values(GemmRole::forward).buffer(), kept.buffer());
        EXPECT_EQ(values(GemmRole::input_gradient).buffer(), kept_backward.buffer());
        EXPECT_NE(kept.buffer(), kept_backward.buffer());
    }
    ops::scale(ctx, w.value, 2);
    const ops::KeepForms forms(ctx, true);
    EXPECT_EQ(values(GemmRole::forward).to_host<float>(), times(ctx, kept, 2).to_host<float>());
}

// So are weights that are packed for the CPU's products: in f32 on AVX2 for y and dx.
TEST(ProductRule, PackedWeightsAreMadeOnceUntilTheUpdate) {
    constexpr int64_t kRows = 96, kSize = 128;
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::Isa::avx2)};
    ctx.packing = ops::Packing::always;
    const Tensor x = random(ctx, {kRows, kSize}, "x"), w = random(ctx, {kSize, kSize}, "w");
    ops::WeightForms forms;
    const auto products = [&](ops::WeightForms* of) {
        const Operand weight(w, of);
        return std::pair{ops::linear(ctx, x, weight, nullptr).to_host<float>(),
                         ops::linear_backward_input(ctx, x, weight).to_host<float>()};
    };
    const auto expect_those_of_the_weight = [&] {
        const auto expected = products(nullptr);
        for (int microbatch = 0; microbatch < 2; ++microbatch) EXPECT_EQ(products(&forms), expected);
    };
    const int64_t before = device->memory().total().current;
    {
        const ops::KeepForms keep(ctx, true);
        expect_those_of_the_weight();
    }
    EXPECT_EQ(device->memory().total().current - before, 2 * kSize * kSize * size_of(DType::f32));
    ops::scale(ctx, w, 2);
    expect_those_of_the_weight();
    const ops::KeepForms keep(ctx, true);
    expect_those_of_the_weight();
}

// y + x a^T b^T, without gradients of a and b. Counts its terms.
class LowRank final : public ProductRule {
  public:
    LowRank(ops::Context& ctx, int64_t in, int64_t out)
        : a(random(ctx, {2, in}, "low rank a")), b(random(ctx, {out, 2}, "low rank b")) {}
    Var after(Tape& tape, const Var& x, Var y, const Affine&) const override {
        ++terms;
        ops::Context& ctx = tape.context();
        const Tensor term = ops::linear(ctx, ops::linear(ctx, x.value, a, nullptr), b, nullptr);
        const Var low = tape.record("low rank", {x}, term, [&ctx, this](const Tensor& dy, std::vector<Tensor>&) {
            return std::vector{ops::linear_backward_input(ctx, ops::linear_backward_input(ctx, dy, b), a)};
        });
        return nn::add(tape, y, low);
    }
    bool adds() const override { return true; }
    Tensor a, b;
    mutable int terms = 0;
};

TEST(ProductRule, AddsATermToEveryLayer) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const std::function<std::vector<Var>(Layers&, Tape&, const Var&)> forwards[] = {
        [](Layers& l, Tape& t, const Var& x) {
            return projections(t, x, {l["a"], l["b"]});
        },
        [](Layers& l, Tape& t, const Var& x) { return std::vector{linear(t, linear(t, x, l["a"]), l["down"])}; },
        [](Layers& l, Tape& t, const Var& x) { return std::vector{gelu_mlp(t, x, l["a"], l["down"])}; },
        [](Layers& l, Tape& t, const Var& x) { return std::vector{swiglu_mlp(t, x, l["a"], l["b"], l["down"])}; }};
    const int terms[] = {2, 2, 2, 3};
    for (size_t i = 0; i < std::size(forwards); ++i)
        for (const bool selective : {false, true}) {
            const auto wide = std::make_shared<LowRank>(ctx, kC, kF), narrow = std::make_shared<LowRank>(ctx, kF, kC);
            Layers merged(ctx, nullptr), ruled(ctx, nullptr);
            for (const auto& [name, rule] : {std::pair{"a", wide}, {"b", wide}, {"down", narrow}}) {
                ruled[name].weight.rule = rule;
                const Tensor product = ops::linear_backward_input(ctx, rule->b, rule->a);  // b a
                ops::accumulate(ctx, product, merged[name].weight.value);
            }
            const Values expected =
                merged.run([&](Tape& t, const Var& x) { return forwards[i](merged, t, x); }, selective);
            const Values values = ruled.run([&](Tape& t, const Var& x) { return forwards[i](ruled, t, x); }, selective);
            EXPECT_EQ(wide->terms + narrow->terms, terms[i]);
            for (const auto& [name, of] : expected) {
                double difference = 0, norm = 0;
                for (size_t k = 0; k < of.size(); ++k) {
                    difference += std::pow(of[k] - values.at(name)[k], 2);
                    norm += std::pow(of[k], 2);
                }
                // Sums of up to 14 terms in another order, through three products: some 10 roundings of 2^-24.
                EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << name << " of " << i;
            }
        }
}

TEST(ProductRule, SaysWhatItCannotDo) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    Layers l(ctx, std::make_shared<LowRank>(ctx, kC, kF));
    const auto says = [&](const char* text, const auto& f) {
        try {
            l.run([&](Tape& t, const Var& x) { return std::vector<Var>{f(t, x)}; });
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
    };
    says("need one product rule, which adds no term", [&](Tape& t, const Var& x) {
        return fused_projections(t, x, {l["a"], l["b"]});
    });
    const spec::MixtureSpec s{.experts = kE, .top_k = 1, .ffn = kF};
    says("a product rule that adds a term serves no experts", [&](Tape& t, const Var& x) {
        const Batch batch = make_batch(*device, std::vector<int32_t>(kB * (kT + 1), 1), kB, 0);
        return mixture(t, x,
                       {.spec = s,
                        .router = l["router"].weight,
                        .expert_bias = nullptr,
                        .gate = l["gate"].weight,
                        .up = l["up"].weight,
                        .down = l["experts"].weight},
                       batch);
    });
    l["a"].weight.rule = l["b"].weight.rule =
        std::make_shared<QuantizedProducts>(spec::recipe_of({.recipe = "tensor"}).value(), ScaleRanks{}, false, false);
    says("takes no codes", [&](Tape& t, const Var& x) { return fused_projections(t, x, {l["a"], l["b"]}); });
}

}  // namespace
}  // namespace tutti::nn::product_rule_test
