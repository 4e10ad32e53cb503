// Update rules under random layouts of 8 ranks (ZeRO-0 to 3, HSDP, tp, cp, ep, ties over stages): a rule that needs
// whole matrices and a rule with a value for a block of elements give masters and state with the bits of one rank, and
// that rank follows the formula.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/testing/normalised.h"
#include "tutti/parallel/apply.h"
#include "tutti/parallel/data_parallel.h"

namespace tutti::parallel {
namespace {

using autograd::Parameter;
using autograd::Role;
using optim::Piece;
using optim::StateField;
using optim::StepNumbers;
using optim::testing::Normalised;

constexpr int kSteps = 2;
constexpr float kLr = 0.25f, kDecay = 0.5f, kGradScale = 0.5f;

// For each block of `per` elements the largest gradient so far: largest = max(0.5 largest, |g|); p -= lr g / largest.
class Blocks final : public optim::UpdateRule {
  public:
    explicit Blocks(int64_t per) : per_(per) {}
    std::vector<StateField> state(const Parameter&) const override {
        return {{.name = "largest", .per = per_}, {.name = "sign", .dtype = DType::u8}};
    }
    void step(ops::Context&, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        for (const Piece& piece : pieces) {
            auto* p = piece.shard.master.view().as<float>();
            const auto* g = piece.gradient.view().as<const float>();
            auto* largest = piece.state[0].view().as<float>();
            auto* sign = piece.state[1].view().as<uint8_t>();
            const int64_t n = std::min(piece.gradient.numel(), piece.state[0].numel() * per_);  // without padding
            for (int64_t b = 0; b * per_ < n; ++b) {
                const int64_t end = std::min(n, (b + 1) * per_);
                largest[b] *= 0.5f;
                for (int64_t i = b * per_; i < end; ++i) largest[b] = std::max(largest[b], std::abs(g[i]));
                for (int64_t i = b * per_; i < end; ++i) {
                    p[i] -= static_cast<float>(numbers.lr) * (g[i] / largest[b]);
                    sign[i] = g[i] < 0 ? 2 : 1;
                }
            }
        }
    }

  private:
    int64_t per_;
};

struct Layout {
    spec::RunSpec run;
    int ranks = 1;
    int64_t wave_values = 1 << 24;

    std::string name() const {
        const spec::ParallelSpec& p = run.parallel;
        return concat(ranks, " ranks, tp ", p.tp, ", cp ", p.cp, ", ep ", p.ep, ", etp ", p.etp, ", dp_shard ",
                      p.dp_shard, ", dp_replicate ", p.dp_replicate, ", pp ", p.pp, ", ZeRO-", p.zero, ", kv_heads ",
                      run.model.kv_heads, ", waves of ", wave_values);
    }
};

Layout random_layout(std::mt19937& random) {
    const auto pick = [&](std::initializer_list<int64_t> of) { return *(of.begin() + random() % of.size()); };
    Layout layout{.ranks = 8, .wave_values = pick({1, 700, 1 << 24})};
    spec::ParallelSpec& p = layout.run.parallel;
    p.tp = pick({1, 2, 4});
    p.cp = p.tp < 4 ? pick({1, 2}) : 1;
    p.pp = p.tp * p.cp < 4 ? pick({1, 2}) : 1;
    const int64_t dp = 8 / (p.tp * p.cp * p.pp);
    p.dp_replicate = dp > 1 ? pick({1, 2}) : 1;
    p.dp_shard = dp / p.dp_replicate;
    const int64_t experts = p.tp * p.cp * p.dp_shard;
    p.ep = experts > 1 ? pick({1, 2}) : 1;
    p.etp = experts / p.ep > 1 ? pick({1, 2}) : 1;
    p.zero = pick({0, 1, 2, 3});
    layout.run.model.kv_heads = pick({2, 4});
    return layout;
}

// One of each role; sizes that no shard, and where the role allows it no rank of tp, divides.
std::vector<Parameter> random_parameters(std::mt19937& random) {
    const auto size = [&](int64_t multiple) { return multiple * static_cast<int64_t>(1 + random() % 9); };
    const int64_t width = size(4), head = 2;
    std::vector<Parameter> all = {
        {.name = "words", .shape = {size(1) + 60, width}, .role = Role::vocabulary},
        {.name = "positions", .shape = {size(1), width}, .role = Role::position},
        {.name = "norm", .shape = {width}, .role = Role::norm},
        {.name = "qkv", .shape = {3 * 4 * size(1), width}, .role = Role::column, .sections = 3},
        {.name = "bias", .shape = {size(4)}, .role = Role::column},
        {.name = "keys", .shape = {4 * head, width}, .role = Role::key_value, .grain = head},
        {.name = "out", .shape = {size(1), size(4)}, .role = Role::row},
        {.name = "router", .shape = {4, width}, .role = Role::router},
        {.name = "up", .shape = {4, size(2), size(1)}, .role = Role::expert_column},
        {.name = "down", .shape = {4, size(1), size(2)}, .role = Role::expert_row}};
    for (Parameter& p : all) p.init.std = 1;
    return all;
}

float gradient_of(const Parameter& p, int64_t element, int step) {
    return normal(random_key(7, p.name, static_cast<uint64_t>(step)), to_size(element));
}

// Calls visit(element of the global tensor, element of the values).
void for_each_element(const Shape& shape, const std::vector<mesh::HeldBlock>& blocks,
                      const std::function<void(int64_t, int64_t)>& visit) {
    for (const mesh::HeldBlock& held : blocks)
        mesh::for_each_run(held.block, mesh::whole_block(shape), held.block,
                           [&](int64_t global, int64_t local, int64_t n) {
                               for (int64_t i = 0; i < n; ++i) visit(global + i, held.begin + local + i);
                           });
}

using Tensors = std::map<std::string, std::vector<float>>;  // whole tensors by name

std::vector<float> floats_of(const Tensor& x) {
    if (x.dtype() != DType::u8) return x.to_floats();
    const auto bytes = x.to_host<uint8_t>();
    return {bytes.begin(), bytes.end()};
}

// Masters and state after two steps; copies on several ranks must be equal.
Tensors train(const Layout& layout, const std::vector<Parameter>& global, const optim::MakeRule& rule,
              spec::OptimizerSpec spec = {}, bool masters = true, DType gradients = DType::f32) {
    spec.weight_decay = kDecay;
    std::mutex mutex;
    Tensors tensors;
    comm::run_ranks(layout.ranks, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
        Groups groups(world, make_mesh(layout.run, world.size()));
        const int stage = groups.coordinate(mesh::Axis::pp);
        std::vector<Parameter> own = global;
        if (layout.run.parallel.pp > 1) {  // the second stage has the experts, and the words of the first
            own.front().pipeline_ranks = {0, 1};
            own.erase(stage == 0 ? own.end() - 3 : own.begin() + 1, stage == 0 ? own.end() : own.end() - 3);
        }
        autograd::Unit head{.name = "head"}, body{.name = "body", .place = 1};
        std::vector<Parameter*> all;
        for (Parameter& p : own) {
            (p.name == "words" ? head : body).parameters.push_back(&p);
            all.push_back(&p);
        }
        apply(all, groups.mesh(), world.rank(), {});
        const optim::Rules rules(spec, rule);
        DataParallel dp(ctx, {{&head, &body}}, groups,
                        {.zero = static_cast<Zero>(layout.run.parallel.zero),
                         .compute = DType::bf16,
                         .gradients = gradients,
                         .seed = 3,
                         .grain = rules.grain(all),
                         .masters = masters});
        optim::Optimizer optimizer(ctx, dp.parameter_shards(), rules, nullptr,
                                   dp.gather_whole(rules, layout.wave_values), 9, DType::bf16);
        for (int step = 1; step <= kSteps; ++step) {
            dp.begin_step(1);
            dp.finish_gradients();  // zeros
            for (const optim::ParameterShard& piece : dp.parameter_shards()) {
                const View g = piece.gradient();
                for_each_element(piece.parameter->shape, piece.blocks(), [&](int64_t e, int64_t i) {
                    const float value = gradient_of(*piece.parameter, e, step);
                    if (gradients == DType::f32)
                        g.as<float>()[i] = value;
                    else
                        g.as<bf16>()[i] = bf16(value);
                });
            }
            optimizer.step(kLr, kGradScale);
            dp.all_gather_weights();
        }
        dp.wait_for_weights();
        groups.world().barrier();
        const std::lock_guard lock(mutex);
        for (const optim::StateTensor& s : optimizer.state()) {
            const std::vector<float> values = floats_of(s.values);
            auto& whole = tensors.try_emplace(s.name, to_size(s.shape.numel()), NAN).first->second;
            for_each_element(s.shape, s.blocks, [&](int64_t e, int64_t i) {
                float& there = whole.at(to_size(e));
                if (std::isnan(there)) there = values.at(to_size(i));
                EXPECT_EQ(there, values.at(to_size(i))) << s.name << " element " << e << ", " << layout.name();
            });
        }
    });
    return tensors;
}

void expect_equal(const Tensors& one, const Tensors& many, const std::string& layout) {
    ASSERT_EQ(one.size(), many.size()) << layout;
    for (const auto& [name, values] : one) EXPECT_EQ(values, many.at(name)) << name << ", " << layout;
}

// p = p (1 - lr decay) - lr buf / ||buf||, buf = 0.9 buf + g, in double. The tolerance: a handful of f32 roundings of
// values below 4 in each of two steps, or 2^-9 of lr x where x goes through bf16.
void follows_the_formula(const Tensors& tensors, const std::vector<Parameter>& global, DType type) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    for (Parameter p : global) {
        if (p.shape.rank() < 2) continue;
        autograd::materialize(ctx, p, DType::f32, 3, false);
        const std::vector<float> initial = p.value.to_host<float>();
        std::vector<double> w(initial.begin(), initial.end()), buf(w.size());
        for (int step = 1; step <= kSteps; ++step)
            for (const mesh::Block& matrix : Normalised().matrices(p)) {
                const auto begin = to_size(mesh::flat_begin(p.shape, matrix)), end = begin + to_size(matrix.numel());
                double squares = 0;
                for (size_t e = begin; e < end; ++e) {
                    buf[e] = 0.9 * buf[e] + 0.5 * static_cast<double>(gradient_of(p, static_cast<int64_t>(e), step));
                    squares += buf[e] * buf[e];
                }
                for (size_t e = begin; e < end; ++e)
                    w[e] = w[e] * (1 - 0.25 * 0.5) - 0.25 * buf[e] / std::sqrt(squares);
            }
        const double tolerance = type == DType::f32 ? 0x1p-20 : 2 * 0.25 * 2 * 0x1p-9;
        for (size_t e = 0; e < w.size(); ++e) ASSERT_NEAR(tensors.at(p.name)[e], w[e], tolerance) << p.name << ' ' << e;
    }
}

TEST(UpdateRules, WholeMatricesUnderAnyLayout) {
    std::mt19937 random(11);
    for (int i = 0; i < 32 && !HasFailure(); ++i) {
        const std::vector<Parameter> global = random_parameters(random);
        const DType type = i % 2 == 0 ? DType::f32 : DType::bf16;
        const optim::MakeRule rule = [&](const auto&) { return std::make_unique<Normalised>(type); };
        const Tensors one = train({}, global, rule);
        follows_the_formula(one, global, type);
        const Layout layout = random_layout(random);
        expect_equal(one, train(layout, global, rule), layout.name());
    }
}

// Tutti's own rules with every storage of moments and gradients, with and without masters, and with groups of
// parameters. Codes of a byte need parts of whole blocks.
TEST(UpdateRules, StoredStateUnderAnyLayout) {
    std::mt19937 random(13);
    for (int i = 0; i < 48 && !HasFailure(); ++i) {
        const auto pick = [&](std::initializer_list<const char*> of) { return *(of.begin() + random() % of.size()); };
        spec::OptimizerSpec spec{.name = pick({"adamw", "sgd", "lion", "muon"}),
                                 .m = pick({"f32", "bf16", "u8"}),
                                 .v = pick({"f32", "bf16", "u8"}),
                                 .u8_embedding = random() % 2 == 0,
                                 .beta1 = 0.999};  // whose increments nearest rounding to bf16 would lose
        const bool masters = random() % 2 == 0;
        const DType gradients = random() % 2 == 0 ? DType::f32 : DType::bf16;
        if (random() % 2 == 0) spec.groups = {{"^norm|bias", 0.25, 2}, {"o", {}, 0.5}};
        std::vector<Parameter> global = random_parameters(random);
        if (spec.m == "u8" || spec.v == "u8")
            for (Parameter& p : global)
                if (p.shape.rank() > 1) p.shape[-1] = 1024;
        const Layout layout = random_layout(random);
        const std::string what =
            concat(spec.name, ", m ", spec.m, ", v ", spec.v, masters ? "" : ", no masters", ", gradients ",
                   name_of(gradients), ", groups ", spec.groups.size(), ", ", layout.name());
        SCOPED_TRACE(what);
        expect_equal(train({}, global, optim::make_rule, spec, masters, gradients),
                     train(layout, global, optim::make_rule, spec, masters, gradients), what);
    }
}

// Memory is bounded: with waves of one matrix, an owner has one whole matrix and no more when the rule sees it.
TEST(UpdateRules, OwnersShareTheMatrices) {
    std::mt19937 random(5);
    const std::vector<Parameter> global = random_parameters(random);
    size_t matrices = 0;
    for (const Parameter& p : global) matrices += Normalised().matrices(p).size();
    std::mutex mutex;
    std::map<std::thread::id, size_t> seen;  // by rank
    const auto count = [&](std::span<const Tensor> of_wave) {
        EXPECT_EQ(of_wave.size(), 1u);
        const std::lock_guard lock(mutex);
        ++seen[std::this_thread::get_id()];
    };
    Layout layout{.ranks = 4, .wave_values = 1};
    layout.run.parallel.dp_shard = 4;
    layout.run.parallel.zero = 3;
    train(layout, global, [&](const auto&) { return std::make_unique<Normalised>(DType::f32, count); });
    size_t all = 0;
    for (const auto& [rank, of_rank] : seen) all += of_rank;
    EXPECT_EQ(all, kSteps * matrices);  // each once a step
    EXPECT_EQ(seen.size(), 4u);
}

// And waves are as few as their memory allows: of eight matrices each of two owners has four, of which two fit.
TEST(UpdateRules, WavesAreFilled) {
    std::vector<Parameter> global;
    for (int i = 0; i < 8; ++i)
        global.push_back({.name = concat("w", i), .shape = {6, 4}, .role = Role::row, .init = {.std = 1}});
    std::mutex mutex;
    std::map<std::thread::id, std::vector<size_t>> waves;  // by rank
    const auto count = [&](std::span<const Tensor> of_wave) {
        const std::lock_guard lock(mutex);
        waves[std::this_thread::get_id()].push_back(of_wave.size());
    };
    Layout layout{.ranks = 2, .wave_values = 2 * 6 * 4};
    layout.run.parallel.dp_shard = 2;
    layout.run.parallel.zero = 3;
    train(layout, global, [&](const auto&) { return std::make_unique<Normalised>(DType::f32, count); });
    EXPECT_EQ(waves.size(), 2u);
    for (const auto& [rank, of_rank] : waves) EXPECT_EQ(of_rank, std::vector<size_t>(2 * kSteps, 2));
}

TEST(UpdateRules, BlocksOfElementsAreGlobal) {
    std::mt19937 random(7);
    const optim::MakeRule of_4 = [](const auto&) { return std::make_unique<Blocks>(4); };
    const optim::MakeRule of_96 = [](const auto&) { return std::make_unique<Blocks>(96); };
    for (int i = 0; i < 24 && !HasFailure(); ++i) {
        std::vector<Parameter> global = random_parameters(random);
        Layout layout = random_layout(random);
        // Rows of a multiple of 4 elements, for each rank of tp; or blocks that begin anywhere in a row, and no tp.
        const bool small = i % 2 == 0;
        if (small) {
            for (Parameter& p : global) p.shape[-1] = (p.shape[-1] + 15) / 16 * 16;
        } else {
            spec::ParallelSpec& p = layout.run.parallel;
            p.tp = p.ep = p.etp = p.dp_replicate = 1;
            p.dp_shard = 8 / (p.cp * p.pp);
        }
        const optim::MakeRule& rule = small ? of_4 : of_96;
        const Tensors one = train({}, global, rule);
        EXPECT_EQ(one.at("optimizer.largest.qkv").size(),
                  to_size((global[3].shape.numel() + (small ? 3 : 95)) / (small ? 4 : 96)));
        expect_equal(one, train(layout, global, rule), layout.name());
    }
}

TEST(UpdateRules, RefuseACutInsideABlock) {
    Layout layout{.ranks = 2};
    layout.run.parallel.tp = 2;
    const Parameter out{.name = "out", .shape = {4, 24}, .role = Role::row};
    try {
        train(layout, {out}, [](const auto&) { return std::make_unique<Blocks>(8); });
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what())
                      .find("out: \"largest\" of the optimizer has a value for 8 elements of (4, 24), "
                            "and this layout cuts at elements"),
                  std::string::npos)
            << error.what();
    }
}

TEST(UpdateRules, WholeMatricesNeedDataParallel) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    Parameter p{.name = "w", .shape = {3, 4}};
    autograd::materialize(ctx, p, DType::f32, 1, true);
    const optim::Rules rules({}, [](const auto&) { return std::make_unique<Normalised>(); });
    try {
        optim::Optimizer optimizer(ctx, optim::whole_shards({&p}), rules);
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("w: its update rule needs whole matrices"), std::string::npos);
    }
}

}  // namespace
}  // namespace tutti::parallel
