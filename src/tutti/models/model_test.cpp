// Whole models on the reference kernels: gradients by differences, B against I then W, recompute, the hooks, generation
// with a cache, and what stays allocated afterwards.
#include "tutti/models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

namespace tutti::models {
namespace {

using autograd::Hooks;
using autograd::Parameter;
using autograd::Unit;
using nn::Batch;
using nn::Tape;
using nn::Var;

spec::ModelSpec tiny(spec::Family family) {
    spec::ModelSpec s;
    s.family = family;
    s.vocab = 37;
    s.width = 24;
    s.layers = 3;
    s.heads = 4;
    s.kv_heads = family == spec::Family::llama ? 2 : 4;
    s.head_dim = 6;
    s.ffn = 40;
    s.max_positions = 16;
    s.init_std = 0.2;
    return s;
}

struct Rig {
    explicit Rig(const spec::ModelSpec& spec, DType compute = DType::f32, Hooks* hooks_ = nullptr)
        : device(make_cpu_device(1)),
          ctx{*device, kernels::reference_table()},
          model(make_model(ctx, spec, 16)),
          hooks(hooks_) {
        materialize(ctx, model, compute, 42, true);
        if (spec.family == spec::Family::mlp) {
            std::vector<float> x(5 * 24), y(5 * 24);
            for (size_t i = 0; i < x.size(); ++i) {
                x[i] = normal(random_key(1, "x"), i);
                y[i] = normal(random_key(1, "y"), i);
            }
            batch.features = Tensor::from_host<float>(*device, {5, 24}, x, Purpose::data);
            batch.feature_targets = Tensor::from_host<float>(*device, {5, 24}, y, Purpose::data);
            batch.grad_scale = 1.0f / 5;
        } else {
            std::vector<int32_t> windows(2 * 8);
            for (size_t i = 0; i < windows.size(); ++i)
                windows[i] = static_cast<int32_t>(uniform_below(random_key(3, "tokens"), i, 37));
            batch = nn::make_batch(*device, windows, 2, 0);
            batch.grad_scale = 1.0f / 14;
        }
    }
    double loss() {
        Tape tape(ctx, false);
        return sum(model.forward(tape, batch).value);
    }
    double sum(const Tensor& losses) const {
        const auto values = losses.to_floats();
        return std::accumulate(values.begin(), values.end(), 0.0) * batch.grad_scale;
    }
    void run_backward(int64_t segment, bool split) {
        for (Parameter* p : model.parameters()) ops::fill(ctx, p->gradient, 0);
        Tape tape(ctx, true, hooks);
        const Var loss = model.forward(tape, batch, segment);
        if (split) {
            tape.backward_input(loss, loss.value);
            tape.backward_weight();
        } else {
            tape.backward(loss);
        }
    }
    std::map<std::string, std::vector<float>> gradients() const {
        std::map<std::string, std::vector<float>> all;
        for (Parameter* p : model.parameters()) all[p->name] = p->gradient.to_host<float>();
        return all;
    }

    std::unique_ptr<Device> device;
    ops::Context ctx;
    Model model;
    Hooks* hooks;
    Batch batch;
};

class ModelTest : public ::testing::TestWithParam<spec::Family> {};

TEST_P(ModelTest, CountsItsParameters) {
    Rig rig(tiny(GetParam()));
    int64_t count = 0;
    for (Parameter* p : rig.model.parameters()) count += p->shape.numel();
    EXPECT_EQ(count, spec::parameter_count(tiny(GetParam())));
}

// Documents of 3, 1 and 4 tokens in one sequence, each against the same tokens alone. The reference kernels take the
// same keys in the same order, so the losses have the same bits; the CPU kernels cut their tiles elsewhere.
TEST_P(ModelTest, ADocumentInAPackedSequenceIsAsAlone) {
    if (GetParam() == spec::Family::mlp) return;  // has no tokens
    const std::vector<int32_t> tokens = {5, 36, 0, 7, 11, 12, 5, 5}, targets = {36, 0, -1, -1, 12, 5, 5, 1};
    const std::vector<int32_t> first_key = {0, 0, 0, 3, 4, 4, 4, 4};
    for (const kernels::KernelTable* table : {&kernels::reference_table(), &kernels::cpu_table(kernels::best_isa())}) {
        Rig rig(tiny(GetParam()));
        ops::Context ctx{*rig.device, *table};
        const auto losses = [&](const Batch& batch) {
            Tape tape(ctx, false);
            return rig.model.forward(tape, batch).value.to_floats();
        };
        const auto packed = losses(nn::make_batch(*rig.device, nn::BatchRows{tokens, targets, first_key}, 1, 0));
        for (const auto& [begin, end] : {std::pair(0, 3), std::pair(3, 4), std::pair(4, 8)}) {
            const auto from = [&, first = begin, last = end](const std::vector<int32_t>& all) {
                return std::vector<int32_t>(all.begin() + first, all.begin() + last);
            };
            const auto own_tokens = from(tokens), own_targets = from(targets);
            const auto alone = losses(nn::make_batch(*rig.device, nn::BatchRows{own_tokens, own_targets, {}}, 1, 0));
            for (int t = begin; t < end; ++t) {
                const float expected = alone[static_cast<size_t>(t - begin)], got = packed[static_cast<size_t>(t)];
                if (table == &kernels::reference_table())
                    EXPECT_EQ(got, expected) << "token " << t;
                else
                    EXPECT_NEAR(got, expected, 1e-5 * (1 + std::abs(expected))) << "token " << t;
            }
        }
        // Without the documents the losses are others: the test sees attention.
        const auto mixed = losses(nn::make_batch(*rig.device, nn::BatchRows{tokens, targets, {}}, 1, 0));
        EXPECT_GT(std::abs(mixed[5] - packed[5]), 1e-3);
    }
}

// Each parameter along its own random direction d: (loss(w + h d) - loss(w - h d)) / 2h against <gradient, d>. The
// forward is f32, so a difference carries about 1e-6 of rounding; with h = 2^-7 that is 1e-4 of slope beside an h^2
// truncation of the same size. The kinks of ReLU want a shorter step, and one of twice the length tells by how much
// they still matter. Single ops are held to 1e-7 in the kernels' own test; this one holds how they are joined.
TEST_P(ModelTest, GradientsMatchDifferences) {
    Rig rig(tiny(GetParam()));
    rig.run_backward(0, false);
    for (Parameter* p : rig.model.parameters()) {
        const auto gradient = p->gradient.to_host<float>();
        const auto before = p->value.to_host<float>();
        std::vector<float> direction(before.size());
        double norm = 0, slope = 0;
        for (size_t i = 0; i < before.size(); ++i) {
            direction[i] = normal(random_key(11, p->name), i);
            norm += direction[i] * direction[i];
        }
        for (size_t i = 0; i < before.size(); ++i) {
            direction[i] /= static_cast<float>(std::sqrt(norm));
            slope += static_cast<double>(gradient[i]) * direction[i];
        }
        const bool kinked = GetParam() == spec::Family::mlp;
        const float h = kinked ? 0x1p-10f : 0x1p-7f;
        const auto loss_at = [&](float step) {
            std::vector<float> moved = before;
            for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
            rig.device->copy_in(p->value.view().data, moved.data(), p->value.bytes());
            const double loss = rig.loss();
            rig.device->copy_in(p->value.view().data, before.data(), p->value.bytes());
            return loss;
        };
        const double quotient = (loss_at(h) - loss_at(-h)) / (2 * h);
        const double coarse = (loss_at(2 * h) - loss_at(-2 * h)) / (4 * h);
        const double kinks = kinked ? std::abs(coarse - quotient) : 0;
        EXPECT_NEAR(quotient, slope, 1e-3 * std::max(0.1, std::abs(slope)) + kinks) << p->name;
    }
}

TEST_P(ModelTest, WeightGradientsMayWait) {
    for (DType compute : {DType::f32, DType::bf16}) {
        if (GetParam() == spec::Family::mlp && compute == DType::bf16) continue;  // its features are f32 here
        Rig rig(tiny(GetParam()), compute);
        rig.run_backward(0, false);
        const auto together = rig.gradients();
        rig.run_backward(0, true);
        EXPECT_EQ(together, rig.gradients());  // bit for bit
    }
}

TEST_P(ModelTest, RecomputeChangesNoBit) {
    spec::ModelSpec spec = tiny(GetParam());
    spec.dropout = GetParam() == spec::Family::mlp ? 0.0 : 0.3;
    Rig rig(spec);
    rig.run_backward(0, false);
    const auto stored = rig.gradients();
    for (int64_t segment : {1, 2, 3, 7})
        for (bool split : {false, true}) {
            rig.run_backward(segment, split);
            EXPECT_EQ(stored, rig.gradients()) << "segments of " << segment << (split ? ", I then W" : ", B");
        }
}

TEST_P(ModelTest, FreesWhatItSaved) {
    Rig rig(tiny(GetParam()));
    const int64_t before = rig.device->memory().usage(Purpose::activations).current;
    for (int64_t segment : {0, 2})
        for (bool split : {false, true}) {
            rig.run_backward(segment, split);
            EXPECT_EQ(rig.device->memory().usage(Purpose::activations).current, before);
        }
}

// Checks the order that FSDP and gradient reduction rely on.
class RecordingHooks final : public Hooks {
  public:
    void before_forward(Unit& u) override { events.push_back("forward> " + u.name); }
    void after_forward(Unit& u) override { events.push_back("forward< " + u.name); }
    void before_backward(Unit& u) override { events.push_back("backward> " + u.name); }
    void after_backward(Unit& u) override { events.push_back("backward< " + u.name); }
    void gradient_ready(Parameter& p) override {
        ++ready[p.name];
        for (float g : p.gradient.to_host<float>()) sums[p.name] += g;
    }
    std::vector<std::string> events;
    std::map<std::string, int> ready;
    std::map<std::string, double> sums;
};

TEST_P(ModelTest, HooksSurroundUnitsAndGradientsAreReadyOnce) {
    for (int64_t segment : {0, 2})
        for (bool split : {false, true}) {
            RecordingHooks hooks;
            Rig rig(tiny(GetParam()), DType::f32, &hooks);
            rig.run_backward(segment, split);
            for (Parameter* p : rig.model.parameters()) {
                EXPECT_EQ(hooks.ready[p->name], 1) << p->name;
                double sum = 0;  // nothing was added after the hook
                for (float g : p->gradient.to_host<float>()) sum += g;
                EXPECT_EQ(hooks.sums[p->name], sum) << p->name;
            }
            if (segment > 0) continue;
            std::vector<std::string> expected;
            auto& modules = rig.model.modules();
            for (auto& m : modules) {
                expected.push_back("forward> " + m->unit.name);
                expected.push_back("forward< " + m->unit.name);
            }
            for (auto m = modules.rbegin(); m != modules.rend(); ++m) {
                expected.push_back("backward> " + (*m)->unit.name);
                expected.push_back("backward< " + (*m)->unit.name);
            }
            EXPECT_EQ(hooks.events, expected);
        }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelTest,
                         ::testing::Values(spec::Family::gpt2, spec::Family::llama, spec::Family::mlp),
                         [](const auto& family) { return std::string(spec::name_of(family.param)); });

// One token at a time through the cache gives the logits of the whole sequence at once.
TEST(Generation, CacheGivesTheLogitsOfTheFullForward) {
    for (auto family : {spec::Family::gpt2, spec::Family::llama}) {
        Rig rig(tiny(family));
        const std::vector<int32_t> tokens = {3, 14, 15, 9, 2, 6, 5, 30, 5, 8};  // two sequences of five
        nn::KvCache cache = make_cache(rig.ctx, rig.model, 2, 8, DType::f32);
        for (int64_t t = 0; t < 5; ++t) {
            Batch whole = nn::make_prompt(
                *rig.device,
                [&] {
                    std::vector<int32_t> prefix;
                    for (int64_t b = 0; b < 2; ++b)
                        for (int64_t i = 0; i <= t; ++i) prefix.push_back(tokens[static_cast<size_t>(b * 5 + i)]);
                    return prefix;
                }(),
                2, 0);
            Tape tape(rig.ctx, false);
            const auto expected = rig.model.forward(tape, whole).value.to_floats();
            Batch one = nn::make_prompt(
                *rig.device, std::vector<int32_t>{tokens[static_cast<size_t>(t)], tokens[static_cast<size_t>(5 + t)]},
                2, t);
            one.cache = &cache;
            const auto actual = rig.model.forward(tape, one).value.to_floats();
            ++cache.length;
            ASSERT_EQ(actual.size(), expected.size());
            for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5) << "token " << t;
        }
    }
}

// formats.md, section D: Llama 3.1, theta 5e5, D 128, factor 8.
TEST(Rope, Llama31Frequencies) {
    spec::ModelSpec s = spec::preset("llama3-8b");
    const auto f = rope_frequencies(s);
    ASSERT_EQ(f.size(), 64u);
    const std::map<size_t, double> golden = {{0, 1.0},
                                             {20, 1.656044008e-02},
                                             {28, 3.211445995e-03},
                                             {30, 1.371893568e-03},
                                             {34, 1.785078128e-04},
                                             {40, 3.428102196e-05},
                                             {63, 3.068925989e-07}};
    for (const auto& [k, value] : golden) EXPECT_NEAR(f[k] / value, 1.0, 1e-6) << k;
}

}  // namespace
}  // namespace tutti::models
