// Whole models on the reference kernels: gradients by differences, B against I then W, recompute, the hooks, generation
// with a cache, and what stays allocated afterwards.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tutti/base/to_size.h"
#include "tutti/models/flops.h"
#include "tutti/spec/layers.h"

namespace tutti::models {
namespace {

using autograd::Hooks;
using autograd::Parameter;
using autograd::Pass;
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
    if (family == spec::Family::lfm2) {
        s.head_norm = true;
        s.conv_layers = "0,2";
        s.conv_kernel = 3;
    }
    return s;
}

// How q, k and v are projected: separately; side by side, by one product each (ops/fused_linear.h), if each parameter
// has separate memory; or by one product, if all parameters are in one buffer.
enum class Projections : uint8_t { apart, side_by_side, one_product };

// The families, and what of them a field of the spec switches.
struct Case {
    std::string name;
    spec::ModelSpec spec;
    Projections projections = Projections::apart;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::vector<Case> cases() {
    const spec::ModelSpec llama = tiny(spec::Family::llama);
    std::vector<Case> all = {{"gpt2", tiny(spec::Family::gpt2)}, {"llama", llama}, {"mlp", tiny(spec::Family::mlp)}};
    const auto add = [&](const std::string& name, spec::ModelSpec spec, const auto& change) {
        change(spec);
        all.push_back({name, spec});
    };
    add("gpt2_untied", all[0].spec, [](spec::ModelSpec& s) { s.tie_embeddings = false; });
    add("llama_untied", llama, [](spec::ModelSpec& s) { s.tie_embeddings = false; });
    add("llama_biases", llama, [](spec::ModelSpec& s) { s.qkv_bias = s.output_bias = s.mlp_bias = true; });
    add("llama_yarn", llama, [](spec::ModelSpec& s) {
        s.rope_scaling = {.type = "yarn", .factor = 4, .beta_fast = 2, .beta_slow = 0.5, .original_max_positions = 16};
    });
    add("mistral", llama, [](spec::ModelSpec& s) { s.window = 3; });
    add("window_of_the_last", llama, [](spec::ModelSpec& s) {
        s.window = 3;
        s.window_layers = concat(s.layers - 1);
    });
    add("qwen2", llama, [](spec::ModelSpec& s) { s.qkv_bias = true; });
    add("qwen3", llama, [](spec::ModelSpec& s) {
        s.head_norm = true;
        s.head_dim = 10;  // 4 * 10 is not the width
    });
    // A block's input is read by its projections and its residual sum, with no norm between.
    add("olmo2", llama, [](spec::ModelSpec& s) { s.norms = "post"; });
    for (const Case& c : std::vector<Case>(all)) {
        if (c.name == "llama_biases" || c.name == "mistral")
            all.push_back({c.name + "_side_by_side", c.spec, Projections::side_by_side});
        if (c.name == "llama" || c.name == "qwen2" || c.name == "mistral" || c.name == "qwen3" || c.name == "olmo2")
            all.push_back({c.name + "_one_product", c.spec, Projections::one_product});
    }
    const spec::ModelSpec lfm2 = tiny(spec::Family::lfm2);
    all.push_back({"lfm2", lfm2});
    add("lfm2_biases", lfm2, [](spec::ModelSpec& s) {
        s.conv_layers = "0-2";
        s.conv_kernel = 4;
        s.conv_bias = true;
    });
    return all;
}

const kernels::KernelTable& table_of(Projections projections) {
    static const kernels::KernelTable kFused = [] {
        kernels::KernelTable table = kernels::reference_table();
        table.fused_projections = table.norm_gradients_at_once = true;
        return table;
    }();
    return projections == Projections::apart ? kernels::reference_table() : kFused;
}

struct Rig {
    explicit Rig(const spec::ModelSpec& spec) : Rig(Case{"", spec}) {}
    explicit Rig(const Case& c, DType compute = DType::f32, Hooks* hooks_ = nullptr)
        : device(make_cpu_device(1)),
          ctx{*device, table_of(c.projections)},
          model(make_model(ctx, c.spec, 16)),
          hooks(hooks_) {
        const spec::ModelSpec& spec = c.spec;
        materialize(ctx, model, compute, 42, true);
        if (c.projections == Projections::one_product)
            for (Tensor Parameter::*tensor : {&Parameter::value, &Parameter::gradient}) put_into_one_buffer(tensor);
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
    void put_into_one_buffer(Tensor Parameter::*tensor) {
        int64_t size = 0;
        for (Parameter* p : model.parameters()) size += (p->*tensor).numel();
        const DType type = (model.parameters().front()->*tensor).dtype();
        const Tensor all = Tensor::empty(*device, {size}, type, Purpose::weights);
        int64_t end = 0;
        for (Parameter* p : model.parameters()) {
            Tensor& x = p->*tensor;
            const Tensor part = all.narrow(0, end, x.numel()).reshape(x.shape());
            ops::copy(ctx, x, part);
            x = part;
            end += x.numel();
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

// The number of parameters by another way than the modules, which the product counts.
// Trained values of the feed-forward part of this layer, of which a token passes `experts` experts.
int64_t feed_forward_count(const spec::ModelSpec& m, int64_t layer, int64_t experts) {
    const int64_t C = m.width;
    if (spec::layer(m, layer).mixture() == nullptr) return 3 * C * m.ffn + (m.mlp_bias ? 2 * m.ffn + C : 0);
    const spec::MixtureSpec& e = m.moe;
    return C * e.experts + 3 * C * (experts * e.ffn + e.shared_ffn) + (e.shared_gate ? C : 0);
}

int64_t closed_formula(const spec::ModelSpec& m, int64_t experts) {
    const int64_t C = m.width, F = m.ffn, query = m.heads * m.head_dim, key = m.kv_heads * m.head_dim;
    if (m.family == spec::Family::mlp) return m.layers * C * C;
    const int64_t embeddings = (m.tie_embeddings ? 1 : 2) * m.vocab * C;
    if (m.family == spec::Family::gpt2) {
        const int64_t norm = 2 * C;  // weight and bias
        const int64_t attention = C * 3 * C + 3 * C + C * C + C;
        const int64_t mlp_block = C * F + F + F * C + C;
        return embeddings + m.max_positions * C + m.layers * (2 * norm + attention + mlp_block) + norm;
    }
    const int64_t attention = 2 * C * query + 2 * C * key  // q and output, k and v
                              + (m.qkv_bias ? query + 2 * key : 0) + (m.output_bias ? C : 0) +
                              (m.head_norm ? 2 * m.head_dim : 0);
    const int64_t convolution = 4 * C * C + C * m.conv_kernel + (m.conv_bias ? 5 * C : 0);
    int64_t convolutions = 0;
    for (const spec::LayerRange& range : spec::layer_ranges(m.conv_layers))
        convolutions += range.last - range.first + 1;
    int64_t all =
        embeddings + (m.layers - convolutions) * attention + convolutions * convolution + m.layers * 2 * C + C;
    for (int64_t layer = 0; layer < m.layers; ++layer) all += feed_forward_count(m, layer, experts);
    return all;
}

class ModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(ModelTest, CountsItsParameters) {
    Rig rig(GetParam());
    const spec::ModelSpec& s = GetParam().spec;
    EXPECT_EQ(parameter_count(rig.model), closed_formula(s, s.moe.experts));
    EXPECT_EQ(active_parameter_count(rig.model), closed_formula(s, s.moe.top_k));
}

// Documents of 3, 1 and 4 tokens in one sequence, each against the same tokens alone. The reference kernels take the
// same keys in the same order, so the losses have the same bits; the CPU kernels cut their tiles elsewhere.
TEST_P(ModelTest, ADocumentInAPackedSequenceIsAsAlone) {
    if (GetParam().spec.family == spec::Family::mlp) return;  // has no tokens
    const std::vector<int32_t> tokens = {5, 36, 0, 7, 11, 12, 5, 5}, targets = {36, 0, -1, -1, 12, 5, 5, 1};
    const std::vector<int32_t> first_key = {0, 0, 0, 3, 4, 4, 4, 4};
    for (const kernels::KernelTable* table : {&kernels::reference_table(), &kernels::cpu_table(kernels::best_isa())}) {
        Rig rig(GetParam());
        kernels::KernelTable own = *table;
        own.fused_projections = rig.ctx.kernels.fused_projections;
        ops::Context ctx{*rig.device, own};
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
                const float expected = alone[to_size(t - begin)], got = packed[to_size(t)];
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

// Each parameter along its own random direction d: D(h) = (loss(w + h d) - loss(w - h d)) / 2h against <gradient, d>.
// The forward is f32, so a difference carries about 1e-6 of rounding: with h = 2^-7 1e-4 of slope. The truncation, of
// the same size for most parameters and more for biases, which move every token alike, is c h^2 + O(h^4), and (4 D(h) -
// D(2h)) / 3 has no c. The kinks of ReLU want a shorter step instead, and D(2h) tells by how much they still matter.
// Single ops are held to 1e-7 in the kernels' own test; this one holds how they are joined.
TEST_P(ModelTest, GradientsMatchDifferences) {
    Rig rig(GetParam());
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
        const bool kinked = GetParam().spec.family == spec::Family::mlp;
        const float h = kinked ? 0x1p-10f : 0x1p-7f;
        const auto loss_at = [&](float step) {
            std::vector<float> moved = before;
            for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
            rig.device->copy_in(p->value.view().data, moved.data(), p->value.bytes());
            const double loss = rig.loss();
            rig.device->copy_in(p->value.view().data, before.data(), p->value.bytes());
            return loss;
        };
        const auto difference = [&](float step) { return (loss_at(step) - loss_at(-step)) / (2 * step); };
        const double fine = difference(h), coarse = difference(2 * h);
        const double kinks = kinked ? std::abs(coarse - fine) : 0;
        EXPECT_NEAR(kinked ? fine : (4 * fine - coarse) / 3, slope, 1e-3 * std::max(0.1, std::abs(slope)) + kinks)
            << p->name;
    }
}

// Counts the products of a context.
class CountsKernels final : public ops::Meter {
  public:
    void after_kernel(Device&, const char* kernel, const kernels::Work&) override {
        products += std::string_view(kernel) == "gemm";
        weights_of_norms += std::string_view(kernel) == "norm_backward_weight";
    }
    int products = 0, weights_of_norms = 0;
};

// Side by side or not, a reference product is the same sum in double, rounded once: losses have the same bits. dx is
// rounded after each of three products, or once: gradients differ by a few units of 2^-24 of their largest values. In
// each of three layers one product stands for three of each kind: forward, input and weight gradient.
TEST_P(ModelTest, FusedProjectionsAreTheSame) {
    const Case& c = GetParam();
    if (c.projections == Projections::apart) return;
    Rig fused(c), apart(c.spec);
    CountsKernels of_fused, of_apart;
    fused.ctx.meter = &of_fused;
    apart.ctx.meter = &of_apart;
    EXPECT_EQ(fused.loss(), apart.loss());
    fused.run_backward(0, false);
    apart.run_backward(0, false);
    // In each of 3 layers, of q, k and v and of gate and up; two forwards, dx and dw.
    const int fewer = c.projections != Projections::one_product ? 0 : (c.spec.head_norm ? 0 : 2) + 1;
    EXPECT_EQ(of_apart.products - of_fused.products, 3 * 4 * fewer);
    EXPECT_EQ(of_fused.weights_of_norms, 0);
    EXPECT_GT(of_apart.weights_of_norms, 0);
    const auto got = fused.gradients();
    for (const auto& [name, expected] : apart.gradients()) {
        double largest = 0, difference = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
            largest = std::max(largest, std::abs(1.0 * expected[i]));
            difference = std::max(difference, std::abs(1.0 * got.at(name)[i] - expected[i]));
        }
        EXPECT_LE(difference, 64 * 0x1p-24 * largest) << name;
    }
}

TEST_P(ModelTest, WeightGradientsMayWait) {
    for (DType compute : {DType::f32, DType::bf16}) {
        if (GetParam().spec.family == spec::Family::mlp && compute == DType::bf16)
            continue;  // its features are f32 here
        Rig rig(GetParam(), compute);
        rig.run_backward(0, false);
        const auto together = rig.gradients();
        rig.run_backward(0, true);
        EXPECT_EQ(together, rig.gradients());  // bit for bit
    }
}

TEST_P(ModelTest, RecomputeChangesNoBit) {
    Case c = GetParam();
    c.spec.dropout = c.spec.family == spec::Family::mlp ? 0.0 : 0.3;
    for (const DType compute : {DType::f32, DType::bf16}) {
        if (c.spec.family == spec::Family::mlp && compute == DType::bf16) continue;  // its features are f32 here
        Rig rig(c, compute);
        rig.run_backward(0, false);
        const auto stored = rig.gradients();
        for (int64_t segment : {1, 2, 3, 7})
            for (bool split : {false, true}) {
                rig.run_backward(segment, split);
                EXPECT_EQ(stored, rig.gradients())
                    << compute << ", segments of " << segment << (split ? ", I then W" : ", B");
            }
    }
}

TEST_P(ModelTest, FreesWhatItSaved) {
    Rig rig(GetParam());
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
    void before(Unit& u, const Pass& pass) override { events.push_back(concat(name_of(pass.kind), "> ", u.name)); }
    void after(Unit& u, const Pass& pass) override { events.push_back(concat(name_of(pass.kind), "< ", u.name)); }
    void gradient_ready(Parameter& p, const Pass&) override {
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
            Rig rig(GetParam(), DType::f32, &hooks);
            rig.run_backward(segment, split);
            for (Parameter* p : rig.model.parameters()) {
                EXPECT_EQ(hooks.ready[p->name], 1) << p->name;
                double sum = 0;  // nothing was added after the hook
                for (float g : p->gradient.to_host<float>()) sum += g;
                EXPECT_EQ(hooks.sums[p->name], sum) << p->name;
            }
            std::vector<std::string> expected;
            const auto expect = [&](const char* kind, const Unit& unit) {
                for (const char* side : {"> ", "< "}) expected.push_back(kind + (side + unit.name));
            };
            const std::vector<Unit*> units = rig.model.units(rig.model.all());
            const size_t head = units.size() - 1;
            for (const Unit* unit : units) expect("forward", *unit);
            for (size_t end = units.size(), begin = head;; begin = end > 1 ? std::max<size_t>(1, end - 1) : 0) {
                // Segments count from the first block.
                if (segment > 0 && begin > 0 && begin < head) begin = 1 + (begin - 1) / 2 * 2;
                if (segment > 0 && begin > 0 && begin < head)
                    for (size_t u = begin; u < end; ++u) expect("recompute", *units[u]);
                for (size_t u = end; u-- > begin;) expect(split ? "backward input" : "backward", *units[u]);
                end = begin;
                if (end == 0) break;
            }
            if (split)  // that of the head is taken in the forward: what is left there are its norm's
                for (size_t u = units.size(); u-- > 0;)
                    if (units[u]->parameters.size() > units[u]->gradients_in_forward.size())
                        expect("backward weight", *units[u]);
            EXPECT_EQ(hooks.events, expected);
        }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelTest, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

// The last logits of one sequence, from its tokens alone.
std::vector<float> logits_of(Rig& rig, const std::vector<int32_t>& tokens) {
    Tape tape(rig.ctx, false);
    return rig.model.forward(tape, nn::make_prompt(*rig.device, tokens, 1)).value.to_floats();
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5) << what << ", logit " << i;
}

// Three sequences of different lengths, in one batch from their second token on; one leaves when it is finished. Each
// step gives the logits of the whole sequence alone. The texts are longer than mistral's window.
TEST(Generation, CachesGiveTheLogitsOfTheFullForward) {
    for (const Case& c : cases()) {
        if (c.spec.family == spec::Family::mlp) continue;
        Rig rig(c);
        const std::vector<std::vector<int32_t>> texts = {{3, 14, 15, 9, 2, 6, 5}, {30, 5}, {8, 8, 1, 20, 36}};
        const std::vector<size_t> prompts = {3, 1, 1};
        std::vector<nn::KvCache> caches;
        for (size_t i = 0; i < texts.size(); ++i) {
            caches.emplace_back(rig.model.spec().layers, 8);
            const std::vector<int32_t> prompt(texts[i].begin(),
                                              texts[i].begin() + static_cast<std::ptrdiff_t>(prompts[i]));
            const Batch batch = nn::make_continuation(*rig.device, prompt, {&caches[i]});
            Tape tape(rig.ctx, false);
            expect_near(rig.model.forward(tape, batch).value.to_floats(), logits_of(rig, prompt), c.name);
            nn::advance(batch);
        }
        for (bool any = true; any;) {
            std::vector<int32_t> next;
            std::vector<nn::KvCache*> going_on;
            std::vector<float> expected;
            for (size_t i = 0; i < texts.size(); ++i) {
                const auto at = to_size(caches[i].length);
                if (at == texts[i].size()) continue;
                next.push_back(texts[i][at]);
                going_on.push_back(&caches[i]);
                const auto alone =
                    logits_of(rig, {texts[i].begin(), texts[i].begin() + static_cast<std::ptrdiff_t>(at) + 1});
                expected.insert(expected.end(), alone.begin(), alone.end());
            }
            any = !next.empty();
            if (!any) break;
            const Batch batch = nn::make_continuation(*rig.device, next, going_on);
            Tape tape(rig.ctx, false);
            expect_near(rig.model.forward(tape, batch).value.to_floats(), expected, c.name);
            nn::advance(batch);
        }
    }
}

// With L layers of window W a token can reach back L (W - 1) places and no further: 3 * 2.
TEST(Window, EndsWhereItShould) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.window = 3;
    Rig rig(s);
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const auto whole = logits_of(rig, tokens);
    for (size_t changed = 0; changed < tokens.size(); ++changed) {
        auto other = tokens;
        other[changed] = 30;
        EXPECT_EQ(logits_of(rig, other) == whole, changed + 1 + 6 < tokens.size()) << changed;
    }
}

// Layer 0 of the three sees everything, the two above it reach back 2 * 2; and the other way round.
TEST(Window, OfSomeLayersIsTheirs) {
    for (const char* layers : {"1-2", "0-1", "0,2", ""}) {
        spec::ModelSpec s = tiny(spec::Family::llama);
        s.window = 2;
        s.window_layers = layers;
        Rig rig(s);
        const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        auto other = tokens;
        other[0] = 30;
        EXPECT_EQ(logits_of(rig, other) == logits_of(rig, tokens), s.window_layers.empty()) << layers;
    }
}

// Three layers with two taps reach back a token each, and see nothing of another document.
TEST(ShortConvolution, EndsWhereItShould) {
    spec::ModelSpec s = tiny(spec::Family::lfm2);
    s.conv_layers = "0-2";
    s.conv_kernel = 2;
    Rig rig(s);
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    const auto logits = [&](const std::vector<int32_t>& of, bool documents) {
        Tape tape(rig.ctx, false);
        const std::vector<int32_t> first = {0, 0, 0, 0, 0, 0, 6, 6};
        Batch batch = nn::make_batch(*rig.device, {of, of, documents ? first : std::vector<int32_t>{}}, 1, 0);
        batch.targets = {};
        return rig.model.forward(tape, batch).value.to_floats();
    };
    for (const bool documents : {false, true})
        for (size_t changed = 0; changed < tokens.size(); ++changed) {
            auto other = tokens;
            other[changed] = 30;
            EXPECT_EQ(logits(other, documents) == logits(tokens, documents),
                      documents ? changed < 6 : changed + 1 + 3 < tokens.size())
                << changed;
        }
}

// Qwen3's norm makes the scores blind to the length of the query projection.
TEST(HeadNorm, TakesTheLengthOutOfTheQuery) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.head_norm = true;
    s.norm_eps = 1e-12;
    Rig rig(s);
    const auto before = logits_of(rig, {1, 2, 3, 4, 5});
    ops::scale(rig.ctx, rig.model.parameter("model.layers.1.self_attn.q_proj.weight").value, 4);
    expect_near(logits_of(rig, {1, 2, 3, 4, 5}), before, "scaled by 4");
    ops::scale(rig.ctx, rig.model.parameter("model.layers.1.self_attn.q_norm.weight").value, 4);
    const auto after = logits_of(rig, {1, 2, 3, 4, 5});
    double difference = 0;
    for (size_t i = 0; i < after.size(); ++i) difference = std::max(difference, std::abs(1.0 * after[i] - before[i]));
    EXPECT_GT(difference, 1e-3);
}

// Gemma's factor is a number of the compute type, and sqrt(24) is between two numbers of each.
TEST(Embedding, TheRootOfTheWidthIsRoundedToEachComputeType) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.embedding_sqrt = true;
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        Rig rig(Case{"", s}, type);
        const auto rounded = [&](float x) {
            return type == DType::bf16 ? float(bf16(x)) : type == DType::f16 ? float(f16(x)) : x;
        };
        Tape tape(rig.ctx, false);
        const auto x = rig.model.modules().front()->forward(tape, {}, rig.batch).value.to_floats();
        const auto rows = rig.model.parameter("model.embed_tokens.weight").value.to_floats();
        const auto tokens = rig.batch.tokens.to_host<int32_t>();
        const auto C = to_size(s.width);
        ASSERT_EQ(x.size(), tokens.size() * C);
        const double root = rounded(static_cast<float>(std::sqrt(static_cast<double>(s.width))));
        for (size_t i = 0; i < x.size(); ++i)
            EXPECT_EQ(x[i], rounded(static_cast<float>(root * rows[to_size(tokens[i / C]) * C + i % C])))
                << name_of(type) << ' ' << i;
    }
}

// formats.md, section D: Llama 3.1, theta 5e5, D 128, factor 8.
TEST(Rope, Llama31Frequencies) {
    spec::ModelSpec s = spec::preset("llama3-8b");
    const auto f = rope_frequencies(*spec::layer(s, 0).attention()->rope, 0);
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

// Linear: all divided. YaRN by hand: theta 10000, D 8, 64 original positions, betas 32 and 1: the borders are
// floor(8 ln(64 / (64 pi)) / (2 ln 10000)) = floor(-0.497) -> 0 and ceil(8 ln(64 / (2 pi)) / (2 ln 10000)) =
// ceil(1.008) = 2, so the pairs 0, 1, 2, 3 are scaled by 0, 1/2, 1, 1; factor 4.
TEST(Rope, LinearAndYarn) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.head_dim = 8;
    s.rope_scaling = {.type = "linear", .factor = 4};
    const auto rope = [&] { return *spec::layer(s, 0).attention()->rope; };
    EXPECT_EQ(rope_frequencies(rope(), 0), (std::vector<double>{0.25, 0.025, 0.0025, 0.00025}));
    EXPECT_EQ(rope_amplitude(rope()), 1);
    s.rope_scaling = {.type = "yarn", .factor = 4, .original_max_positions = 64};
    const auto f = rope_frequencies(rope(), 0);
    const std::vector<double> expected = {1, 0.1 * (0.5 + 0.125), 0.0025, 0.00025};
    for (size_t k = 0; k < 4; ++k) EXPECT_NEAR(f[k] / expected[k], 1, 1e-12) << k;
    EXPECT_NEAR(rope_amplitude(rope()), 1.1386294361, 1e-9);
    s.rope_scaling.attention_factor = 1.5;
    EXPECT_EQ(rope_amplitude(rope()), 1.5);
}

}  // namespace
}  // namespace tutti::models
