// The time of a run over several starts, from files of earlier starts and of whole runs; the figures of ranks.
#include "tutti/train/run_clock.h"

#include <algorithm>
#include <atomic>
#include <fstream>

#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/report/run_history.h"
#include "tutti/train/step_metrics.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

using Clock = std::chrono::steady_clock;
using report::TimeSpent;

class RunClockTest : public SmallRun {
  protected:
    void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
    static std::string line(int64_t step, double time, const TimeSpent& spent) {
        return Json{{"step", step}, {"loss", 2.5}, {"seconds", report::to_json(spent)}, {"time", time}}.dump() + "\n";
    }
    // Of a start that began `ago` seconds ago and resumes `step` with `trained` seconds.
    TimeSpent resumed(int64_t step, double trained, double ago = 7) const {
        const auto began =
            Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(ago));
        return RunClock(path(""), step, trained, began).spent(trained);
    }
    static constexpr double kSlack = 5;  // seconds that a slow machine may add
    static void expect_near(double value, double expected) {
        EXPECT_GE(value, expected - 1e-6);
        EXPECT_LE(value, expected + kSlack);
    }
};

const TimeSpent kBefore{
    .trained = 80, .lost = 5, .saving = 2, .restarting = 9, .other = 4, .lost_steps = 11, .deaths = 1, .stops = 2};

TEST_F(RunClockTest, TheFirstStartIsOther) {
    const TimeSpent spent = resumed(0, 0);
    expect_near(spent.other, 7);
    EXPECT_EQ(spent.restarting, 0);
    EXPECT_EQ(spent.deaths + spent.stops, 0);
}

TEST_F(RunClockTest, ADeathLosesTheStepsSinceTheCheckpoint) {
    const double now = unix_time();
    write("metrics.jsonl", line(30, now - 130, kBefore) + line(40, now - 100, kBefore) + "{\"step\":41,\"lo");
    const TimeSpent spent = resumed(25, 50);
    EXPECT_EQ(spent.lost_steps, 11 + 15);
    EXPECT_DOUBLE_EQ(spent.lost, 5 + 30);
    EXPECT_DOUBLE_EQ(spent.trained, 50);
    EXPECT_DOUBLE_EQ(spent.saving, 2);
    expect_near(spent.restarting, 9 + 100);
    expect_near(spent.other, 4);
    EXPECT_EQ(spent.deaths, 2);
    EXPECT_EQ(spent.stops, 2);
    expect_near(spent.total(), kBefore.total() + 100);  // nothing is counted twice
}

// Step 45 was saved and not logged: its steps since the line of 40 have trained, and did not restart anything.
TEST_F(RunClockTest, ACheckpointNewerThanTheLogLosesNothing) {
    write("metrics.jsonl", line(40, unix_time() - 100, kBefore));
    const TimeSpent spent = resumed(45, 110);
    EXPECT_EQ(spent.lost_steps, 11);
    EXPECT_DOUBLE_EQ(spent.lost, 5);
    EXPECT_DOUBLE_EQ(spent.trained, 110);
    expect_near(spent.restarting, 9 + 70);
    expect_near(spent.total(), kBefore.total() + 100);  // nothing is counted twice
}

TEST_F(RunClockTest, AStopCostsWhatItsNextStartNeeds) {
    const double now = unix_time();
    write("metrics.jsonl", line(40, now - 5000, kBefore));
    write("run.json", Json{{"steps", 42}, {"seconds", report::to_json(kBefore)}, {"time", now - 4000}}.dump());
    const TimeSpent spent = resumed(42, 80);
    EXPECT_EQ(spent.lost_steps, 11);
    EXPECT_DOUBLE_EQ(spent.lost, 5);
    expect_near(spent.restarting, 9 + 7);
    EXPECT_EQ(spent.deaths, 1);
    EXPECT_EQ(spent.stops, 3);
    // A start after that, which died: its line is newer than run.json.
    write("metrics.jsonl", line(50, now - 60, kBefore));
    EXPECT_EQ(resumed(42, 80).deaths, 2);
}

TEST_F(RunClockTest, FilesWithoutTimesCountAsNone) {
    for (const char* text :
         {"{\"step\":3,\"loss\":1}\n", "\n\n", "{\"step\":3,\"seconds\":{},\"time\":1}\n", "[1]\nx", ""}) {
        write("metrics.jsonl", text);
        write("run.json", text);
        const TimeSpent spent = resumed(2, 10);
        expect_near(spent.other, 7);
        EXPECT_EQ(spent.deaths + spent.stops, 0) << text;
    }
    std::filesystem::remove(path("run.json"));
}

// Two whole runs: one stopped and continued, one that died after a checkpoint and went on.
TEST_F(RunClockTest, TheLogOfARunAddsUp) {
    const auto spent_of = [](const Json& json) { return report::time_spent_from(json.at("seconds")); };
    const auto lines = [&](const TrainOptions& o) {
        return logged(o, [](const std::string& l) { return Json::parse(l); });
    };
    const auto begin = Clock::now();
    auto o = options("run", {"train.steps=9", "checkpoint.every=3", "checkpoint.keep=9"});
    int asked = 0;
    o.stop_requested = [&] { return ++asked >= 5; };
    ASSERT_TRUE(train(o).preempted);
    o.stop_requested = [] { return false; };
    train(o);
    const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
    Json totals = Json::parse(read_file(o.out + "/run.json"));
    TimeSpent spent = spent_of(totals);
    EXPECT_EQ(spent.stops, 1);
    EXPECT_EQ(spent.deaths + spent.lost_steps, 0);
    EXPECT_NEAR(spent.trained, totals.at("wall_s").get<double>(), 1e-6);
    EXPECT_GT(spent.saving, 0);
    EXPECT_GT(spent.restarting, 0);
    EXPECT_LE(spent.total(), wall);
    TimeSpent before;
    for (const Json& line : lines(o)) {
        const TimeSpent now = spent_of(line);
        for (const auto& [key, part] : report::kTimes) EXPECT_GE(now.*part, before.*part) << key;
        EXPECT_GT(now.trained, before.trained);
        before = now;
    }

    // As after a kill: no run.json, and of the checkpoints only that of step 6.
    std::filesystem::remove(o.out + "/run.json");
    std::filesystem::remove_all(o.out + "/checkpoints/step-0000000009");
    o.run.train.steps = 12;
    const double until_then = spent_of(lines(o).back()).total();
    train(o);
    spent = spent_of(Json::parse(read_file(o.out + "/run.json")));
    EXPECT_EQ(spent.deaths, 1);
    EXPECT_EQ(spent.lost_steps, 3);
    EXPECT_GT(spent.lost, 0);
    EXPECT_GT(spent.total(), until_then);
    EXPECT_EQ(lines(o).size(), 12U);
}

// A start that loads the checkpoint of the stage before, for an engine of another length, has not been stopped.
TEST_F(RunClockTest, AChangeOfStageIsNoStop) {
    auto o = options("run", {"train.steps=6", "stage=[{until = 2}, {until = 4, train.seq_len = 32}, {}]"});
    train(o);
    const TimeSpent spent = report::time_spent_from(Json::parse(read_file(o.out + "/run.json")).at("seconds"));
    EXPECT_EQ(spent.stops + spent.deaths + spent.from_memory, 0);
    EXPECT_EQ(spent.restarting, 0);
    o.run.train.steps = 7;
    train(o);
    EXPECT_EQ(report::time_spent_from(Json::parse(read_file(o.out + "/run.json")).at("seconds")).stops, 1);
}

TEST_F(RunClockTest, ALineHasTheFiguresOfAllRanks) {
    const auto o = options("run", {"parallel.tp=2", "train.steps=3"}, 4);
    train(o);
    const report::RunHistory run = report::read_run(o.out);
    ASSERT_EQ(run.steps.size(), 3U);
    for (const report::LoggedStep& step : run.steps) {
        ASSERT_EQ(step.ranks.size(), 4U);
        for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(step.ranks[to_size(rank)].rank, rank);
        double first = 0;
        for (const auto& [name, group] : step.comm) first += *group.wait_ms;
        EXPECT_LE(step.ranks[0].wait_ms, first + 1e-3);  // the groups count the gather of these figures too
        EXPECT_EQ(step.ranks[0].mem_peak_bytes, *step.mem_peak_bytes);
        EXPECT_TRUE(std::any_of(step.ranks.begin(), step.ranks.end(), [](const auto& r) { return r.wait_ms > 0; }));
    }
    EXPECT_EQ(run.totals.layout, "dp_shard 2, tp 2");
    ASSERT_EQ(run.totals.ranks.size(), 4U);
    for (const report::RankMemory& memory : run.totals.ranks) EXPECT_EQ(memory.measured, memory.predicted);
}

// Experts get other rows in each step, so that a step in which nothing is logged may need the most memory.
TEST_F(RunClockTest, ALineHasThePeakOfAllStepsSinceTheLineBefore) {
    compares_rehearsal_ = false;
    const auto peaks = [&](const char* name, const char* every) {
        const auto o =
            options(name,
                    {"model.preset=moe-tiny", "model.moe.ffn=96", "model.init_std=0.5", "train.steps=9",
                     "train.seq_len=64", "train.global_batch=16", "train.micro_batch=8", "parallel.ep=2", every},
                    2);
        train(o);
        return report::read_run(o.out).steps;
    };
    const auto each = peaks("each", "log.every=1"), some = peaks("some", "log.every=3");
    ASSERT_EQ(each.size(), 9U);
    ASSERT_EQ(some.size(), 4U);  // of steps 1, 3, 6, 9
    int unlogged = 0;            // peaks
    for (size_t i = 1; i < some.size(); ++i)
        for (size_t rank = 0; rank < 2; ++rank) {
            double most = 0;
            for (int64_t step = some[i - 1].step + 1; step <= some[i].step; ++step)
                most = std::max(most, each[to_size(step - 1)].ranks[rank].mem_peak_bytes);
            EXPECT_EQ(some[i].ranks[rank].mem_peak_bytes, most) << "step " << some[i].step << ", rank " << rank;
            unlogged += most > each[to_size(some[i].step - 1)].ranks[rank].mem_peak_bytes;
        }
    EXPECT_GT(unlogged, 0);
}

// A start that makes the evaluation with which the one before was stopped counts nothing of it in the next line.
TEST_F(RunClockTest, AnEvaluationIsNoPartOfTheStepsOfALine) {
    compares_rehearsal_ = false;  // an evaluation leaves weights gathered, which the next step need not gather
    const auto of_run = [&](const char* name) {
        return options(name,
                       {"train.steps=4", "train.micro_batch=1", "train.eval_every=2", "data.valid_fraction=0.5",
                        "parallel.zero=3", "log.every=2", "checkpoint.every=2"},
                       2);
    };
    const auto whole = of_run("whole");
    train(whole);
    auto parts = of_run("parts");
    std::atomic<int> asked = 0;  // once a step by each rank, then between parts of the evaluation of step 2
    parts.stop_requested = [&] { return ++asked > 2; };
    ASSERT_TRUE(train(parts).preempted);
    ASSERT_FALSE(report::read_run(parts.out).steps.back().eval_loss.has_value());
    parts.stop_requested = [] { return false; };
    train(parts);
    const auto lines = report::read_run(whole.out).steps, resumed = report::read_run(parts.out).steps;
    ASSERT_EQ(resumed.size(), lines.size());
    ASSERT_EQ(resumed[1].step, 2);
    EXPECT_EQ(resumed[1].eval_loss, lines[1].eval_loss);
    EXPECT_EQ(resumed[2].comm.at("dp_shard").bytes, lines[2].comm.at("dp_shard").bytes);
}

TEST(RankFigures, OfManyRanksTheExtremesAndTheMiddle) {
    std::vector<report::RankFigures> all;
    for (int rank = 0; rank < 64; ++rank) all.push_back({rank, double((rank * 37) % 64), 1});
    EXPECT_EQ(chosen_figures(all), all);
    all.push_back({64, 64, 1});
    const auto chosen = chosen_figures(all);
    ASSERT_EQ(chosen.size(), 3U);
    EXPECT_EQ(chosen[0].rank, 0);
    EXPECT_EQ(chosen[1].wait_ms, 32);
    EXPECT_EQ(chosen[2].rank, 64);
}

}  // namespace
}  // namespace tutti::train
