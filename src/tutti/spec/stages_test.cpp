// spec/stages_test.cpp: stages as they are written, their places, and what is refused. References are loops over the
// steps of a run, in which nothing is computed ahead.
#include "tutti/spec/stages.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/identity.h"
#include "tutti/spec/learning_rate.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

constexpr const char* kThree = R"([data]
train = "web.txt"
[train]
steps = 30
seq_len = 8
global_batch = 4
micro_batch = 2
[optimizer]
lr = 1.0
min_lr = 0.1
warmup_steps = 2
schedule = "linear"

[[stage]]
until = 10

[[stage]]
until = 20
train.seq_len = 16
train.global_batch = 2
model.rope_theta = 5e5
model.rope_scaling.factor = 2.0

[[stage]]
data.train = ["code.txt", "web.txt"]
optimizer.min_lr = 0.0
)";

TEST(Stages, AreRunsThatDifferInTheKeysTheySet) {
    const RunSpec run = parse_text(kThree, "three.toml");
    validate(run, 1);
    const std::vector<RunSpec> stages = stages_of(run);
    ASSERT_EQ(stages.size(), 3u);
    RunSpec expected = run;
    expected.stages = {};
    const auto expect = [&](size_t i, int64_t first, int64_t last) {
        EXPECT_EQ(stages[i].place.first, first);
        EXPECT_EQ(last_step(stages[i]), last);
        expected.place = stages[i].place;
        EXPECT_EQ(to_toml(stages[i]), to_toml(expected));
        EXPECT_EQ(stages[i], expected);
    };
    expect(0, 1, 10);
    expected.train.seq_len = 16;
    expected.train.global_batch = 2;
    expected.model.rope_theta = 5e5;
    expected.model.rope_scaling.factor = 2;
    expect(1, 11, 20);
    expected.data.train = {"code.txt", "web.txt"};
    expected.optimizer.min_lr = 0;
    expect(2, 21, 30);
    EXPECT_EQ(stage_text(run, 1),
              "until step 20: model.rope_scaling.factor = 2.0, model.rope_theta = 5e5, train.global_batch = 2, "
              "train.seq_len = 16");
    EXPECT_FALSE(have_equal_steps(stages[0], stages[1]));
    EXPECT_TRUE(have_equal_steps(stages[1], stages[2]));
    for (int64_t step = 1; step <= 40; ++step)
        EXPECT_EQ(stage_at(stages, step), step <= 10 ? 0u : step <= 20 ? 1u : 2u);
    EXPECT_EQ(stages_of(parse_text("", "none")), std::vector{parse_text("", "none")});
}

TEST(Stages, AreWrittenAndReadBack) {
    const RunSpec run = parse_text(kThree, "three.toml");
    EXPECT_EQ(parse_text(to_toml(run), "again"), run);
    // The same on a command line.
    std::string text = kThree;
    text.erase(text.find("\n[[stage]]"));
    const std::string set = concat("stage=", toml_text(run.stages));
    EXPECT_EQ(parse_text(text, "file", {set}), run) << set;
    EXPECT_EQ(parse_text(kThree, "file", {"stage=[]"}).stages.size(), 0u);
    EXPECT_EQ(to_toml(RunSpec{}).find("stage]"), std::string::npos);
}

std::string refusal_of(const std::string& stages, const std::string& before = "") {
    return message_of<UsageError>(
        [&] { validate(parse_text("[data]\ntrain = \"a.txt\"\n" + before + stages, "f"), 1); });
}

TEST(Stages, WhatCannotBeIsRefusedByNameAndStage) {
    EXPECT_EQ(missing("[[stage]] 2: train.steps is no key that a stage may set; the nearest is ",
                      refusal_of("[[stage]]\nuntil = 5\n[[stage]]\ntrain.steps = 7\n")),
              "");
    EXPECT_EQ(missing("model.width is no key that a stage may set", refusal_of("[[stage]]\nmodel.width = 64\n")), "");
    EXPECT_EQ(missing("seq_len is no key that a stage may set; the nearest is train.seq_len of until, ",
                      refusal_of("[[stage]]\nseq_len = 64\n")),
              "");
    EXPECT_EQ(missing("model.rope is no key", refusal_of("[[stage]]\nmodel.rope = 64\n")), "");
    EXPECT_EQ(
        missing("[[stage]] 1: [train] seq_len = 0: must be in [1, ", refusal_of("[[stage]]\ntrain.seq_len = 0\n")), "");
    EXPECT_EQ(missing("[train] seq_len: required an integer, got the number 8.5",
                      refusal_of("[[stage]]\ntrain.seq_len = 8.5\n")),
              "");
    EXPECT_EQ(missing("until: required a step, at least 1, got the integer 0", refusal_of("[[stage]]\nuntil = 0\n")),
              "");
    EXPECT_EQ(missing("stage 1 needs until, its last step", refusal_of("[[stage]]\n[[stage]]\n")), "");
    EXPECT_EQ(missing("stage 2: until = 5: must be above 5",
                      refusal_of("[[stage]]\nuntil = 5\n[[stage]]\nuntil = 5\n[[stage]]\n")),
              "");
    EXPECT_EQ(missing("the last stage ends with the run; leave it out", refusal_of("[[stage]]\nuntil = 5\n")), "");
    EXPECT_EQ(
        missing("until = 300: must be below [train] steps = 300", refusal_of("[[stage]]\nuntil = 300\n[[stage]]\n")),
        "");
    EXPECT_EQ(missing("required a list of tables, each [[stage]], got a table", refusal_of("[stage]\nuntil = 5\n")),
              "");
    // A broken rule between keys names the stage, unless all stages break it.
    const std::string one = refusal_of("[[stage]]\nuntil = 5\n[[stage]]\ntrain.global_batch = 12\n");
    EXPECT_TRUE(one.starts_with("stage 2: [train] global_batch = 12: must be a multiple of")) << one;
    const std::string all = refusal_of("[[stage]]\nuntil = 5\n[[stage]]\n", "[train]\nglobal_batch = 12\n");
    EXPECT_TRUE(all.starts_with("[train] global_batch = 12: must be a multiple of")) << all;
    EXPECT_EQ(all.find('\n'), std::string::npos) << all;
}

// A stage under another layout: each is checked as a run of so many ranks, with its automatic keys.
TEST(Stages, LayoutsAreThoseOfTheStage) {
    const std::string data = "[data]\ntrain = \"a.txt\"\n[train]\nglobal_batch = 8\nmicro_batch = 1\nseq_len = 64\n";
    const auto run_of = [&](const std::string& stages) { return parse_text(data + stages, "f"); };
    const auto refused = [&](const std::string& stages) {
        return message_of<UsageError>([&] { validate(run_of(stages), 4); });
    };
    const std::string good = "[[stage]]\nuntil = 5\n[[stage]]\nuntil = 9\nparallel.cp = 2\nparallel.tp = 2\n";
    validate(run_of(good + "[[stage]]\nparallel.tp = 1\nparallel.zero = 3\n"), 4);
    const std::string many = refused(good + "[[stage]]\nparallel.pp = 2\n");
    EXPECT_TRUE(many.starts_with("stage 3: [parallel] ")) << many;
    EXPECT_EQ(many.find("stage 1"), std::string::npos);
    EXPECT_EQ(missing("= 8: must divide the number of ranks, 4", many), "");
    const std::string schedule = refused("[[stage]]\nuntil = 5\n[[stage]]\nparallel.schedule = \"none-such\"\n");
    EXPECT_TRUE(schedule.starts_with("stage 2: ")) << schedule;
    EXPECT_EQ(missing("[[stage]] 1: [parallel] zero = 4: must be in [0, 3]", refused("[[stage]]\nparallel.zero = 4\n")),
              "");
    const RunSpec run = run_of(good + "[[stage]]\nparallel.cp = 1\nparallel.sequence_parallel = true\n");
    const auto stages = stages_of(run);
    EXPECT_EQ(stages[0].parallel, ParallelSpec{});
    EXPECT_EQ(stages[2].parallel.tp, 2);  // as in the stage before
    EXPECT_EQ(stages[2].parallel.cp, 1);
    EXPECT_TRUE(stages[2].parallel.sequence_parallel);
    EXPECT_FALSE(have_equal_steps(stages[1], stages[2]));
}

// Layouts that are drawn, given to the stages of a run: they come back, and all else stays.
TEST(Stages, TakeOverLayouts) {
    std::mt19937_64 random(17);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    const auto draw = [&](RunSpec& run) {
        run.parallel.tp = 1 << below(3);
        run.parallel.zero = below(4);
        run.parallel.schedule = std::array{"1f1b", "gpipe"}[below(2)];
        run.parallel.sequence_parallel = below(2) == 0;
        run.recompute.policy = std::array{"none", "full"}[below(2)];
        run.offload.optimizer = below(2) == 0;
        run.train.micro_batch = 1 + below(3);
    };
    for (int trial = 0; trial < 200; ++trial) {
        RunSpec run = trial % 4 == 0 ? parse_text("", "f") : parse_text(kThree, "three.toml");
        if (below(2) == 0 && !run.stages.empty())
            run.stages[1].set.insert({{"parallel.tp", int64_t{2}}, {"offload.optimizer", true}});
        draw(run);
        std::vector<RunSpec> wanted = stages_of(run);
        EXPECT_EQ(stages_of(with_layouts(run, wanted)), wanted) << to_toml(run);
        for (RunSpec& stage : wanted) draw(stage);
        const RunSpec got = with_layouts(run, wanted);
        EXPECT_EQ(stages_of(got), wanted) << to_toml(run);
        // As words of a command line.
        std::vector<std::string> words = {concat("stage=", toml_text(got.stages))};
        for (const auto& [path, value] : layout_keys(got)) words.push_back(concat(path, '=', toml_text(value)));
        EXPECT_EQ(parse_text(to_toml(run), "f", words), got);
    }
}

// Every key that a stage may set changes nothing but itself, and survives being written.
TEST(Stages, EveryKeyThatAStageMaySet) {
    RunSpec run;
    int keys = 0;
    for_each_field(run, [&]<class T>(const Field& field, T& value) {
        EXPECT_FALSE(field.in_stage && !kMayBeInStage<T>) << field.path();
        if constexpr (kMayBeInStage<T>) {
            if (!field.in_stage) return;
            ++keys;
            T other = value;
            if constexpr (std::is_same_v<T, bool>)
                other = !value;
            else if constexpr (std::is_arithmetic_v<T>)
                other = value / 2 + static_cast<T>(field.range.low == 1 ? 1 : 0);
            else if constexpr (std::is_same_v<T, std::string>)
                other = field.range.choices.empty() ? "x" : field.range.choices.back();
            else
                other = {"x"};
            const RunSpec staged =
                parse_text("", "f", {concat("stage=[{", field.path(), " = ", toml_text(other), "}]")});
            ASSERT_EQ(staged.stages.size(), 1u);
            EXPECT_EQ(parse_text(to_toml(staged), "again"), staged) << field.path();
            RunSpec expected = parse_text("", "f");
            for_each_field(expected, [&]<class U>(const Field& same, U& target) {
                if constexpr (std::is_same_v<T, U>)
                    if (same.path() == field.path()) target = other;
            });
            EXPECT_EQ(to_toml(stages_of(staged).front()), to_toml(expected)) << field.path();
        }
    });
    EXPECT_GT(keys, 25);
}

// Runs of 2 to 5 stages, drawn at random, of which each step is walked one after the other.
TEST(Stages, SamplesAndRatesAreThoseOfAWalkOverAllSteps) {
    std::mt19937_64 random(7);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    for (int trial = 0; trial < 300; ++trial) {
        RunSpec run = parse_text("", "walk", {"data.train=a", "train.global_batch=3", "train.seq_len=8"});
        run.optimizer.warmup_steps = below(4);
        run.optimizer.schedule = std::array{"linear", "cosine", "constant", "wsd"}[below(4)];
        int64_t end = 0;
        for (int stages = 2 + below(4); stages > 0; --stages) {
            StageSpec stage;
            end += 1 + below(6);
            stage.until = stages == 1 ? 0 : end;
            if (below(2) == 0) stage.set["train.global_batch"] = int64_t{1 + below(5)};
            if (below(3) == 0) stage.set["train.seq_len"] = int64_t{8 << below(2)};
            if (below(3) == 0) stage.set["data.train"] = std::vector<std::string>{std::array{"a", "b"}[below(2)]};
            if (below(3) == 0) stage.set["data.valid"] = std::vector<std::string>{"v"};
            if (below(3) == 0) stage.set["optimizer.lr"] = 0.1 + below(9);
            if (below(4) == 0) stage.set["optimizer.min_lr"] = 0.05;
            run.stages.push_back(stage);
        }
        run.train.steps = end;
        const std::vector<RunSpec> stages = stages_of(run);

        std::map<std::pair<std::string, int64_t>, int64_t> next_sample;  // by data and length
        int64_t course_begin = 0;
        double rate = 0, before_course = 0;
        for (int64_t step = 1; step <= end; ++step) {
            size_t index = 0;
            while (run.stages[index].until != 0 && run.stages[index].until < step) ++index;
            const RunSpec& stage = stages.at(index);
            ASSERT_EQ(stage_at(stages, step), index);
            int64_t& sample = next_sample[{toml_text(stage.data.train), stage.train.seq_len}];
            EXPECT_EQ((step - 1) * stage.train.global_batch + stage.place.sample_shift, sample) << to_toml(run);
            sample += stage.train.global_batch;

            const auto sets_rate = [](const StageSpec& s) {
                return s.set.contains("optimizer.lr") || s.set.contains("optimizer.min_lr");
            };
            const bool begins = index > 0 && stage.place.first == step && sets_rate(run.stages[index]);
            if (begins) course_begin = step - 1, before_course = rate;
            int64_t course_end = end;
            for (size_t later = index + 1; later < stages.size(); ++later)
                if (sets_rate(run.stages[later])) {
                    course_end = stages[later].place.first - 1;
                    break;
                }
            rate = learning_rate(stage.optimizer, course_end - course_begin, step - course_begin, before_course);
            EXPECT_DOUBLE_EQ(learning_rate(stage, step), rate) << to_toml(run) << step;
        }
    }
}

TEST(Stages, TheRateOfThree) {
    const std::vector<RunSpec> stages = stages_of(parse_text(kThree, "three.toml"));
    const auto rate = [&](int64_t step) { return learning_rate(stages[stage_at(stages, step)], step); };
    EXPECT_DOUBLE_EQ(rate(1), 0.5);
    EXPECT_DOUBLE_EQ(rate(2), 1);
    EXPECT_DOUBLE_EQ(rate(11), 1 - 0.9 * 9 / 18);  // goes on over the first border
    EXPECT_DOUBLE_EQ(rate(20), 0.1);               // the first course ends where the next one begins
    EXPECT_DOUBLE_EQ(rate(21), 0.1 + 0.9 / 2);     // a warm-up from that rate
    EXPECT_DOUBLE_EQ(rate(22), 1);
    EXPECT_DOUBLE_EQ(rate(30), 0);
}

TEST(Stages, ARunWithOtherEarlierStagesIsAnotherRun) {
    RunSpec run = parse_text(kThree, "three.toml");
    run.stages[2].set.erase("data.train");
    run.stages[2].set["train.seq_len"] = int64_t{8};
    const RunSpec now = stages_of(run)[2];
    EXPECT_TRUE(identity_problems(now, identity_of(now)).empty());
    run.stages[0].until = 9;
    const auto problems = identity_problems(stages_of(run)[2], identity_of(now));
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(
        problems[0],
        "stage.sample_shift = -4, in the checkpoint 0: the stages before this one read another number of samples");
    // A run that was begun without stages goes on with its first one.
    RunSpec plain = run;
    plain.stages = {};
    EXPECT_TRUE(identity_problems(stages_of(run)[0], identity_of(plain)).empty());
}

}  // namespace
}  // namespace tutti::spec
