// Data parallelism on real steps: every stage of ZeRO and every shape of HSDP gives the same bits at one data-parallel
// degree, where docs/promises.md promises them; any degree follows one rank within rounding; state and traffic are what
// the formulas say.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/comm/testing/faulty_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/nn/functions.h"
#include "tutti/ops/ops.h"

namespace tutti::engine {
namespace {

struct Layout {
    int ranks = 1, dp_shard = 1;
    parallel::Zero zero = parallel::Zero::none;
    bool reduce_each = true;
    std::string recompute = "none";
    bool progress_thread = false;
    const spec::OffloadSpec* offload = nullptr;
    bool parameter_server = false;
    int tp = 1, cp = 1, pp = 1;
    bool sequence_parallel = true;
    int64_t tp_overlap = 1;
    std::string cp_method = "ring";
    int64_t cp_ulysses = 0;

    std::string name() const {
        return concat(
            ranks, " ranks, shard ", dp_shard, ", zero ", static_cast<int>(zero), reduce_each ? "" : ", reduced once",
            ", recompute ", recompute, progress_thread ? ", progress" : "", offload ? ", offload" : "",
            parameter_server ? ", parameter server" : "",
            cp > 1 ? concat(", cp ", cp, " ", cp_method, " ", cp_ulysses) : "", pp > 1 ? concat(", pp ", pp) : "",
            tp > 1
                ? concat(", tp ", tp, sequence_parallel ? " with sequence parallelism" : "", ", overlap ", tp_overlap)
                : "");
    }
};

const spec::OffloadSpec kOptimizerAway{.optimizer = true}, kStateAway{.optimizer = true, .params = true},
    kAllAway{.optimizer = true, .params = true, .activations = true},
    kAllButWeightsAway{.optimizer = true, .activations = true};

struct Outcome {
    std::vector<double> losses, norms;
    double eval_loss = 0;
    bool evaluated = false;
    bool ranks_agree = true;                              // on losses and norms
    std::map<std::string, std::vector<float>> weights;    // masters at the end
    std::map<std::string, std::vector<float>> gradients;  // of the first step
    std::array<int64_t, kPurposes> state{};               // bytes of all ranks after the first step
    std::map<std::string, comm::Usage> usage;             // of the first rank in the last step, by group
    comm::testing::Calls calls;                           // of the first rank
};

using comm::testing::Fault;
using comm::testing::FaultPlan;

spec::RunSpec tiny(spec::Family family, bool tied, const std::string& compute, int64_t micro_batch) {
    spec::RunSpec run;
    spec::ModelSpec& m = run.model;
    m.family = family;
    m.vocab = 67;
    m.width = 48;
    m.layers = 3;
    m.heads = m.kv_heads = 4;
    m.head_dim = 12;
    m.ffn = 80;
    m.max_positions = 16;
    m.tie_embeddings = tied;
    m.dropout = 0.1;
    m.init_std = 0.2;
    run.train.steps = 20;
    run.train.seed = 5;
    run.train.threads = 1;
    run.train.seq_len = 16;
    run.train.global_batch = 8;
    run.train.micro_batch = micro_batch;
    run.optimizer.warmup_steps = 1;
    run.optimizer.lr = run.optimizer.min_lr = 1e-2;
    run.precision.compute = compute;
    return run;
}

// Tokens by global sequence, some of them not targets: a mean of means would differ from the mean.
class Tokens final : public data::TokenSource {
  public:
    int64_t size() const override { return 4000; }
    void read(int64_t begin, std::span<int32_t> out) const override {
        for (size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<int32_t>(uniform_below(3, static_cast<uint64_t>(begin) + i, 67));
    }
    int64_t vocab_bound() const override { return 67; }
    std::string_view format() const override { return "test"; }
    std::string description() const override { return "test"; }
    std::string where(int64_t) const override { return "test"; }
};

template <class Which>
void note_pieces(std::map<std::string, std::vector<float>>& all, const std::vector<optim::ParameterShard>& pieces,
                 Which which) {
    for (const optim::ParameterShard& piece : pieces) {
        auto& whole = all[piece.parameter->name];
        const Shape& shape = piece.parameter->shape;
        whole.resize(to_size(shape.numel()), NAN);
        if (!piece.owned) continue;
        const std::vector<float> values = std::invoke(which, piece).to_floats();
        for (const auto& held : piece.blocks())
            mesh::for_each_run(held.block, mesh::whole_block(shape), held.block,
                               [&](int64_t to, int64_t from, int64_t n) {
                                   std::copy_n(values.begin() + held.begin + from, n, whole.begin() + to);
                               });
    }
}

std::map<std::string, comm::Usage> difference(const std::vector<parallel::GroupUsage>& before,
                                              const std::vector<parallel::GroupUsage>& after) {
    std::map<std::string, comm::Usage> difference;
    for (size_t g = 0; g < after.size(); ++g) {
        const comm::Usage &a = before[g].usage, &b = after[g].usage;
        difference[after[g].group] = {b.operations - a.operations, b.sent - a.sent, b.waited_s - a.waited_s};
    }
    return difference;
}

Outcome train(const spec::RunSpec& given, const Layout& layout, int64_t steps = 3,
              const std::optional<FaultPlan>& fault = std::nullopt, int64_t eval_batches = 5) {
    spec::RunSpec run = given;
    run.parallel.dp_shard = layout.dp_shard;
    run.parallel.dp_replicate = layout.ranks / layout.dp_shard / layout.tp / layout.cp / layout.pp;
    run.parallel.tp = layout.tp;
    run.parallel.cp = layout.cp;
    run.parallel.pp = layout.pp;
    run.parallel.cp_method = layout.cp_method;
    run.parallel.cp_ulysses = layout.cp_ulysses;
    run.parallel.sequence_parallel = layout.sequence_parallel;
    run.parallel.tp_overlap = layout.tp_overlap;
    run.parallel.zero = static_cast<int64_t>(layout.zero);
    run.parallel.accumulate = layout.reduce_each ? "shard" : "full";
    run.recompute.policy = layout.recompute;
    if (layout.offload) run.offload = *layout.offload;
    if (layout.parameter_server) run.parallel.strategy = "parameter_server";
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(
        layout.ranks, {.timeout_s = 60, .progress_thread = layout.progress_thread}, [&](comm::World& healthy) {
            comm::testing::FaultyWorld faulty(healthy, fault.value_or(FaultPlan{}));
            comm::World& world = fault ? static_cast<comm::World&>(faulty) : healthy;
            const data::TokenView view(std::make_shared<Tokens>(), 0, 4000, 67);
            const data::Sampler sampler(view, run.train.seq_len, 7);
            Engine engine(
                run, world, machine_of(run, {}, ::testing::TempDir()), [&](ops::Context& ctx, const BatchShard& share) {
                    return token_batches(ctx.device, sampler, run.train.micro_batch, run.train.global_batch, share);
                });
            parallel::DataParallel& dp = *engine.data_parallel;
            parallel::Groups& groups = engine.groups;
            for (int64_t step = 1; step <= steps; ++step) {
                const auto before = groups.usage();
                const StepResult r = train_step(engine, step);
                const std::lock_guard lock(mutex);
                if (step == 1)
                    for (const Purpose purpose : kAllPurposes)
                        outcome.state[to_size(purpose)] += engine.device->memory().usage(purpose).current;
                if (world.rank() == 0) outcome.usage = difference(before, groups.usage());
                if (step == 1) note_pieces(outcome.gradients, dp.parameter_shards(), &optim::ParameterShard::gradient);
                if (outcome.losses.size() < to_size(step)) {
                    outcome.losses.push_back(r.loss);
                    outcome.norms.push_back(r.grad_norm);
                }
                outcome.ranks_agree = outcome.ranks_agree && outcome.losses[to_size(step - 1)] == r.loss &&
                                      outcome.norms[to_size(step - 1)] == r.grad_norm;
            }
            const auto source = token_batches(*engine.device, sampler, 2, 2 * share_of(groups).ranks, share_of(groups));
            const double eval_loss = evaluate(engine, *source, eval_batches).value();
            dp.wait_for_weights();
            groups.world().barrier();
            const std::lock_guard lock(mutex);
            note_pieces(outcome.weights, engine.optimizer.parameter_shards(), &optim::ParameterShard::master);
            if (!std::exchange(outcome.evaluated, true)) outcome.eval_loss = eval_loss;
            outcome.ranks_agree = outcome.ranks_agree && outcome.eval_loss == eval_loss;
            if (world.rank() != 0) return;
            outcome.calls = faulty.calls();
        });
    return outcome;
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
    EXPECT_TRUE(a.ranks_agree && b.ranks_agree);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.eval_loss, b.eval_loss);
    EXPECT_EQ(a.gradients, b.gradients);
    EXPECT_EQ(a.weights, b.weights);
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        size += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
    return std::sqrt(difference / std::max(size, 1e-30));
}

using parallel::Zero;

class Parity : public ::testing::TestWithParam<std::pair<spec::Family, bool>> {
  protected:
    spec::RunSpec run(const std::string& compute, int64_t micro_batch) const {
        return tiny(GetParam().first, GetParam().second, compute, micro_batch);
    }
};

TEST_P(Parity, StagesShapesAndRecomputeGiveTheSameBits) {
    for (const char* compute : {"f32", "bf16"}) {
        const Outcome plain = train(run(compute, 2), {.ranks = 4, .dp_shard = 1, .zero = Zero::none});
        for (const Layout& layout :
             std::vector<Layout>{{4, 4, Zero::none},
                                 {4, 4, Zero::optimizer},
                                 {4, 4, Zero::gradients},
                                 {4, 4, Zero::weights},
                                 {4, 2, Zero::optimizer},
                                 {4, 2, Zero::gradients},
                                 {4, 2, Zero::weights},
                                 {4, 1, Zero::weights},
                                 {4, 4, Zero::weights, true, "full"},
                                 {4, 2, Zero::gradients, true, "every:2"},
                                 {4, 4, Zero::weights, true, "sqrt", true},
                                 {4, 2, Zero::optimizer, true, "none", true},
                                 {4, 4, Zero::gradients, true, "selective"},
                                 {4, 4, Zero::none, true, "none", false, &kOptimizerAway},
                                 {4, 4, Zero::none, true, "none", false, nullptr, true},
                                 {4, 2, Zero::none, true, "full", true, nullptr, true},
                                 {4, 4, Zero::weights, true, "none", true, &kStateAway},
                                 {4, 2, Zero::weights, true, "selective", false, &kAllAway},
                                 {4, 4, Zero::optimizer, true, "every:2", false, &kAllButWeightsAway},
                                 {4, 4, Zero::weights, true, "full", false, &kAllAway}}) {
            SCOPED_TRACE(concat(compute, ": ", layout.name()));
            expect_same_bits(plain, train(run(compute, 2), layout));
        }
    }
}

std::vector<float> rounded(std::vector<float> values) {
    for (float& x : values) x = static_cast<float>(bf16(x));
    return values;
}

// Gradients stored in 16 bits are those of f32, rounded once for each contribution and once for each sum over ranks.
TEST_P(Parity, GradientsInBf16AreRoundedOnce) {
    spec::RunSpec half = run("bf16", 2);
    half.precision.gradients = "bf16";
    // One microbatch of one rank: the bits of a rounded f32 gradient. A tied matrix has two contributions.
    spec::RunSpec wide = half;
    wide.precision.gradients = "f32";
    for (spec::RunSpec* r : {&half, &wide}) r->train.global_batch = 2;
    const Outcome f32 = train(wide, {}, 1), one = train(half, {}, 1);
    for (const auto& [name, gradient] : one.gradients) {
        EXPECT_EQ(gradient, rounded(gradient)) << name;
        if (gradient.size() == 67 * 48 && half.model.tie_embeddings) {
            EXPECT_LT(relative(f32.gradients.at(name), gradient), 2 * 0x1p-8) << name;
        } else {
            EXPECT_EQ(gradient, rounded(f32.gradients.at(name))) << name;
        }
    }
    // One microbatch of each rank: the same bits under every stage, sums over replicas are rounded once more.
    for (spec::RunSpec* r : {&half, &wide}) r->train.global_batch = 8;
    const Outcome plain = train(half, {.ranks = 4, .dp_shard = 1, .zero = Zero::none});
    for (const Layout& layout :
         std::vector<Layout>{{4, 4, Zero::optimizer},
                             {4, 4, Zero::gradients},
                             {4, 4, Zero::weights},
                             {4, 4, Zero::gradients, false},
                             {4, 4, Zero::weights, true, "full"},
                             {4, 4, Zero::weights, true, "none", true, &kStateAway},
                             {4, 4, Zero::optimizer, true, "every:2", false, &kAllButWeightsAway}}) {
        SCOPED_TRACE(layout.name());
        expect_same_bits(plain, train(half, layout));
    }
    // A rounding of a contribution (2^-9 of each value at most), of each later sum, and of the sums over the ranks of
    // two axes; twice for a tied matrix. Four microbatches: errors of independent signs, of 2^-9 / sqrt(3) each.
    const Outcome wide_sum = train(wide, {.ranks = 4, .dp_shard = 4, .zero = Zero::optimizer}, 1);
    const auto near = [&](const Outcome& o, double bound) {
        EXPECT_TRUE(o.ranks_agree);
        for (const auto& [name, gradient] : wide_sum.gradients)
            EXPECT_LT(relative(gradient, o.gradients.at(name)), bound) << name;
    };
    near(train(half, {4, 2, Zero::weights}, 1), 4 * 0x1p-9);
    near(train(half, {4, 1, Zero::optimizer}, 1), 4 * 0x1p-9);
    half.train.micro_batch = 1;
    near(train(half, {1, 1, Zero::none}, 1), 8 * 0x1p-9);
    near(train(half, {2, 2, Zero::weights}, 1), 8 * 0x1p-9);
    near(train(half, {2, 2, Zero::optimizer}, 1), 8 * 0x1p-9);
}

// f32 gradients, rounded once for the links: what every rank contributes is a 16-bit value, and their sum is not.
TEST_P(Parity, ReductionsInBf16RoundOnce) {
    spec::RunSpec given = run("bf16", 2);
    const Outcome exact = train(given, {4, 4, Zero::optimizer}, 1);
    given.precision.reduce = "bf16";
    const Outcome plain = train(given, {4, 4, Zero::optimizer});
    bool summed_wide = false;
    for (const auto& [name, gradient] : train(given, {4, 4, Zero::optimizer}, 1).gradients) {
        EXPECT_LT(relative(exact.gradients.at(name), gradient), 4 * 0x1p-9) << name;  // contributions cancel in part
        summed_wide = summed_wide || gradient != rounded(gradient);
    }
    EXPECT_TRUE(summed_wide);
    for (const Layout& layout : std::vector<Layout>{{4, 4, Zero::gradients},
                                                    {4, 4, Zero::weights},
                                                    {4, 4, Zero::weights, false},
                                                    {4, 4, Zero::gradients, false}}) {
        SCOPED_TRACE(layout.name());
        expect_same_bits(plain, train(given, layout));
    }
}

// Four microbatches on two ranks; reduced once, so that the order of addition is the same for all.
TEST_P(Parity, AccumulationGivesTheSameBitsWhenReducedOnce) {
    const spec::RunSpec four = run("f32", 1);
    const Outcome plain = train(four, {.ranks = 2, .dp_shard = 1, .zero = Zero::none});
    for (const Layout& layout : std::vector<Layout>{{2, 2, Zero::optimizer},
                                                    {2, 2, Zero::gradients, false},
                                                    {2, 2, Zero::weights, false},
                                                    {2, 1, Zero::weights, false}}) {
        SCOPED_TRACE(layout.name());
        expect_same_bits(plain, train(four, layout));
    }
    // Reduced in each microbatch: another order of addition, the same sum.
    const Outcome each = train(four, {2, 2, Zero::weights, true});
    for (const auto& [name, gradient] : plain.gradients)
        EXPECT_LT(relative(gradient, each.gradients.at(name)), 1e-6) << name;
}

// The two conditions of the promise of equal bits (docs/promises.md), and that it needs them: sums over ranks go along
// one tree that splits at powers of two, and microbatches that are reduced one by one are added in another order.
TEST_P(Parity, EqualBitsNeedPowersOfTwoInShardGroupsAndOneReduction) {
    spec::RunSpec six = run("f32", 2);
    six.train.global_batch = 12;  // a microbatch a rank
    const Outcome plain = train(six, {.ranks = 6, .dp_shard = 1, .zero = Zero::none});
    for (const Layout& layout : std::vector<Layout>{
             {6, 6, Zero::weights}, {6, 2, Zero::weights}, {6, 2, Zero::optimizer}, {6, 1, Zero::weights}}) {
        SCOPED_TRACE(layout.name());
        expect_same_bits(plain, train(six, layout));
    }
    const spec::RunSpec four = run("f32", 1);  // four microbatches on each of two ranks
    const Outcome once = train(four, {2, 2, Zero::weights, false});
    expect_same_bits(once, train(four, {.ranks = 2, .dp_shard = 1, .zero = Zero::none}));

    const std::pair<const Outcome*, Outcome> others[] = {{&plain, train(six, {6, 3, Zero::weights})},
                                                         {&once, train(four, {2, 2, Zero::weights, true})}};
    for (const auto& [equal, other] : others) {
        EXPECT_TRUE(other.ranks_agree);
        EXPECT_NE(equal->gradients, other.gradients);  // were they equal, the condition could go
        for (const auto& [name, gradient] : equal->gradients)
            EXPECT_LT(relative(gradient, other.gradients.at(name)), 1e-6) << name;
    }
}

// Promise 1 of docs/design.md: f32, 1e-5 (L2) of one rank.
TEST_P(Parity, AnyNumberOfRanksFollowsOne) {
    // In its first steps AdamW moves a weight by lr, in the direction of the gradient's sign. Where a gradient is 0 but
    // for rounding errors, the errors decide the sign, unless they are far below eps.
    spec::RunSpec given = run("f32", 1);
    given.optimizer.eps = 1e-4;
    const Outcome one = train(given, {});
    for (const Layout& layout : std::vector<Layout>{
             {2, 2, Zero::optimizer},
             {4, 2, Zero::weights},
             {8, 8, Zero::gradients},
             {8, 4, Zero::weights},
             {.ranks = 2, .tp = 2},
             {.ranks = 4, .zero = Zero::optimizer, .tp = 4, .sequence_parallel = false},
             {.ranks = 8, .dp_shard = 2, .zero = Zero::weights, .recompute = "full", .tp = 2},
             {.ranks = 8,
             .dp_shard = 2,
             .zero = Zero::gradients,
             .recompute = "selective",
             .offload = &kAllButWeightsAway,
             .tp = 4},
             {.ranks = 2, .cp = 2},
             {.ranks = 4, .cp = 4, .cp_method = "all_gather"},
             {.ranks = 4, .zero = Zero::gradients, .cp = 4, .cp_ulysses = 2},
             {.ranks = 4, .zero = Zero::weights, .recompute = "full", .tp = 2, .cp = 2, .cp_method = "ulysses"},
             {.ranks = 8, .dp_shard = 2, .zero = Zero::weights, .recompute = "selective", .tp = 2, .cp = 2}}) {
        SCOPED_TRACE(layout.name());
        const Outcome many = train(given, layout);
        for (size_t i = 0; i < one.losses.size(); ++i) {
            EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << i;
            EXPECT_NEAR(many.norms[i], one.norms[i], 1e-5 * one.norms[i]) << i;
        }
        EXPECT_NEAR(many.eval_loss, one.eval_loss, 1e-5 * one.eval_loss);
        for (const auto& [name, gradient] : one.gradients)
            EXPECT_LT(relative(gradient, many.gradients.at(name)), 1e-5) << name;
    }
}

bool same_bits(const Outcome& a, const Outcome& b) {
    return a.ranks_agree && b.ranks_agree && a.losses == b.losses && a.norms == b.norms && a.eval_loss == b.eval_loss &&
           a.gradients == b.gradients && a.weights == b.weights;
}

// Each single operation of a run: dropped, carried out twice, or its result scaled. A gather or an exchange that is
// carried out twice gives the same; everything else must not. Of messages their receipt. Each data-parallel rank
// evaluates one batch: the operations of further ones are the same.
void expect_faults_noticed(const spec::RunSpec& run, const Layout& layout, int64_t steps) {
    const int64_t eval_batches = layout.ranks / layout.tp / layout.cp / layout.pp;
    const Outcome healthy = train(run, layout, steps, FaultPlan{}, eval_batches);
    for (const auto& [of, count] : healthy.calls) {
        if (of.second == comm::Kind::barrier || of.second == comm::Kind::send) continue;
        for (int index = 0; index < count; ++index)
            for (const Fault fault : {Fault::drop, Fault::twice, Fault::misscale}) {
                const bool repeatable = of.second == comm::Kind::all_gather || of.second == comm::Kind::all_to_all ||
                                        of.second == comm::Kind::receive;
                if (fault == Fault::twice && repeatable) continue;
                const Outcome faulty =
                    train(run, layout, steps, FaultPlan{fault, of.first, of.second, index}, eval_batches);
                EXPECT_FALSE(same_bits(healthy, faulty))
                    << layout.name() << ": " << of.first << ' ' << name_of(of.second) << ' ' << index << ", fault "
                    << static_cast<int>(fault);
            }
    }
}

// The comparison of the tests above sees all of them.
TEST_P(Parity, NoticesEveryFaultOfEveryOperation) {
    const spec::RunSpec r = run("f32", 1);
    const Layout plain_layout{4, 1, Zero::none};
    const Outcome plain = train(r, plain_layout, 2);
    for (const Layout& layout : std::vector<Layout>{
             plain_layout, {4, 2, Zero::optimizer}, {4, 2, Zero::gradients, false}, {4, 2, Zero::weights, false}}) {
        ASSERT_TRUE(same_bits(plain, train(r, layout, 2, FaultPlan{}))) << layout.name();
        expect_faults_noticed(r, layout, 2);
    }
}

TEST_P(Parity, NoticesEveryFaultOfTheOtherAxes) {
    const spec::RunSpec r = run("f32", 8);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .zero = Zero::optimizer, .tp = 2},
                                                    {.ranks = 2, .pp = 2},
                                                    {.ranks = 2, .cp = 2},
                                                    {.ranks = 2, .cp = 2, .cp_method = "all_gather"},
                                                    {.ranks = 2, .cp = 2, .cp_method = "ulysses"},
                                                    {.ranks = 2, .tp = 2, .sequence_parallel = false},
                                                    {.ranks = 2, .tp = 2, .tp_overlap = 2},
                                                    {.ranks = 2, .tp = 2, .sequence_parallel = false, .tp_overlap = 2}})
        expect_faults_noticed(r, layout, 1);
}
// By other bits, or by an error: a rank's shard does not lie where another group's member has its own.
bool notices(const Outcome& plain, const spec::RunSpec& run, const Layout& layout, const FaultPlan& fault) {
    try {
        return !same_bits(plain, train(run, layout, 2, fault));
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("lies inside the whole tensor at byte"), std::string::npos)
            << error.what();
        return true;
    }
}

// Shards and replicas of a 2 x 2 mesh exchanged, in all operations or only in one of the two groups.
TEST_P(Parity, NoticesWrongGroups) {
    const spec::RunSpec r = run("f32", 1);
    const auto rows = [](int rank) { return std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}; };
    const auto columns = [](int rank) { return std::vector<int>{rank % 2, rank % 2 + 2}; };
    const Outcome plain = train(r, {4, 1, Zero::none}, 2);
    for (const Zero zero : {Zero::optimizer, Zero::gradients, Zero::weights}) {
        const Layout layout{4, 2, zero, false};
        ASSERT_TRUE(same_bits(plain, train(r, layout, 2)));
        for (const auto& wrong :
             std::vector<decltype(FaultPlan::wrong_groups)>{{{"dp_shard", columns}}, {{"dp_replicate", rows}}})
            EXPECT_TRUE(notices(plain, r, layout, FaultPlan{.wrong_groups = wrong}))
                << layout.name() << ": " << wrong.begin()->first;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         ::testing::Values(std::pair{spec::Family::llama, true}, std::pair{spec::Family::llama, false},
                                           std::pair{spec::Family::gpt2, true}),
                         [](const auto& model) {
                             return std::string(spec::name_of(model.param.first)) + (model.param.second ? "_tied" : "");
                         });

// Memory that holds NaN must not be seen: a first term overwrites it, and what gets no term is zero.
TEST(FlatUnit, GradientsStartFromNothing) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    autograd::Parameter used{.name = "used", .shape = {3, 2}}, unused{.name = "unused", .shape = {4}};
    parallel::FlatUnit unit(ctx, {&used, &unused}, {.compute = DType::f32});
    unit.allocate_gradients();
    for (const autograd::Parameter* p : unit.parameters()) ops::fill(ctx, p->gradient, NAN);
    const auto tensor = [&](const Shape& shape, float value) {
        const Tensor x = ops::empty(ctx, shape, DType::f32, Purpose::activations);
        ops::fill(ctx, x, value);
        return x;
    };
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
        autograd::Tape tape(ctx, true);
        tape.backward(nn::linear(tape, tape.input(tensor({5, 2}, 2)), {used, nullptr}), tensor({5, 3}, 3));
    }
    unit.complete_gradients();
    std::vector<float> expected(to_size(unit.layout().padded), 0);
    std::fill_n(expected.begin() + unit.layout().offsets[0], 6, 2 * 5 * 2 * 3);  // microbatches x rows x x dy
    EXPECT_EQ(unit.gradients().to_host<float>(), expected);
}

// Sizes of the flat buffers of a model without tied parameters: one for each unit, and one for parameters reduced
// before the others of its unit. Words are held in whole tiles of 64 rows (parallel::apply).
std::vector<int64_t> buffers(models::Model& model) {
    std::vector<int64_t> sizes;
    for (const autograd::Unit* unit : model.units(model.all())) {
        int64_t size = 0, early = 0;
        const auto held = [](const autograd::Parameter& p) {
            const bool words = p.role == autograd::Role::vocabulary;
            return words ? (p.shape[0] + 63) / 64 * 64 * p.shape[1] : p.shape.numel();
        };
        for (const autograd::Parameter* p : unit->parameters) size += held(*p);
        for (const autograd::Parameter* p : unit->gradients_in_forward) early += held(*p);
        sizes.push_back(size - early);
        if (early > 0) sizes.push_back(early);
    }
    return sizes;
}

// Bytes per parameter of parallelism.md, section 2: 2 weights + 4 gradients + 12 optimizer, on each rank or on all
// together; to the byte, with the padding to whole blocks in what is cut. Moments have no padding. ZeRO-3 keeps masters
// alone. Gradients have 4 bytes or 2, first moments too, and without masters weights are all.
TEST(ZeroMemory, IsWhatTheFormulasSay) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::reference_table()};
    models::Model model = models::make_model(ctx, tiny(spec::Family::llama, false, "bf16", 1).model, 16);
    for (const auto& [n, g, m, masters] : std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>{
             {2, 4, 4, 1}, {4, 4, 4, 1}, {2, 2, 4, 1}, {4, 2, 2, 1}, {4, 2, 4, 0}}) {
        spec::RunSpec run = tiny(spec::Family::llama, false, "bf16", 1);
        run.precision.gradients = g == 2 ? "bf16" : "f32";
        run.precision.master = masters ? "f32" : "none";
        run.optimizer.m = m == 2 ? "bf16" : "f32";
        const int64_t moments = m + 4;
        int64_t padded = 0, exact = 0;
        for (const int64_t size : buffers(model)) {
            exact += size;
            padded += (size + n * 256 - 1) / (n * 256) * (n * 256);
        }
        struct Expected {
            Zero zero;
            int64_t weights, gradients, optimizer;  // of all ranks
        };
        const int64_t state = masters * 4 * padded + moments * exact;
        for (const Expected& e :
             {Expected{Zero::none, n * 2 * exact, n * g * exact, n * (masters * 4 + moments) * exact},
              Expected{Zero::optimizer, n * 2 * padded, n * g * padded, state},
              Expected{Zero::gradients, n * 2 * padded, g * padded, state},
              Expected{Zero::weights, masters ? 0 : 2 * padded, g * padded, state}}) {
            SCOPED_TRACE(concat("gradients of ", g, " bytes, m of ", m, ", masters ", masters));
            const Outcome o = train(run, {static_cast<int>(n), static_cast<int>(n), e.zero}, 1);
            EXPECT_EQ(o.state[to_size(Purpose::weights)], e.weights) << static_cast<int>(e.zero);
            EXPECT_EQ(o.state[to_size(Purpose::gradients)], e.gradients) << static_cast<int>(e.zero);
            EXPECT_EQ(o.state[to_size(Purpose::optimizer)], e.optimizer) << static_cast<int>(e.zero);
        }
    }
}

// Traffic of parallelism.md, section 2, of one microbatch per rank: 2P, 2P, 2P, 3P times (n - 1) / n, in padded values
// of their own types. ZeRO-3 gathers a unit twice, but for the head and its norm, whose backward follows their forward
// at once, and the embedding, whose backward reads no weights. With dp_replicate the shards are summed over the
// replicas, 2 (r - 1) / r of each.
TEST(ZeroTraffic, IsWhatTheFormulasSay) {
    for (const char* compute : {"f32", "bf16"}) {
        const int64_t weight = compute == std::string("f32") ? 4 : 2;
        const spec::RunSpec run = tiny(spec::Family::llama, false, compute, 2);
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::reference_table()};
        models::Model model = models::make_model(ctx, run.model, 16);
        const std::vector<int64_t> sizes = buffers(model);
        const auto count = static_cast<int64_t>(sizes.size());
        // Beside these: the number of targets (dp), the exact sums of the loss and of the norm (world).
        const auto sum = [](int64_t words, int64_t n) {
            return comm::bytes_sent(comm::Kind::all_reduce, 8 * words, n);
        };
        for (const auto& [shards, replicas] : {std::pair<int64_t, int64_t>{4, 1}, {2, 2}, {1, 4}}) {
            int64_t P = 0, padded = 0, head = 0, embedding = 0, whole = 0, replicated = 0;
            for (size_t i = 0; i < sizes.size(); ++i) {
                const int64_t size = sizes[i];
                P += size;
                // One shard is the whole, without padding.
                const int64_t here = shards == 1 ? size : (size + shards * 256 - 1) / (shards * 256) * (shards * 256);
                padded += here;
                if (i == 0) embedding = here;
                if (i + 2 >= sizes.size()) head += here;
                replicated += 2 * (replicas - 1) * (4 * here / shards) / replicas;
                whole += comm::bytes_sent(comm::Kind::all_reduce, 4 * size, 4);
            }
            EXPECT_LT(padded, 3 * P);  // the test's model is small; padding is 255 values a shard and unit at most
            const auto part = [&, n = shards](int64_t bytes) { return bytes / n * (n - 1); };
            for (const Zero zero : {Zero::none, Zero::optimizer, Zero::gradients, Zero::weights}) {
                SCOPED_TRACE(concat(compute, ", zero ", static_cast<int>(zero), ", shards ", shards));
                auto usage = train(run, {4, static_cast<int>(shards), zero}).usage;
                EXPECT_EQ(usage.count("dp_shard"), shards > 1);
                EXPECT_EQ(usage.count("dp_replicate"), replicas > 1);
                EXPECT_EQ(usage["world"].sent, 2 * sum(ExactSum::kWords, 4));
                EXPECT_EQ(usage["world"].operations, 2);
                for (const auto& [name, group] : usage) {
                    EXPECT_GE(group.waited_s, 0) << name;
                    EXPECT_TRUE(group.operations > 0 || group.waited_s == 0) << name;
                }
                if (zero == Zero::none) {
                    EXPECT_EQ(usage["dp"].sent, whole + sum(1, 4));
                    EXPECT_EQ(usage["dp"].operations, count + 1);
                    EXPECT_EQ(usage["dp_shard"].operations + usage["dp_replicate"].operations, 0);
                    continue;
                }
                const int64_t gathered = zero == Zero::weights ? 2 * padded - head - embedding : padded;
                EXPECT_EQ(usage["dp"].sent, sum(1, 4));
                EXPECT_EQ(usage["dp"].operations, 1);
                EXPECT_EQ(usage["dp_replicate"].sent, replicated);
                EXPECT_EQ(usage["dp_replicate"].operations, replicas > 1 ? count : 0);
                if (shards == 1) continue;
                EXPECT_EQ(usage["dp_shard"].sent, part(4 * padded) + part(weight * gathered));
                EXPECT_EQ(usage["dp_shard"].operations, zero == Zero::weights ? 3 * count - 3 : 2 * count);
            }
        }
    }
}

}  // namespace
}  // namespace tutti::engine
