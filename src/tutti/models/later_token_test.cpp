// Multi-token prediction against a twin in double, which computes the main loss and those of two depths token by token,
// from the formulas of the paper: the loss that is reported, and each parameter's gradient along a random direction, by
// finite differences of the twin's trained loss. Documents, masked targets, tied and untied heads.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/models/flops.h"
#include "tutti/models/model.h"
#include "tutti/spec/layers.h"

namespace tutti::models {
namespace {

constexpr int64_t kV = 11, kC = 8, kH = 2, kD = 4, kF = 6, kT = 8, kDepths = 2;
constexpr double kWeight = 0.6, kEps = 1e-3, kTheta = 50;

spec::ModelSpec model_spec(bool tied) {
    spec::ModelSpec m = spec::preset("llama-tiny");
    m.vocab = kV;
    m.width = kC;
    m.layers = 1;
    m.heads = m.kv_heads = kH;
    m.head_dim = kD;
    m.ffn = kF;
    m.norm_eps = kEps;
    m.rope_theta = kTheta;
    m.init_std = 0.4;
    m.tie_embeddings = tied;
    m.mtp_depth = kDepths;
    m.mtp_weight = kWeight;
    return m;
}

// One sequence of two documents, of five and three tokens; the target of token 1 is masked. Six targets are left.
const std::vector<int32_t> kTokens = {3, 1, 7, 7, 2, 10, 5, 4}, kTargets = {1, -1, 7, 2, -1, 5, 4, 9};
const std::vector<int32_t> kFirstKey = {0, 0, 0, 0, 0, 5, 5, 5};
constexpr int kValid = 6;

using Matrix = std::vector<double>;  // rows of a sequence, or a weight (out, in)
using Values = std::map<std::string, Matrix>;

struct Twin {
    explicit Twin(const Values& of) : values(of) {}

    Matrix product(const Matrix& x, const std::string& name, int64_t in) const {
        const Matrix& w = values.at(name + ".weight");
        const auto out = static_cast<int64_t>(w.size()) / in;
        Matrix y(to_size(kT * out));
        for (int64_t t = 0; t < kT; ++t)
            for (int64_t o = 0; o < out; ++o)
                for (int64_t i = 0; i < in; ++i)
                    y[to_size(t * out + o)] += w[to_size(o * in + i)] * x[to_size(t * in + i)];
        return y;
    }
    Matrix norm(const Matrix& x, const std::string& name) const {
        const Matrix& w = values.at(name + ".weight");
        Matrix y = x;
        for (int64_t t = 0; t < kT; ++t) {
            double squares = 0;
            for (size_t c = 0; c < kC; ++c) squares += std::pow(x[to_size(t) * kC + c], 2);
            for (size_t c = 0; c < kC; ++c) y[to_size(t) * kC + c] *= w[c] / std::sqrt(squares / kC + kEps);
        }
        return y;
    }
    static void rotate(Matrix& x) {
        for (int64_t t = 0; t < kT; ++t)
            for (int64_t h = 0; h < kH; ++h)
                for (int64_t k = 0; k < kD / 2; ++k) {
                    const auto place = static_cast<double>(t - kFirstKey[to_size(t)]);
                    const double angle = place * std::pow(kTheta, -2.0 * static_cast<double>(k) / kD);
                    double& a = x[to_size((t * kH + h) * kD + k)];
                    double& b = x[to_size((t * kH + h) * kD + k + kD / 2)];
                    const double first = a, second = b;
                    a = first * std::cos(angle) - second * std::sin(angle);
                    b = second * std::cos(angle) + first * std::sin(angle);
                }
    }
    Matrix block(Matrix x, int64_t layer) const {
        const std::string name = concat("model.layers.", layer, ".");
        const Matrix u = norm(x, name + "input_layernorm");
        Matrix q = product(u, name + "self_attn.q_proj", kC), k = product(u, name + "self_attn.k_proj", kC);
        const Matrix v = product(u, name + "self_attn.v_proj", kC);
        rotate(q);
        rotate(k);
        Matrix mixed(x.size());
        for (int64_t t = 0; t < kT; ++t)
            for (int64_t h = 0; h < kH; ++h) {
                const auto at = [&](int64_t row) { return to_size((row * kH + h) * kD); };
                double sum = 0;
                for (int64_t j = kFirstKey[to_size(t)]; j <= t; ++j) {
                    double score = 0;
                    for (size_t d = 0; d < kD; ++d) score += q[at(t) + d] * k[at(j) + d];
                    const double power = std::exp(score / std::sqrt(static_cast<double>(kD)));
                    sum += power;
                    for (size_t d = 0; d < kD; ++d) mixed[at(t) + d] += power * v[at(j) + d];
                }
                for (size_t d = 0; d < kD; ++d) mixed[at(t) + d] /= sum;
            }
        const Matrix attention = product(mixed, name + "self_attn.o_proj", kC);
        for (size_t i = 0; i < x.size(); ++i) x[i] += attention[i];
        const Matrix w = norm(x, name + "post_attention_layernorm");
        Matrix gate = product(w, name + "mlp.gate_proj", kC);
        const Matrix up = product(w, name + "mlp.up_proj", kC);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        const Matrix down = product(gate, name + "mlp.down_proj", kF);
        for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
        return x;
    }
    Matrix embedding(int64_t ahead) const {
        Matrix x(kT * kC);
        for (int64_t t = 0; t < kT; ++t) {
            // Beyond the sequence there is one known token, the last target.
            const int64_t place = t + ahead;
            const int32_t token = place < kT ? kTokens[to_size(place)] : place == kT ? kTargets.back() : 0;
            for (size_t c = 0; c < kC; ++c)
                x[to_size(t) * kC + c] = values.at("model.embed_tokens.weight")[to_size(token) * kC + c];
        }
        return x;
    }
    // Mean over the main loss's targets.
    double loss(const Matrix& normed, int64_t ahead) const {
        const bool tied = !values.contains("lm_head.weight");
        const Matrix logits = product(normed, tied ? "model.embed_tokens" : "lm_head", kC);
        double total = 0;
        for (int64_t t = 0; t + ahead < kT; ++t) {
            const auto place = to_size(t + ahead);
            if (kFirstKey[place] != kFirstKey[to_size(t)] || kTargets[place] < 0) continue;
            double sum = 0;
            for (int64_t w = 0; w < kV; ++w) sum += std::exp(logits[to_size(t * kV + w)]);
            total += std::log(sum) - logits[to_size(t * kV + kTargets[place])];
        }
        return total / kValid;
    }
    struct Losses {
        double main = 0, trained = 0;
        std::vector<double> later;  // by depth
    };
    Losses losses() const {
        Matrix h = norm(block(embedding(0), 0), "model.norm");
        Losses all{.main = loss(h, 0)};
        all.trained = all.main;
        for (int64_t k = 1; k <= kDepths; ++k) {
            const std::string name = concat("model.layers.", k, ".");  // behind the one layer of the model
            const Matrix e = norm(embedding(k), name + "enorm"), n = norm(h, name + "hnorm");
            Matrix both;
            for (int64_t t = 0; t < kT; ++t)
                for (const Matrix* part : {&e, &n})
                    both.insert(both.end(), part->begin() + t * kC, part->begin() + (t + 1) * kC);
            h = block(product(both, name + "eh_proj", 2 * kC), k);
            all.later.push_back(loss(norm(h, name + "shared_head.norm"), k));
            all.trained += kWeight / kDepths * all.later.back();
        }
        return all;
    }

    const Values& values;
};

void expect_twin(bool tied, const kernels::KernelTable& table) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, table};
    Model model = make_model(ctx, model_spec(tied), kT);
    materialize(ctx, model, DType::f32, 7, true);
    nn::Batch batch = nn::make_batch(
        *device, {.tokens = kTokens, .targets = kTargets, .first_key = kFirstKey, .depths = kDepths}, 1, 0);
    batch.grad_scale = 1.0F / kValid;
    std::vector<double> later(kDepths);
    batch.later_losses = [&](int64_t k, const Tensor& of_depth) {
        for (const float x : of_depth.to_floats()) later[to_size(k)] += static_cast<double>(x) / kValid;
    };
    nn::Tape tape(ctx, true);
    const nn::Var losses = model.forward(tape, batch);
    Values values;
    for (const autograd::Parameter* p : model.parameters()) {
        const std::vector<float> floats = p->value.to_host<float>();
        values[p->name] = Matrix(floats.begin(), floats.end());
    }
    double main = 0;
    for (const float x : losses.value.to_floats()) main += static_cast<double>(x) / kValid;
    const Twin::Losses twin = Twin(values).losses();
    EXPECT_NEAR(main, twin.main, 1e-6);
    for (size_t k = 0; k < kDepths; ++k) EXPECT_NEAR(later[k], twin.later[k], 1e-6) << k;
    tape.backward(losses);
    for (const autograd::Parameter* p : model.parameters()) {
        constexpr double kStep = 1e-5;
        const std::vector<float> gradient = p->gradient.to_host<float>();
        Values up = values, down = values;
        double along = 0, size = 0;
        for (size_t i = 0; i < gradient.size(); ++i) {
            const double d = normal(random_key(3, p->name), i);
            along += gradient[i] * d;
            size += std::abs(gradient[i] * d);
            up[p->name][i] += kStep * d;
            down[p->name][i] -= kStep * d;
        }
        const double wanted = (Twin(up).losses().trained - Twin(down).losses().trained) / (2 * kStep);
        EXPECT_NEAR(along, wanted, 1e-5 * size + 1e-9) << p->name;
        EXPECT_GT(size, 1e-6) << p->name << " has no gradient";
    }
}

TEST(LaterTokens, AreTheTwinInDouble) {
    for (const bool tied : {true, false}) {
        expect_twin(tied, kernels::reference_table());
        expect_twin(tied, kernels::cpu_table(kernels::best_isa()));
    }
}

// The layers of a block that predicts a later token, in models whose layers differ.
TEST(LaterTokens, HaveOneMixerAndOneFeedForwardPart) {
    const auto behind = [](const char* preset) {
        spec::ModelSpec m = spec::preset(preset);
        m.mtp_depth = 2;
        m.mtp_weight = 0.3;
        std::vector<spec::LayerSpec> layers;
        for (int64_t i = m.layers; i < m.layers + spec::layers_behind(m); ++i) layers.push_back(spec::layer(m, i));
        EXPECT_EQ(std::ssize(layers), 2 * spec::layers_of_a_depth(m));
        return layers;
    };
    for (const spec::LayerSpec& layer : behind("qwen3-next-80b-a3b")) {
        EXPECT_TRUE(layer.attention() && layer.attention()->output_gate && layer.mixture());
    }
    const std::vector<spec::LayerSpec> nemotron = behind("nemotron3-nano-30b");
    ASSERT_EQ(nemotron.size(), 4U);  // "*E" twice
    for (const size_t first : {0U, 2U}) {
        EXPECT_TRUE(nemotron[first].attention() && !nemotron[first].mixture() && !nemotron[first].mlp());
        EXPECT_TRUE(nemotron[first + 1].mixture() && !nemotron[first + 1].attention());
    }
    for (const spec::LayerSpec& layer : behind("falcon-h1-tiny")) EXPECT_TRUE(layer.beside() && layer.mlp());
}

// A recurrence in the block counts like one in a layer: the module of a Falcon-H1 has the FLOPs of its last layer,
// those of its projection and those of the head once more.
TEST(LaterTokens, CountTheScansOfTheirBlocks) {
    spec::ModelSpec with = spec::preset("falcon-h1-tiny");
    const Model plain = outline(with);
    with.mtp_depth = 1;
    with.mtp_weight = 0.3;
    const Model model = outline(with);
    const autograd::Unit& layer = plain.modules()[4]->unit;
    ASSERT_GT(layer.state_flops, 0);
    const double before = forward_flops(plain, 1024).matmul, after = forward_flops(model, 1024).matmul;
    EXPECT_DOUBLE_EQ(after - before,
                     forward_flops(plain, layer, 1024).matmul +
                         static_cast<double>(4 * with.width * with.width + 2 * with.width * with.vocab));
}

// DeepSeek-V3's module: a block with experts, two norms and one for the head, and the projection of 2 C channels: 11.61
// billion values of its own, of which the README of the published weights says 11.5.
TEST(LaterTokens, CountAsPublished) {
    spec::ModelSpec with = spec::preset("deepseek-v3");
    const Model plain = outline(with);
    with.mtp_depth = 1;
    with.mtp_weight = 0.3;
    const Model model = outline(with);
    const int64_t C = with.width, own = parameter_count(model) - parameter_count(plain);
    int64_t last_layer = 0;
    for (const autograd::Parameter* p : plain.modules()[61]->unit.parameters)
        if (p->training != autograd::Training::counted) last_layer += p->shape.numel();
    EXPECT_EQ(own, last_layer + 2 * C * C + 3 * C);
    EXPECT_NEAR(static_cast<double>(own), 11.5e9, 0.15e9);
    // Products of a token: the module's, and the head once more.
    const double before = forward_flops(plain, 4096).matmul, after = forward_flops(model, 4096).matmul;
    const double layer = forward_flops(plain, plain.modules()[61]->unit, 4096).matmul;
    EXPECT_DOUBLE_EQ(after - before,
                     layer + 4.0 * static_cast<double>(C * C) + 2.0 * static_cast<double>(C * with.vocab));
}

}  // namespace
}  // namespace tutti::models
