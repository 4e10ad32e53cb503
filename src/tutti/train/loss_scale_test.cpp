// The loss scale in whole runs. Every power of two gives the bits of 1 in f32 and bf16: a factor that is missing,
// doubled or left in anywhere would change them. In f16 a step that overflows changes nothing but the scale.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tutti/base/to_size.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/algorithms.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/learning_rate.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train::loss_scale_test {
namespace {

using Settings = std::vector<std::string>;

Settings operator+(Settings a, const Settings& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

struct Layout {
    int ranks;
    Settings set;
};

std::string text_of(const Layout& layout) {
    std::string text = concat(layout.ranks, " ranks");
    for (const std::string& key : layout.set) text += " " + key;
    return text;
}

class LossScales : public SmallRun {
  protected:
    // Loss and balancing loss of each step, then the checkpoint.
    struct Result {
        std::vector<std::string> steps;
        std::vector<double> norms;
        std::map<std::string, std::vector<std::byte>> state;
    };
    Result result_of(const TrainOptions& o) const {
        train(o);
        Result r{.state = weights(o)};
        for (const Json& line : logged(o, [](const std::string& text) { return Json::parse(text); })) {
            const std::string aux = line.contains("aux_loss") ? line.at("aux_loss").dump() : "";
            r.steps.push_back(line.at("loss").dump() + ' ' + aux);
            r.norms.push_back(line.at("grad_norm").is_null() ? INFINITY : line.at("grad_norm").get<double>());
        }
        return r;
    }
    // With a scale of 1, and with one drawn from 2^-4 .. 2^24 that is not 1.
    void expect_bits_of_one(const Layout& layout) {
        SCOPED_TRACE(text_of(layout));
        const Settings set = Settings{"train.steps=3", "train.micro_batch=1", "train.global_batch=8"} + layout.set;
        std::uniform_int_distribution<int> exponents(1, 28);
        int exponent = exponents(random_) - 4;
        if (exponent <= 0) --exponent;
        const std::string scale = spec::toml_text(std::exp2(exponent));
        const Result one = result_of(options(concat("one", ++runs_), set, layout.ranks));
        const Result scaled =
            result_of(options(concat("scaled", runs_), set + Settings{"precision.loss_scale=" + scale}, layout.ranks));
        ASSERT_EQ(one.steps.size(), 3u);
        EXPECT_EQ(scaled.steps, one.steps) << "scale " << scale;
        EXPECT_EQ(scaled.norms, one.norms) << "scale " << scale;
        EXPECT_TRUE(scaled.state == one.state) << "scale " << scale << ": another checkpoint";
    }
    void expect_bits_of_one(const std::vector<Layout>& layouts, const Settings& more = {}) {
        for (const Layout& layout : layouts)
            for (const char* compute : {"f32", "bf16"})
                expect_bits_of_one(
                    Layout{layout.ranks, more + layout.set + Settings{concat("precision.compute=", compute)}});
    }
    // Of an f16 run that begins far above what f16 holds: the first steps overflow.
    TrainOptions too_large(const std::string& out, const Settings& set, int ranks = 1) const {
        return options(out,
                       Settings{"precision.compute=f16", "precision.loss_scale_initial=1.099511627776e12",
                                "precision.loss_scale_hysteresis=1", "precision.loss_scale_interval=3"} +
                           set,
                       ranks);
    }
    static Json state_of(const TrainOptions& o, int64_t step) {
        checkpoint::PosixFileSystem files;
        checkpoint::CheckpointReader reader(files, concat(o.out, "/checkpoints/", checkpoint::step_name(step)));
        return Json::parse(reader.manifest().state);
    }

    std::mt19937 random_{20261127};
    int runs_ = 0;
};

TEST_F(LossScales, OnOneRankHaveTheBitsOfOne) {
    expect_bits_of_one(
        {{1, {}},
         {1, {"model.tie_embeddings=false", "optimizer.clip=0"}},
         {1, {"recompute.policy=full", "model.dropout=0.1"}},
         {1, {"recompute.policy=selective", "train.packed_weights=always"}},
         {1, {"offload.optimizer=true", "offload.activations=true"}},
         {1, {"optimizer.name=muon"}},
         {1, {"optimizer.name=sgd"}},
         {1, {"optimizer.name=lion", "optimizer.lr=0.001"}},
         {1, {"optimizer.m=u8", "optimizer.v=u8"}},
         {1, {"precision.gradients=bf16", "optimizer.m=bf16", "optimizer.v=bf16"}},
         {1, {"data.documents=respected", "data.eod=10"}},
         {1, {"precision.recipe=tensor", "model.layers=3"}},
         {1, {"precision.recipe=mxfp8", "model.layers=3"}},
         {1, {"model.preset=lfm2-tiny", "model.layers=4", "recompute.policy=full"}},
         {1,
          {"model.preset=gpt2-124m", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.head_dim=16",
           "model.ffn=128", "model.vocab=300", "model.layers=2", "model.max_positions=64"}}});
}

TEST_F(LossScales, UnderDataParallelismHaveTheBitsOfOne) {
    expect_bits_of_one({{4, {"parallel.zero=0"}},
                        {4, {"parallel.zero=1"}},
                        {4, {"parallel.zero=2", "precision.gradients=bf16"}},
                        {4, {"parallel.zero=3", "recompute.policy=full", "offload.activations=true"}},
                        {4, {"parallel.zero=3", "parallel.dp_replicate=2"}},
                        {4, {"parallel.zero=3", "offload.params=true", "offload.optimizer=true"}},
                        {4, {"parallel.zero=1", "precision.reduce=bf16"}},
                        {2, {"parallel.strategy=parameter_server", "parallel.zero=0"}}});
}

TEST_F(LossScales, UnderTensorAndContextParallelismHaveTheBitsOfOne) {
    expect_bits_of_one({{2, {"parallel.tp=2"}},
                        {2, {"parallel.tp=2", "parallel.sequence_parallel=false"}},
                        {4, {"parallel.tp=2", "parallel.tp_overlap=2", "parallel.zero=3"}},
                        {2, {"parallel.cp=2"}},
                        {2, {"parallel.cp=2", "parallel.cp_method=ulysses", "model.kv_heads=2"}},
                        {4, {"parallel.cp=2", "parallel.cp_method=all_gather", "recompute.policy=selective"}},
                        {4, {"parallel.tp=2", "parallel.cp=2"}}});
}

TEST_F(LossScales, UnderEveryScheduleHaveTheBitsOfOne) {
    for (const schedule::Kind& kind : schedule::kinds()) {
        Settings set = {"model.layers=4", "parallel.pp=2", concat("parallel.schedule=", kind.name),
                        concat("parallel.virtual_stages=", kind.chunks == 0 ? 2 : 1)};
        const bool tied = random_() % 2 == 0;
        set.push_back(concat("model.tie_embeddings=", tied ? "true" : "false"));
        set.push_back(concat("precision.compute=", random_() % 2 == 0 ? "f32" : "bf16"));
        expect_bits_of_one(Layout{2, set});
    }
    expect_bits_of_one({{4, {"parallel.pp=2", "parallel.schedule=zb-h1", "parallel.tp=2"}},
                        {4, {"parallel.pp=2", "parallel.zero=2", "model.tie_embeddings=true"}}});
}

TEST_F(LossScales, WithBalancingLossesHaveTheBitsOfOne) {
    compares_rehearsal_ = false;
    const Settings mixture = {"model.preset=moe-tiny", "model.width=32",        "model.layers=2",
                              "model.heads=4",         "model.kv_heads=2",      "model.head_dim=8",
                              "model.moe.ffn=24",      "model.moe.z_coef=0.01", "model.moe.aux_coef=0.1"};
    for (const char* aux_loss : {"microbatch", "sequence", "all_layers", "global", "none"})
        expect_bits_of_one(
            {{1, {"recompute.policy=full"}}, {2, {"parallel.ep=2"}}, {2, {"parallel.tp=2"}}, {2, {"parallel.pp=2"}}},
            mixture + Settings{concat("model.moe.aux_loss=", aux_loss),
                               concat("model.moe.aux_coef=", aux_loss == std::string("none") ? 0.0 : 0.1)});
    expect_bits_of_one(
        {{4, {"parallel.ep=2", "parallel.cp=2", "parallel.zero=3"}}, {4, {"parallel.etp=2", "parallel.ep=2"}}},
        mixture);
}

// 2^40 times the gradients of a mean is more than f16 holds.
TEST_F(LossScales, AnOverflowChangesNothingButTheScale) {
    const auto o = too_large("skips", {"train.steps=60", "train.max_skipped=1", "checkpoint.every=1",
                                       "checkpoint.keep=100", "optimizer.warmup_steps=3"});
    train(o);
    const auto lines = logged(o, [](const std::string& line) { return Json::parse(line); });
    ASSERT_EQ(lines.size(), 60u);
    double scale = 0x1p40;
    int64_t skipped = 0, good = 0;
    for (const Json& line : lines) {
        const auto step = line.at("step").get<int64_t>();
        EXPECT_EQ(line.at("loss_scale").get<double>(), scale) << step;
        EXPECT_TRUE(std::isfinite(line.at("loss").get<double>()));
        EXPECT_EQ(line.at("lr").get<double>(), spec::learning_rate(o.run, step));
        EXPECT_EQ(line.at("tokens").get<int64_t>(), step * 4 * 16);
        const bool skips = line.at("skipped").get<int64_t>() > skipped;
        EXPECT_EQ(skips, line.contains("skip_reason")) << step;
        if (skips) {
            ++skipped;
            EXPECT_TRUE(line.at("grad_norm").is_null());
            EXPECT_NE(line.at("skip_reason").get<std::string>(), "loss");
            scale /= 2;
            good = 0;
        } else if (++good == 3) {
            scale *= 2;
            good = 0;
        }
        const Json state = state_of(o, step);
        EXPECT_EQ(state.at("updates").get<int64_t>(), step - skipped);
        EXPECT_EQ(state.at("loss_scale").at("value").get<double>(), scale);
        EXPECT_EQ(state.at("loss_scale").at("good").get<int64_t>(), good);
    }
    EXPECT_GE(skipped, 5);
    EXPECT_LT(skipped, 40);
    EXPECT_LT(lines.back().at("loss").get<double>(), lines.front().at("loss").get<double>() - 0.3);
    EXPECT_NE(read_file(o.out + "/report.html").find("Loss scale"), std::string::npos);
}

// Master weights and moments, to the bit, on every rank.
class SkippedSteps : public LossScales {
  protected:
    using Values = std::vector<std::vector<float>>;
    static Values state_of_rank(const engine::Engine& engine) {
        Values all;
        for (const checkpoint::TensorSlice& slice : state_slices(engine)) all.push_back(slice.values.to_floats());
        for (const optim::ParameterShard& p : engine.optimizer.parameter_shards()) all.push_back(p.value.to_floats());
        return all;
    }
    // body(rank, engine) on the ranks of a run without data.
    static void on_ranks(const TrainOptions& o, const std::function<void(int, engine::Engine&)>& body) {
        comm::run_ranks(o.ranks, {}, [&](comm::World& world) {
            engine::Engine engine(o.run, world, engine::machine_of(o.run, {}, ""),
                                  [&](ops::Context& ctx, const engine::BatchShard& share) {
                                      return engine::fixed_batches(ctx, o.run, share);
                                  });
            engine.data_parallel->wait_for_weights();
            body(world.rank(), engine);
        });
    }
};

TEST_F(SkippedSteps, LeaveWeightsMomentsAndCountersUntouched) {
    for (const Layout& layout : std::vector<Layout>{{1, {}},
                                                    {1, {"optimizer.name=muon"}},
                                                    {4, {"parallel.zero=1"}},
                                                    {4, {"parallel.zero=3", "train.global_batch=8"}},
                                                    {4, {"parallel.tp=2", "parallel.pp=2"}},
                                                    {2, {"parallel.strategy=parameter_server", "parallel.zero=0"}}}) {
        SCOPED_TRACE(text_of(layout));
        const auto o = too_large("", Settings{"train.steps=100", "train.micro_batch=1"} + layout.set, layout.ranks);
        on_ranks(o, [&](int, engine::Engine& engine) {
            int64_t step = 0;
            const auto run_steps = [&](int64_t wanted) {  // until so many steps were skipped in a row
                for (int64_t in_a_row = 0; in_a_row < wanted && step < 100;) {
                    const Values before = state_of_rank(engine);
                    const int64_t updates = engine.optimizer.updates();
                    const engine::StepResult r = engine::train_step(engine, ++step);
                    engine.data_parallel->wait_for_weights();
                    in_a_row = r.skipped ? in_a_row + 1 : 0;
                    EXPECT_EQ(r.overflowed, r.skipped);
                    EXPECT_EQ(state_of_rank(engine) == before, r.skipped) << "step " << step;
                    EXPECT_EQ(engine.optimizer.updates(), updates + (r.skipped ? 0 : 1));
                }
            };
            run_steps(2);
            EXPECT_EQ(engine.optimizer.updates(), 0);
            engine.loss_scale.value = 8;
            EXPECT_FALSE(engine::train_step(engine, ++step).skipped);
            EXPECT_EQ(engine.optimizer.updates(), 1);
            engine.loss_scale.value = 0x1p40;  // moments are no longer 0
            run_steps(2);
        });
    }
}

// One gradient of one rank becomes infinite before the ranks judge the step.
TEST_F(SkippedSteps, AnOverflowOnOneRankIsSeenByAll) {
    for (const Layout& layout : std::vector<Layout>{{4, {"parallel.zero=1"}},
                                                    {4, {"parallel.zero=3"}},
                                                    {4, {"parallel.tp=2", "parallel.zero=2"}},
                                                    {4, {"parallel.pp=4", "model.layers=4"}},
                                                    {4, {"parallel.pp=2", "parallel.cp=2"}}}) {
        const auto o = options(
            "", Settings{"precision.compute=f16", "train.micro_batch=1", "train.steps=10"} + layout.set, layout.ranks);
        for (int guilty = 0; guilty < 4; ++guilty) {
            SCOPED_TRACE(concat(text_of(layout), ", rank ", guilty));
            std::vector<engine::StepResult> results(4);
            std::vector<engine::LossScale> scales(4);
            std::vector<int> spoilt(4);
            on_ranks(o, [&](int rank, engine::Engine& engine) {
                engine::StepTrace trace(nullptr, *engine.device, false, *engine.data_parallel);
                engine::StepResult r{.lr = 1e-3};
                engine::add_gradients(engine, 1, trace);
                const auto at = to_size(rank);
                for (const optim::ParameterShard& p : engine.optimizer.parameter_shards())
                    if (rank == guilty && p.owned && spoilt[at]++ == 0)
                        ops::fill(engine.ctx, p.gradient().narrow(0, 0, 1), INFINITY);
                engine::measure(engine, 1, trace, r);
                EXPECT_EQ(engine::may_update(engine, r), spoilt[to_size(guilty)] == 0 && !r.skipped);
                results[at] = r;
                scales[at] = engine.loss_scale;
            });
            const bool any = spoilt[to_size(guilty)] > 0;  // else the rank owns nothing
            for (size_t rank = 0; rank < 4; ++rank) {
                EXPECT_EQ(results[rank].skipped, any);
                EXPECT_EQ(results[rank].culprit, results[0].culprit);
                EXPECT_EQ(scales[rank], scales[0]);
                EXPECT_EQ(scales[rank].hysteresis, any ? 1 : 2);
            }
        }
    }
}

// A run of 12 steps with a scale that doubles after each step until one is skipped, against one that ends at step 7 and
// goes on elsewhere.
TEST_F(LossScales, ACheckpointResumesToTheSameBitsUnderAnotherLayout) {
    const Settings usual = {"train.steps=12", "train.micro_batch=1", "train.global_batch=8",
                            "parallel.accumulate=full"};
    const std::pair<Settings, Settings> layouts[] = {
        {{"parallel.zero=1"}, {"parallel.zero=3", "recompute.policy=full"}},
        {{"parallel.zero=3"}, {"parallel.zero=0"}},
        {{"parallel.zero=2", "offload.optimizer=true"}, {"parallel.zero=1"}}};
    for (const auto& [first, second] : layouts) {
        const std::string name = concat("whole", ++runs_);
        auto whole = too_large(name, usual + first + Settings{"precision.loss_scale_interval=1"}, 4);
        whole.run.precision.loss_scale_initial = 0x1p19;
        auto begin = whole, end = whole;
        begin.out = end.out = path(concat("cut", runs_));
        begin.run.checkpoint.every = 7;
        begin.run.checkpoint.async = false;
        begin.stop_requested = [&begin] {
            return std::filesystem::exists(begin.out + "/checkpoints/" + checkpoint::step_name(7));
        };
        end.run = too_large("", usual + second + Settings{"precision.loss_scale_interval=1"}, 4).run;
        end.run.precision.loss_scale_initial = 0x1p19;
        const Result expected = result_of(whole);
        train(begin);
        const auto stopped = logged(begin, [](const std::string& line) { return Json::parse(line); });
        ASSERT_GE(stopped.size(), 7u);
        ASSERT_LT(stopped.size(), 12u);
        const auto skipped = stopped.back().at("skipped").get<int64_t>();
        EXPECT_GT(skipped, 0);
        EXPECT_LT(skipped, static_cast<int64_t>(stopped.size()));
        const Result resumed = result_of(end);
        EXPECT_EQ(resumed.steps, expected.steps);
        EXPECT_EQ(resumed.norms, expected.norms);
        EXPECT_TRUE(state_of(whole, 12).at("loss_scale") == state_of(end, 12).at("loss_scale"));
        std::vector<std::string> scales[2];
        for (const TrainOptions* o : {&whole, &end})
            scales[o == &end] = logged(*o, [](const std::string& l) { return Json::parse(l).at("loss_scale").dump(); });
        EXPECT_EQ(scales[0], scales[1]);
    }
}

TEST_F(LossScales, StopWhereAnotherScaleCuresNothing) {
    const auto message_of = [](const TrainOptions& o) {
        try {
            train(o);
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    // A fixed scale does not fall.
    const auto fixed = message_of(options("fixed", {"precision.compute=f16", "precision.loss_scale=1099511627776",
                                                    "train.steps=20", "train.max_skipped=3"}));
    EXPECT_NE(fixed.find("3 steps in a row were not finite"), std::string::npos) << fixed;
    EXPECT_NE(fixed.find("the loss scale is 1099511627776"), std::string::npos) << fixed;
    // The loss itself is not finite: every skip counts, though the scale falls.
    const auto ruined = options(
        "ruined", {"precision.compute=f16", "optimizer.lr=1e30", "optimizer.clip=0", "optimizer.schedule=constant",
                   "optimizer.warmup_steps=0", "train.steps=40", "train.max_skipped=3"});
    EXPECT_NE(message_of(ruined).find("3 steps in a row were not finite"), std::string::npos);
    // The least scale is too large.
    auto least = too_large("least", {"train.steps=40", "train.max_skipped=3"});
    least.run.precision.loss_scale_least = 0x1p38;
    EXPECT_NE(message_of(least).find("the loss scale is 274877906944"), std::string::npos);
    EXPECT_EQ(logged(least, [](const std::string& l) { return l; }).size(), 5u);  // 2^40, 2^39, then three times 2^38
}

TEST_F(LossScales, AreNotLoggedWhereTheyAreOne) {
    const auto o = options("plain", {"train.steps=2"});
    train(o);
    for (const Json& line : logged(o, [](const std::string& l) { return Json::parse(l); }))
        EXPECT_FALSE(line.contains("loss_scale"));
}

// f16 partial sums round as those of one rank, within verify's bound; steps that overflow are passed over.
TEST_F(LossScales, VerifyKnowsF16) {
    for (const Layout& layout :
         std::vector<Layout>{{4, {"parallel.zero=3"}},
                             {4, {"parallel.tp=2", "parallel.pp=2"}},
                             {4, {"parallel.cp=2", "recompute.policy=full"}},
                             {2, {"model.preset=moe-tiny", "model.moe.ffn=24", "parallel.ep=2"}}}) {
        SCOPED_TRACE(text_of(layout));
        const auto o = options("", Settings{"precision.compute=f16", "train.micro_batch=1"} + layout.set, layout.ranks);
        const VerifyOutcome outcome = verify({.run = o.run, .ranks = o.ranks, .steps = 2});
        EXPECT_TRUE(outcome.within()) << outcome.worst().gradient_difference << ' ' << outcome.worst().gradient;
    }
    auto skipping = too_large("", {"train.micro_batch=1", "parallel.tp=2", "train.steps=60"}, 2);
    const VerifyOutcome outcome = verify({.run = skipping.run, .ranks = 2, .steps = 40});
    EXPECT_TRUE(outcome.within()) << outcome.worst().gradient_difference << ' ' << outcome.worst().weight_difference;
    skipping.run.precision.loss_scale_initial = skipping.run.precision.loss_scale_least = 0x1p60;
    skipping.run.precision.loss_scale_initial = 0x1p100;
    try {
        verify({.run = skipping.run, .ranks = 2, .steps = 2});
        ADD_FAILURE() << "nothing was compared";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("overflowed in all 2 steps"), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace tutti::train::loss_scale_test
