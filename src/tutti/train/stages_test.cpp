// train/stages_test.cpp: a run of three stages is the stages one after the other, whatever stops it and on which
// layout it goes on, also where each stage has a layout of its own. The reference is an engine for each stage, whose
// samples and rates are written by hand.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/infer/stored_model.h"
#include "tutti/report/trace_read.h"
#include "tutti/report/watched_run.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

constexpr int64_t kSteps = 9;

class StagesTest : public SmallRun {
  protected:
    StagesTest() {
        std::string text;
        for (int i = 0; i < 400; ++i) text += concat("x", i, "=", i * i, ";");
        folder_.write("code.txt", text);
    }

    // Of the samples of stage 2 none is that of stage 1, whose windows are shorter; stage 3 reads two sources.
    std::string stages() const {
        return concat("stage=[{until = 3}, ",
                      "{until = 6, train.seq_len = 32, train.global_batch = 2, train.micro_batch = 1, "
                      "model.rope_theta = 5e5, optimizer.lr = 0.004}, ",
                      "{data.train = \"", path("code.txt"), "\", optimizer.lr = 0.002}]");
    }
    std::vector<std::string> plain_keys() const {
        return {concat("train.steps=", kSteps), "optimizer.schedule=constant", "optimizer.warmup_steps=0"};
    }
    TrainOptions staged(const std::string& out, std::vector<std::string> set = {}, int ranks = 1) const {
        std::vector<std::string> all = plain_keys();
        all.push_back(stages());
        all.insert(all.end(), set.begin(), set.end());
        return options(out, all, ranks);
    }
    static TrainOutcome one_step(TrainOptions o) {
        o.stop_requested = [] { return true; };
        return train(o);
    }
    static void expect_close(const std::vector<Json>& got, const std::vector<Json>& wanted) {
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < wanted.size(); ++i) {
            const auto number = [i](const std::vector<Json>& of) { return of[i].at("loss").get<double>(); };
            EXPECT_NEAR(number(got), number(wanted), 1e-5 * number(wanted)) << i;
            for (const char* key : {"step", "tokens", "lr", "stage"}) EXPECT_EQ(got[i].at(key), wanted[i].at(key)) << i;
        }
    }
    static std::vector<Json> losses(const TrainOptions& o) {
        return logged(o, [](const std::string& line) {
            const Json json = Json::parse(line);
            return Json{{"step", json.at("step")},   {"loss", json.at("loss")},
                        {"lr", json.at("lr")},       {"tokens", json.at("tokens")},
                        {"stage", json.at("stage")}, {"grad_norm", json.at("grad_norm")}};
        });
    }
};

void take_over_state(engine::Engine& from, engine::Engine& to, int64_t updates) {
    to.data_parallel->load_masters([&] {
        const auto source = state_slices(from), target = state_slices(to);
        ASSERT_EQ(source.size(), target.size());
        for (size_t i = 0; i < source.size(); ++i) {
            ASSERT_EQ(source[i].name, target[i].name);
            ASSERT_EQ(source[i].values.bytes(), target[i].values.bytes());
            std::memcpy(target[i].values.view().data, source[i].values.view().data, to_size(target[i].values.bytes()));
        }
    });
    to.optimizer.set_updates(updates);
}

TEST_F(StagesTest, AreEnginesOneAfterTheOther) {
    const TrainOptions o = staged("run");
    train(o);
    const std::vector<Json> lines = losses(o);
    ASSERT_EQ(lines.size(), to_size(kSteps));
    struct ByHand {
        std::vector<std::string> set;
        int64_t last, first_sample, stage;  // first_sample: of the first step of the stage
    };
    const std::vector<std::string> longer = {"train.seq_len=32", "train.global_batch=2", "train.micro_batch=1",
                                             "model.rope_theta=5e5"};
    std::vector<ByHand> all = {{{}, 3, 0, 1}, {longer, 6, 0, 2}, {longer, kSteps, 0, 3}};
    all[1].set.push_back("optimizer.lr=0.004");
    all[2].set.insert(all[2].set.end(), {"optimizer.lr=0.002", "data.train=" + path("code.txt")});
    comm::run_ranks(1, {}, [&](comm::World& world) {
        std::vector<TrainOptions> runs;
        std::vector<data::DataSet> data;
        for (const ByHand& stage : all) {
            std::vector<std::string> keys = plain_keys();
            keys.insert(keys.end(), stage.set.begin(), stage.set.end());
            runs.push_back(options("none", keys));
            data.push_back(data::open(runs.back().run.data, 256, runs.back().run.train.seq_len, {.write = false}));
        }
        std::unique_ptr<engine::Engine> before;
        int64_t step = 1, tokens = 0;
        for (size_t i = 0; i < all.size(); ++i) {
            const spec::RunSpec& run = runs[i].run;
            const spec::TrainSpec& t = run.train;
            const data::Sampler sampler(data[i].train, t.seq_len, static_cast<uint64_t>(t.seed));
            const int64_t shift = all[i].first_sample - (step - 1) * t.global_batch;
            auto engine = std::make_unique<engine::Engine>(
                run, world, engine::machine_of(run, {}, path("offload")),
                [&](ops::Context& ctx, const engine::BatchShard& share) {
                    return engine::token_batches(ctx.device, sampler, t.micro_batch, t.global_batch, share, 0,
                                                 std::numeric_limits<int64_t>::max(), shift);
                });
            if (before) take_over_state(*before, *engine, step - 1);
            for (; step <= all[i].last; ++step) {
                const engine::StepResult result = engine::train_step(*engine, step);
                tokens += result.valid_tokens;
                const Json& line = lines[to_size(step - 1)];
                EXPECT_EQ(line.at("loss").get<double>(), result.loss) << step;
                EXPECT_EQ(line.at("grad_norm").get<double>(), result.grad_norm) << step;
                EXPECT_EQ(line.at("lr").get<double>(), run.optimizer.lr) << step;
                EXPECT_EQ(line.at("stage").get<int64_t>(), all[i].stage) << step;
                EXPECT_EQ(line.at("tokens").get<int64_t>(), tokens) << step;
            }
            engine->data_parallel->wait_for_weights();
            before = std::move(engine);
        }
    });
}

// A line of the log counts the steps of one stage, whatever log.every is: their sizes differ.
TEST_F(StagesTest, TheLastStepOfAStageIsLogged) {
    const TrainOptions o =
        staged("run", {"log.every=5", "stage=[{until = 3}, {until = 7, train.seq_len = 32}, {train.seq_len = 8}]"});
    train(o);
    std::vector<int64_t> steps;
    for (const Json& line : losses(o)) steps.push_back(line.at("step").get<int64_t>());
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 3, 5, 7, 9}));
    report::WatchedRun run(o.out);
    run.update(0);
    EXPECT_NEAR(run.sums().positions, 4 * (3 * 16 + 4 * 32 + 2 * 8), 1e-6);  // four windows a step
}

// Each of the three stages is an engine of its own, and one window of steps is traced.
TEST_F(StagesTest, OneWindowOfStepsIsTraced) {
    for (const auto& [first, steps] :
         {std::pair(0, std::set<int64_t>{3}), {5, std::set<int64_t>{5, 6}}, {8, std::set<int64_t>{8, 9}}}) {
        const TrainOptions o = staged(concat("traced-", first),
                                      {"log.trace=true", "log.trace_steps=2", concat("log.trace_first=", first)}, 2);
        train(o);
        std::set<int64_t> traced;
        for (const auto& rank : report::read_trace(o.out + "/trace.json"))
            for (const auto& span : rank.spans) traced.insert(span.step);
        EXPECT_EQ(traced, steps) << first;
    }
}

// All steps one by one; then one stop, behind each step.
TEST_F(StagesTest, StoppedAtEveryStepEqualsTheUndisturbedRun) {
    // Courses of the rate that go over borders, and a course of its own with a warm-up.
    const std::vector<std::string> set = {"optimizer.schedule=cosine", "optimizer.warmup_steps=2", "model.dropout=0.1"};
    const TrainOptions whole = staged("whole", set);
    train(whole);
    const auto weights_of_whole = weights(whole);
    const TrainOptions steps = staged("steps", set);
    for (int64_t step = 1; step <= kSteps; ++step) EXPECT_EQ(one_step(steps).step, step);
    EXPECT_EQ(losses(steps), losses(whole));
    EXPECT_EQ(weights(steps), weights_of_whole);
    for (int64_t stop = 1; stop < kSteps; ++stop) {
        TrainOptions o = staged(concat("stop", stop), set);
        int64_t asked = 0;
        o.stop_requested = [&] { return ++asked == stop; };
        EXPECT_EQ(train(o).step, stop);
        o.stop_requested = [] { return false; };
        EXPECT_EQ(train(o).step, kSteps);
        EXPECT_EQ(losses(o), losses(whole)) << stop;
        EXPECT_EQ(weights(o), weights_of_whole) << stop;
    }
}

TEST_F(StagesTest, GoesOnUnderAnyOtherLayout) {
    const std::vector<std::string> set = {"precision.compute=f32", "train.micro_batch=1"};
    const TrainOptions whole = staged("whole", set);
    train(whole);
    const std::pair<int, std::vector<std::string>> layouts[] = {{2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
                                                                {2, {"parallel.zero=3"}},
                                                                {4, {"parallel.tp=2", "parallel.cp=2"}},
                                                                {1, {}},
                                                                {4, {"parallel.pp=2", "parallel.zero=2"}},
                                                                {2, {"parallel.cp=2"}},
                                                                {2, {"parallel.tp=2"}},
                                                                {4, {"parallel.cp=2", "parallel.zero=3"}},
                                                                {1, {}}};
    for (const auto& [ranks, axes] : layouts) {
        std::vector<std::string> all = set;
        all.insert(all.end(), axes.begin(), axes.end());
        one_step(staged("parts", all, ranks));
    }
    const auto lines = losses(whole);
    expect_close(losses(staged("parts", set)), lines);
    // Several ranks from the beginning to the end, over all borders.
    const TrainOptions two = staged("two", {"precision.compute=f32", "train.micro_batch=1", "parallel.zero=2"}, 2);
    train(two);
    expect_close(losses(two), lines);
}

// A short stage of data parallelism, a longer one under cp and tp, the last one a pipeline: each stopped at every step.
// Nothing of a layout is in the state, so the first rank alone, without layouts, makes the same run.
TEST_F(StagesTest, EachUnderALayoutOfItsOwn) {
    const std::vector<std::string> f32 = {"precision.compute=f32", "train.micro_batch=1"};
    std::vector<std::string> set = f32;
    set.insert(set.end(), {"parallel.zero=2",
                           concat("stage=[{until = 3}, {until = 6, train.seq_len = 32, train.global_batch = 2, ",
                                  "parallel.cp = 2, parallel.tp = 2, parallel.sequence_parallel = true, ",
                                  "parallel.zero = 0}, {train.seq_len = 16, train.global_batch = 4, ",
                                  "parallel.cp = 1, parallel.tp = 1, parallel.sequence_parallel = false, ",
                                  "parallel.pp = 2, parallel.schedule = \"zb-h1\", parallel.zero = 3, ",
                                  "recompute.policy = \"full\"}]")});
    const TrainOptions whole = staged("whole", set, 4);
    train(whole);
    std::vector<std::string> alone = f32;
    alone.push_back(
        "stage=[{until = 3}, {until = 6, train.seq_len = 32, train.global_batch = 2}, "
        "{train.seq_len = 16, train.global_batch = 4}]");
    const TrainOptions one = staged("one", alone);
    train(one);
    const auto lines = losses(whole), of_one = losses(one);
    expect_close(lines, of_one);
    const TrainOptions steps = staged("steps", set, 4);
    for (int64_t step = 1; step <= kSteps; ++step) EXPECT_EQ(one_step(steps).step, step);
    EXPECT_EQ(losses(steps), lines);
    EXPECT_EQ(weights(steps), weights(whole));
    for (int64_t stop = 1; stop < kSteps; ++stop) {
        TrainOptions o = staged(concat("stop", stop), set, 4);
        std::atomic<int64_t> asked = 0;  // by all ranks, whose threads share the count
        o.stop_requested = [&] { return ++asked > 4 * (stop - 1); };
        EXPECT_EQ(train(o).step, stop);
        o.stop_requested = [] { return false; };
        EXPECT_EQ(train(o).step, kSteps);
        EXPECT_EQ(losses(o), lines) << stop;
        EXPECT_EQ(weights(o), weights(whole)) << stop;
    }
}

// Where layouts have the same bits, a run has the same bits over their borders.
TEST_F(StagesTest, LayoutsOfTheSameBitsLeaveTheRunItsBits) {
    const std::vector<std::string> plain = {"train.micro_batch=1", "parallel.accumulate=full", "parallel.zero=2",
                                            "stage=[{}]"};
    std::vector<std::string> changing = plain;
    changing.back() =
        "stage=[{until = 2, parallel.zero = 0}, {until = 3, parallel.zero = 3}, "
        "{until = 5, parallel.zero = 1, parallel.reductions = 1}, "
        "{until = 7, parallel.zero = 3, recompute.policy = \"full\", offload.optimizer = true}, "
        "{parallel.zero = 2, offload.optimizer = false}]";
    const TrainOptions one = staged("one", plain, 4), many = staged("many", changing, 4);
    train(one);
    train(many);
    auto lines = losses(one), of_many = losses(many);
    for (Json& line : of_many) line["stage"] = 0;
    for (Json& line : lines) line["stage"] = 0;
    EXPECT_EQ(of_many, lines);
    EXPECT_EQ(weights(many), weights(one));
}

// Lists of stages, each in a layout that is drawn, with lengths, batches and stops that are drawn too.
TEST_F(StagesTest, AnyListOfLayouts) {
    std::mt19937_64 random(71);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const std::vector<std::string> layouts = {
        "dp_shard = -1",
        "zero = 1",
        "zero = 3, accumulate = \"full\"",
        "dp_replicate = 2, zero = 2",
        "tp = 2",
        "tp = 2, sequence_parallel = true, zero = 3",
        "cp = 2, cp_method = \"all_gather\"",
        "cp = 4",
        "cp = 2, cp_method = \"ulysses\", zero = 2",
        "pp = 2, schedule = \"1f1b\", zero = 2",
        "pp = 2, tp = 2, schedule = \"gpipe\"",
        "pp = 2, cp = 2, schedule = \"zb-h1\"",
        "pp = 2, schedule = \"interleaved\", virtual_stages = 2",
    };
    // What a layout does not name is as in a run without one, not as in the stage before.
    const auto keys_of = [&](const std::string& layout) {
        std::map<std::string, std::string> keys = {{"dp_replicate", "1"},
                                                   {"zero", "0"},
                                                   {"accumulate", "\"auto\""},
                                                   {"tp", "1"},
                                                   {"cp", "1"},
                                                   {"pp", "1"},
                                                   {"cp_method", "\"ring\""},
                                                   {"sequence_parallel", "false"},
                                                   {"schedule", "\"1f1b\""},
                                                   {"virtual_stages", "1"}};
        std::istringstream in(layout);
        for (std::string key, equals, value; in >> key >> equals >> value;)
            keys[key] = value.substr(0, value.find(','));
        std::string text;
        for (const auto& [key, value] : keys) text += concat(", parallel.", key, " = ", value);
        return text;
    };
    std::set<std::string> tried;
    for (int trial = 0; trial < 12; ++trial) {
        std::string with, without;
        int64_t end = 0;
        for (size_t stages = 2 + below(3); stages > 0; --stages) {
            end += 1 + static_cast<int64_t>(below(2));
            std::string stage = stages == 1 ? "train.global_batch = 4" : concat("until = ", end);
            if (below(2) == 0) stage += concat(", train.seq_len = ", 16 << below(2));
            if (below(3) == 0) stage += ", optimizer.lr = 0.003";
            const std::string& layout = layouts[below(layouts.size())];
            tried.insert(layout);
            with += concat(with.empty() ? "{" : ", {", stage, keys_of(layout), "}");
            without += concat(without.empty() ? "{" : ", {", stage, "}");
        }
        const auto run = [&](const std::string& out, const std::string& stages, int ranks) {
            return staged(concat(out, trial),
                          {"precision.compute=f32", "train.micro_batch=1", "model.layers=4", "model.kv_heads=2",
                           concat("train.steps=", end), concat("stage=[", stages, "]")},
                          ranks);
        };
        SCOPED_TRACE(with);
        const TrainOptions one = run("one", without, 1);
        TrainOptions many = run("many", with, 4);
        train(one);
        std::atomic<int64_t> asked = 0;
        const int64_t stop = 1 + static_cast<int64_t>(below(to_size(end)));
        many.stop_requested = [&] { return ++asked > 4 * (stop - 1) && asked <= 4 * stop; };
        while (train(many).step < end) {
        }
        expect_close(losses(many), losses(one));
    }
    EXPECT_GE(tried.size(), layouts.size() / 2);
}

// Stages may be added while a run is in its first one; what is behind it may not change.
TEST_F(StagesTest, LaterStagesMayChangeAndEarlierOnesMayNot) {
    TrainOptions plain = options("added", plain_keys());
    int64_t asked = 0;
    plain.stop_requested = [&] { return ++asked == 3; };
    train(plain);
    const TrainOptions whole = staged("whole"), added = staged("added");
    train(whole);
    train(added);
    EXPECT_EQ(weights(added), weights(whole));

    const auto refused = [&](const std::string& from, const std::string& to) {
        std::filesystem::remove_all(path("part"));
        TrainOptions o = staged("part");
        asked = 0;
        o.stop_requested = [&] { return ++asked == 5; };
        train(o);
        std::string other = stages();
        other.replace(other.find(from), from.size(), to);
        TrainOptions changed = staged("part", {other});
        return message_of<UsageError>([&] { train(changed); });
    };
    EXPECT_EQ(missing("stage.sample_shift = -4, in the checkpoint -6", refused("until = 3", "until = 2")), "");
    EXPECT_EQ(missing("model.rope_theta = ", refused("model.rope_theta = 5e5, ", "")), "");
    EXPECT_EQ(refused("optimizer.lr = 0.002", "optimizer.lr = 0.001"), "nothing was thrown");
}

TEST_F(StagesTest, AllStagesAreCheckedBeforeTheFirstStep) {
    const auto refusal = [&](const std::string& third) {
        TrainOptions o = options("refused", {concat("train.steps=", kSteps), "model.max_positions=1000000000",
                                             concat("stage=[{until = 3}, {until = 6}, {", third, "}]")});
        const std::string message = message_of<UsageError>([&] { train(o); });
        EXPECT_FALSE(std::filesystem::exists(o.out + "/checkpoints/step-0000000003"));
        EXPECT_FALSE(std::filesystem::exists(o.out + "/metrics.jsonl"));
        return message;
    };
    folder_.write("large.txt", std::string(70'000'000, 'x'));
    const auto large = refusal(concat("train.seq_len = 60000000, data.train = \"", path("large.txt"), "\""));
    EXPECT_TRUE(large.starts_with("stage 3: ")) << large;
    EXPECT_EQ(missing("of memory", large), "");
    TrainOptions o = options("refused", {"stage=[{until = 3}, {data.train = \"none.txt\"}]"});
    const std::string none = message_of<DataError>([&] { train(o); });
    EXPECT_TRUE(none.starts_with("stage 2: none.txt: ")) << none;
}

// The model of a checkpoint is that of the stage that made it.
TEST_F(StagesTest, ACheckpointHasTheModelOfItsStage) {
    TrainOptions o = staged("run");
    for (const auto& [stop, theta] : {std::pair{int64_t{3}, 1e4}, {int64_t{4}, 5e5}, {kSteps, 5e5}}) {
        int64_t asked = 0;
        const int64_t steps = stop - (stop == 3 ? 0 : stop == 4 ? 3 : 4);
        o.stop_requested = [&, n = steps] { return ++asked == n; };
        EXPECT_EQ(train(o).step, stop);
        EXPECT_EQ(infer::load_model(o.out).stored.run.model.rope_theta, theta) << stop;
    }
}

}  // namespace
}  // namespace tutti::train
