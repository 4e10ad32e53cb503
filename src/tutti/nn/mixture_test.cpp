// A mixture of experts against a twin in double that goes token by token: outputs, and gradients by finite differences
// of the twin's loss, balancing losses included. Dispatch and capacity by hand.
#include "tutti/nn/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/nn/dispatch.h"
#include "tutti/nn/routing.h"
#include "tutti/spec/toml.h"

namespace tutti::nn::mixture_test {
namespace {

using autograd::Role;

constexpr int64_t kB = 2, kT = 5, kN = kB * kT, kC = 6, kF = 5, kE = 6, kLatent = 4;

using Values = std::map<std::string, std::vector<double>>;

std::vector<double> numbers(const std::string& name, int64_t count, double scale) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i)
        values.push_back(static_cast<float>(scale * normal(random_key(5, name), static_cast<uint64_t>(i))));
    return values;
}

Values initial() {
    Values v;
    v["x"] = numbers("x", kN * kC, 1);
    v["router"] = numbers("router", kE * kC, 0.8);
    v["bias"] = numbers("bias", kE, 0.3);
    v["gate"] = numbers("gate", kE * kF * kC, 0.5);
    v["up"] = numbers("up", kE * kF * kC, 0.5);
    v["down"] = numbers("down", kE * kC * kF, 0.5);
    v["router bias"] = numbers("router bias", kE, 0.5);
    v["gate bias"] = numbers("gate bias", kE * kF, 0.5);
    v["up bias"] = numbers("up bias", kE * kF, 0.5);
    v["down bias"] = numbers("down bias", kE * kC, 0.5);
    v["into latent"] = numbers("into latent", kLatent * kC, 0.5);
    v["from latent"] = numbers("from latent", kC * kLatent, 0.5);
    v["c"] = numbers("c", kN * kC, 1);  // the gradient of y
    return v;
}

// Experts with or without a gate; without one the unit is the square of ReLU (Nemotron 3).
struct Kind : spec::MixtureSpec {
    Kind(const spec::MixtureSpec& s, bool has_gate = true, std::string its_name = "")  // implicit
        : spec::MixtureSpec(s), gated(has_gate), name(std::move(its_name)) {}
    bool gated;
    std::string name;
    std::vector<int64_t> lengths = {kT, kT};  // of the sequences, tokens before the padding
    bool is_padding(size_t n) const { return static_cast<int64_t>(n) % kT >= lengths[n / kT]; }
    double tokens() const { return static_cast<double>(lengths[0] + lengths[1]); }
};

// Experts with biases are those of gpt-oss, whose unit is cut at this limit.
constexpr double kLimit = 0.75;
ops::Gate unit_of(const Kind& s) {
    if (!s.gated) return ops::Gate::relu;
    return s.bias ? ops::Gate(ops::Gate::clamped, static_cast<float>(kLimit)) : ops::Gate::silu;
}
double active(const Kind& s, double gate, double up) {
    if (!s.gated) return std::pow(std::max(up, 0.0), 2);
    if (!s.bias) return gate / (1 + std::exp(-gate)) * up;
    gate = std::min(gate, kLimit);
    return gate / (1 + std::exp(-1.702F * gate)) * (std::clamp(up, -kLimit, kLimit) + 1);
}

struct Twin {
    std::vector<double> y;
    std::vector<std::vector<size_t>> chosen;  // by row
    double loss = 0, balancing = 0;           // <c, y> and balancing losses, and these alone
    double entropy = 0;                       // mean over tokens
};

std::vector<double> product(const std::vector<double>& w, const std::vector<double>& x) {
    std::vector<double> y(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) y[i / x.size()] += w[i] * x[i % x.size()];
    return y;
}

// `held`: the choices to take, where a finite difference may not change them.
Twin twin(const Kind& s, const Values& v, const std::vector<std::vector<size_t>>* held = nullptr) {
    Twin t;
    const auto k = to_size(s.top_k);
    std::vector<std::vector<double>> shares;
    double z = 0;
    for (size_t n = 0; n < kN; ++n) {
        if (s.is_padding(n)) {
            t.y.resize(t.y.size() + kC);
            t.chosen.emplace_back();
            shares.emplace_back(kE);
            continue;
        }
        const double* x = v.at("x").data() + n * kC;
        std::vector<double> logits(kE), p(kE), by(kE);
        for (size_t e = 0; e < kE; ++e) {
            if (s.router_bias) logits[e] = v.at("router bias")[e];
            for (size_t c = 0; c < kC; ++c) logits[e] += v.at("router")[e * kC + c] * x[c];
        }
        double sum = 0;
        for (const double l : logits) sum += std::exp(l);
        z += std::pow(std::log(sum), 2);
        for (size_t e = 0; e < kE; ++e) {
            p[e] = s.score == "sigmoid" ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]) / sum;
            by[e] = p[e] + (s.expert_bias ? v.at("bias")[e] : 0);
        }
        std::vector<size_t> order(kE);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return by[a] > by[b]; });
        order.resize(k);
        if (held) order = (*held)[n];
        t.chosen.push_back(order);
        double total = s.score == "sigmoid" ? s.epsilon : 0;
        for (const size_t e : order) total += p[e];
        // The experts' own input and output: x and y, or their latents.
        const size_t L = s.latent > 0 ? to_size(s.latent) : kC;
        std::vector<double> in(x, x + kC), out(L);
        if (s.latent > 0) in = product(v.at("into latent"), in);
        for (const size_t e : order) {
            const double weight = s.scale * (s.normalise ? p[e] / total : p[e]);
            for (size_t f = 0; f < kF; ++f) {
                double gate = s.bias ? v.at("gate bias")[e * kF + f] : 0, up = s.bias ? v.at("up bias")[e * kF + f] : 0;
                for (size_t c = 0; c < L; ++c) {
                    gate += v.at("gate")[(e * kF + f) * L + c] * in[c];
                    up += v.at("up")[(e * kF + f) * L + c] * in[c];
                }
                const double a = active(s, gate, up);
                for (size_t c = 0; c < L; ++c) out[c] += weight * v.at("down")[(e * L + c) * kF + f] * a;
            }
            for (size_t c = 0; c < L && s.bias; ++c) out[c] += weight * v.at("down bias")[e * L + c];
        }
        const std::vector<double> y = s.latent > 0 ? product(v.at("from latent"), out) : out;
        for (size_t c = 0; c < kC; ++c) t.loss += v.at("c")[n * kC + c] * y[c];
        t.y.insert(t.y.end(), y.begin(), y.end());
        const double all = std::accumulate(p.begin(), p.end(), 0.0);
        for (double& share : p) {
            share /= all;
            t.entropy -= share * std::log(share) / s.tokens();
        }
        shares.push_back(p);
    }
    t.balancing = s.z_coef * z / s.tokens();
    const size_t segments = s.aux_loss == "sequence" ? kB : 1, rows = kN / segments;
    for (size_t segment = 0; segment < segments && s.aux_loss != "none"; ++segment)
        for (size_t e = 0; e < kE; ++e) {
            const double tokens = segments == 1 ? s.tokens() : static_cast<double>(s.lengths[segment]);
            double load = 0, share = 0;
            for (size_t n = segment * rows; n < (segment + 1) * rows; ++n) {
                load += static_cast<double>(std::count(t.chosen[n].begin(), t.chosen[n].end(), e));
                share += shares[n][e];
            }
            // E coef / (k T^2) sum over experts of load * sum of shares; transformers has no k.
            const double of_k = s.aux_loss == "all_layers" ? 1 : static_cast<double>(k);
            t.balancing += s.aux_coef * kE / of_k * load / tokens * share / tokens / static_cast<double>(segments);
        }
    t.loss += t.balancing;
    return t;
}

// The parameters and the tape's side of the twin.
struct Layer {
    Layer(ops::Context& ctx, const Values& v, const Kind& spec) : unit(unit_of(spec)) {
        const auto make = [&](const char* name, Shape shape, Role role) {
            Parameter& p = parameters[name];
            p = {.name = name, .shape = shape, .role = role};
            autograd::allocate(ctx, p, DType::f32, true);
            const auto values_of = v.at(name).begin();
            const std::vector<float> values(values_of, values_of + p.shape.numel());
            ctx.device.copy_in(p.value.view().data, values.data(), p.value.bytes());
        };
        make("router", {kE, kC}, Role::router);
        if (spec.router_bias) make("router bias", {kE}, Role::router);
        if (spec.expert_bias) make("bias", {kE}, Role::expert_bias);
        const int64_t L = spec.latent > 0 ? spec.latent : kC;
        if (spec.gated) make("gate", {kE, kF, L}, Role::expert_column);
        make("up", {kE, kF, L}, Role::expert_column);
        make("down", {kE, L, kF}, Role::expert_row);
        if (spec.latent > 0) {
            make("into latent", {L, kC}, Role::router);
            make("from latent", {kC, L}, Role::router);
        }
        if (!spec.bias) return;
        make("gate bias", {kE, kF}, Role::expert_column);
        make("up bias", {kE, kF}, Role::expert_column);
        make("down bias", {kE, kC}, Role::expert);
    }
    Parameter* find(const std::string& name) {
        const auto found = parameters.find(name);
        return found == parameters.end() ? nullptr : &found->second;
    }
    Affine affine(const std::string& name) { return {parameters.at(name), find(name + " bias")}; }
    MixtureLayer of(const spec::MixtureSpec& spec) {
        return {.spec = spec,
                .router = affine("router"),
                .expert_bias = find("bias"),
                .unit = unit,
                .gate = affine(find("gate") ? "gate" : "up"),
                .up = affine("up"),
                .down = affine("down"),
                .into_latent = find("into latent"),
                .from_latent = find("from latent")};
    }
    ops::Gate unit;
    std::map<std::string, Parameter> parameters;
};

Tensor tensor(Device& device, const Shape& shape, const std::vector<double>& values) {
    return Tensor::from_host<float>(device, shape, std::vector<float>(values.begin(), values.end()),
                                    Purpose::activations);
}

nn::Batch batch_of(Device& device, std::span<const int64_t> lengths = {}) {
    const std::vector<int32_t> ones(kN, 1);
    return make_batch(device, BatchRows{.tokens = ones, .targets = ones, .lengths = lengths}, kB, 0);
}

class Mixture : public ::testing::TestWithParam<Kind> {};

TEST_P(Mixture, IsItsTwinInDouble) {
    const Kind& s = GetParam();
    const Values v = initial();
    const Twin expected = twin(s, v);
    const auto device = make_cpu_device(2);
    for (const bool reference : {true, false}) {
        ops::Context ctx{*device, reference ? kernels::reference_table() : kernels::cpu_table(kernels::best_isa())};
        Layer layer(ctx, v, s);
        RoutingRecord record(ctx, {0}, s, kB * kT);
        Batch batch = batch_of(*device, s.lengths);
        batch.routing.record = &record;
        autograd::Tape tape(ctx, true);
        const Var x = tape.input(tensor(*device, {kB, kT, kC}, v.at("x")));
        const Var y = mixture(tape, x, layer.of(s), batch);
        const std::vector<float> values = y.value.to_host<float>();
        for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected.y[i], 1e-5) << i;
        tape.backward(y, tensor(*device, {kB, kT, kC}, v.at("c")));

        const auto check_gradient = [&](const char* name, const std::vector<float>& gradient) {
            constexpr double kStep = 1e-6;
            double worst = 0, largest = 0;
            for (size_t i = 0; i < gradient.size(); ++i) {
                Values up = v, down = v;
                up[name][i] += kStep;
                down[name][i] -= kStep;
                const double wanted =
                    (twin(s, up, &expected.chosen).loss - twin(s, down, &expected.chosen).loss) / (2 * kStep);
                worst = std::max(worst, std::abs(wanted - gradient[i]));
                largest = std::max(largest, std::abs(wanted));
            }
            EXPECT_LT(worst, 2e-5 * largest) << name;
        };
        comm::run_ranks(1, {}, [&](comm::World& world) {
            const RoutingSummary summary = record.take(*world.everyone("summary"));
            EXPECT_NEAR(summary.aux_loss, expected.balancing, 1e-5 * std::abs(expected.balancing));
            EXPECT_NEAR(summary.entropy, expected.entropy, 1e-5 * expected.entropy);
            EXPECT_EQ(summary.mean_load, s.tokens() * static_cast<double>(s.top_k) / kE);
        });
        check_gradient("x", tape.take_gradient(x).to_host<float>());
        for (const auto& [name, p] : layer.parameters)
            if (name != "bias") check_gradient(name.c_str(), p.gradient.to_host<float>());
        if (layer.find("bias") == nullptr) continue;
        const std::vector<float> load = layer.find("bias")->gradient.to_host<float>();
        for (size_t e = 0; e < kE; ++e) {
            double count = 0;
            for (const auto& row : expected.chosen) count += static_cast<double>(std::count(row.begin(), row.end(), e));
            EXPECT_EQ(load[e], count) << e;
        }
    }
}

Kind kind(const char* name, const std::function<void(spec::MixtureSpec&)>& change, bool gated = true) {
    spec::MixtureSpec s{.experts = kE, .top_k = 2, .ffn = kF};
    change(s);
    return {s, gated, name};
}
Kind padded(const char* name, const std::function<void(spec::MixtureSpec&)>& change) {
    Kind s = kind(name, change);
    s.lengths = {3, 4};
    return s;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Mixture,
    ::testing::Values(
        kind("usual", [](auto&) {}), kind("scaled", [](auto& s) { s.normalise = false, s.top_k = 3, s.scale = 1.5; }),
        kind("sigmoid_bias",
             [](auto& s) { s.score = "sigmoid", s.expert_bias = true, s.z_coef = 0.1, s.epsilon = 0.25; }),
        kind("loss_of_microbatches", [](auto& s) { s.aux_loss = "microbatch", s.aux_coef = 0.7, s.z_coef = 0.2; }),
        kind("loss_of_sequences", [](auto& s) { s.aux_loss = "sequence", s.aux_coef = 0.7; }),
        kind("loss_of_all_layers", [](auto& s) { s.aux_loss = "all_layers", s.aux_coef = 0.7, s.normalise = false; }),
        kind("sigmoid_loss", [](auto& s) { s.score = "sigmoid", s.aux_loss = "sequence", s.aux_coef = 0.5; }),
        kind("biases", [](auto& s) { s.bias = s.router_bias = true, s.top_k = 3; }),
        kind("one_expert", [](auto& s) { s.top_k = 1, s.normalise = false; }),
        kind(
            "without_gate", [](auto&) {}, false),
        kind("latent", [](auto& s) { s.latent = kLatent, s.scale = 1.5; }),
        kind(
            "latent_sigmoid_without_gate",
            [](auto& s) { s.latent = kLatent, s.score = "sigmoid", s.expert_bias = true, s.top_k = 3; }, false),
        padded("padded", [](auto& s) { s.bias = s.router_bias = true, s.z_coef = 0.1; }),
        padded("padded_sigmoid_bias",
               [](auto& s) { s.score = "sigmoid", s.expert_bias = true, s.z_coef = 0.1, s.epsilon = 0.25; }),
        padded("padded_microbatches", [](auto& s) { s.aux_loss = "microbatch", s.aux_coef = 0.7, s.z_coef = 0.2; }),
        padded("padded_sequences", [](auto& s) { s.aux_loss = "sequence", s.aux_coef = 0.7, s.latent = kLatent; }),
        padded("padded_all_layers", [](auto& s) { s.aux_loss = "all_layers", s.aux_coef = 0.7, s.normalise = false; })),
    [](const auto& tested) { return tested.param.name; });

// A config may ask for what the router's kernels take, and for no more: else a legal value ends inside an operation.
TEST(Mixtures, TheMostExpertsOfAConfigAreThoseOfTheKernels) {
    const auto parse = [](int64_t experts) {
        return spec::parse_text("", "a config", {"model.preset=moe-tiny", concat("model.moe.experts=", experts)});
    };
    EXPECT_EQ(parse(kernels::kMostExperts).model.moe.experts, kernels::kMostExperts);
    try {
        parse(kernels::kMostExperts + 1);
        ADD_FAILURE() << "one more";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("moe.experts"), std::string::npos) << error.what();
    }
}

// All tokens of all ranks choose experts of rank 0: the other ranks have nothing to do, and take part all the same.
TEST(ExpertParallel, ARankWithoutTokens) {
    const spec::MixtureSpec s{.experts = kE, .top_k = 2, .ffn = kF};
    Values v = initial();
    for (size_t i = 0; i < v["router"].size(); ++i) v["router"][i] = 0;  // ties: experts 0 and 1 of all rows
    comm::run_ranks(3, {.timeout_s = 30}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
        Layer layer(ctx, v, s), alone(ctx, v, s);
        const auto ranks = world.everyone("ep");
        for (const char* name : {"gate", "up", "down"}) {
            Parameter* p = layer.find(name);
            p->value = p->value.narrow(0, world.rank() * 2, 2);
            p->gradient = p->gradient.narrow(0, world.rank() * 2, 2);
            p->expert_parallel = {ranks.get(), 1};
        }
        std::vector<std::vector<float>> results[2];
        for (Layer* l : {&layer, &alone}) {
            autograd::Tape tape(ctx, true);
            const Var x = tape.input(tensor(*device, {kB, kT, kC}, v.at("x")));
            const Var y = mixture(tape, x, l->of(s), batch_of(*device));
            tape.backward(y, tensor(*device, {kB, kT, kC}, v.at("c")));
            results[l == &alone] = {y.value.to_host<float>(), tape.take_gradient(x).to_host<float>()};
        }
        for (size_t i = 0; i < 2; ++i)
            for (size_t j = 0; j < results[0][i].size(); ++j) ASSERT_NEAR(results[0][i][j], results[1][i][j], 1e-6);
        const std::vector<float> gradient = layer.find("gate")->gradient.to_floats();
        const std::vector<float> whole = alone.find("gate")->gradient.to_floats();
        for (size_t i = 0; i < gradient.size(); ++i)  // three ranks with the same tokens
            EXPECT_NEAR(gradient[i], world.rank() == 0 ? 3 * whole[i] : 0, 1e-5);
    });
}

TEST(Dispatch, RowsGoToTheRanksOfTheirExperts) {
    comm::run_ranks(2, {.timeout_s = 30}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::reference_table()};
        const auto ranks = world.everyone("ep");
        // Rank 0: rows choose (3, 0), (0, dropped), (1, 2); rank 1: (2, 3).
        const std::vector<int32_t> choices =
            world.rank() == 0 ? std::vector<int32_t>{3, 0, 0, -1, 1, 2} : std::vector<int32_t>{2, 3};
        const auto rows = static_cast<int64_t>(choices.size() / 2);
        const Tensor counts = ops::empty(ctx, {4}, DType::f32), arriving = ops::empty(ctx, {2, 2}, DType::f32);
        const autograd::ExpertParallel ep{ranks.get(), 1};
        Dispatch d;
        const Tensor sent =
            sort_for_dispatch(ctx, Tensor::from_host<int32_t>(*device, {rows, 2}, choices, Purpose::activations), ep,
                              counts, arriving, false, d);
        const auto whole = [](const Tensor& x) {
            const std::vector<float> values = x.to_host<float>();
            return RouterNumbers::Counts(values.begin(), values.end());
        };
        make_dispatch(ctx, ep, whole(counts), arriving, whole(arriving), 1, d);
        const auto host = [](const Tensor& x) { return x.to_host<int32_t>(); };
        if (world.rank() == 0) {
            EXPECT_EQ(host(sent), (std::vector<int32_t>{0, 1, 2, 2, 0, -1}));  // experts 0, 0, 1 | 2, 3
            EXPECT_EQ(d.sent_rows, 5);
            EXPECT_EQ(host(d.slots), (std::vector<int32_t>{4, 0, 1, -1, 2, 3}));
            EXPECT_EQ(d.to, (std::vector<int64_t>{3, 2}));
            EXPECT_EQ(d.from, (std::vector<int64_t>{3, 0}));
            EXPECT_EQ(d.rows, (ops::GroupRows{2, 1}));
        } else {
            EXPECT_EQ(d.to, (std::vector<int64_t>{0, 2}));
            EXPECT_EQ(d.from, (std::vector<int64_t>{2, 2}));
            EXPECT_EQ(d.rows, (ops::GroupRows{2, 2}));
            EXPECT_EQ(host(d.order), (std::vector<int32_t>{0, 2, 1, 3}));  // of rank 0 and of rank 1, by expert
            EXPECT_EQ(host(d.places), (std::vector<int32_t>{0, 2, 1, 3}));
        }
        EXPECT_EQ(d.padding(), 0);
        Dispatch padded = d;
        padded.to = padded.from = {};
        make_dispatch(ctx, ep, whole(counts), arriving, whole(arriving), 4, padded);
        EXPECT_EQ(padded.rows, (ops::GroupRows{4, 4}));
        EXPECT_EQ(host(padded.order), world.rank() == 0 ? (std::vector<int32_t>{0, 1, -1, -1, 2, -1, -1, -1})
                                                        : (std::vector<int32_t>{0, 2, -1, -1, 1, 3, -1, -1}));
        EXPECT_EQ(host(padded.places),
                  world.rank() == 0 ? (std::vector<int32_t>{0, 1, 4}) : (std::vector<int32_t>{0, 4, 1, 5}));
    });
}

// Four rows of two choices and four experts: two places for each expert, and three rows want expert 1.
TEST(Capacity, DropsTheLeastProbableOrTheLast) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    spec::MixtureSpec s{.experts = 4, .top_k = 2, .ffn = 1, .capacity_factor = 1};
    const Batch batch = make_batch(*device, std::vector<int32_t>(5, 1), 1, 0);
    const Tensor weights = Tensor::from_host<float>(
        *device, {4, 2}, std::vector<float>{0.5f, 0.4f, 0.3f, 0.2f, 0.6f, 0.1f, 0.9f, 0.3f}, Purpose::activations);
    const std::vector<int32_t> wanted = {1, 0, 1, 2, 1, 3, 2, 3};
    const ops::Routed routed{.experts = Tensor::from_host<int32_t>(*device, {4, 2}, wanted, Purpose::activations),
                             .weights = weights};
    for (const auto& [drop, lost] : {std::pair{"probability", size_t{2}}, {"position", size_t{4}}}) {
        s.drop = drop;
        std::vector<int32_t> expected = wanted;
        expected[lost] = -1;
        EXPECT_EQ(drop_beyond_capacity(ctx, s, batch, routed, 0, 4).to_host<int32_t>(), expected) << drop;
    }
    // Two tokens and two rows of padding: one place for each expert.
    const std::vector<int32_t> four(4, 1);
    const std::vector<int64_t> two = {2};
    const Batch padded = make_batch(*device, BatchRows{.tokens = four, .targets = four, .lengths = two}, 1, 0);
    const ops::Routed tokens{
        .experts = Tensor::from_host<int32_t>(*device, {4, 2}, std::vector<int32_t>{1, 0, 1, 2, -1, -1, -1, -1},
                                              Purpose::activations),
        .weights = weights};
    EXPECT_EQ(drop_beyond_capacity(ctx, s, padded, tokens, 0, 4).to_host<int32_t>(),
              (std::vector<int32_t>{1, 0, -1, 2, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace tutti::nn::mixture_test
