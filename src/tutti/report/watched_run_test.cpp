// A run directory as it grows: what update() returns, the states, the curve.
#include "tutti/report/watched_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/timing.h"
#include "tutti/base/units.h"

namespace tutti::report {
namespace {

namespace fs = std::filesystem;
using State = WatchedRun::State;

struct Directory {
    ScratchFolder folder;
    std::string path = folder.path("run");

    Directory() { fs::create_directories(path + "/checkpoints"); }
    void write(const std::string& name, const std::string& text, bool appends = false) const {
        std::ofstream(path + "/" + name, appends ? std::ios::app : std::ios::trunc) << text;
    }
    void log(int64_t step, double loss) const {
        write("metrics.jsonl", concat("{\"step\":", step, ",\"loss\":", loss, ",\"step_ms\":500.0,\"skipped\":0}\n"),
              true);
    }
    void age(const std::string& name, int seconds) const {
        fs::last_write_time(path + "/" + name, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
    }
    static std::string this_process() {
        char host[256] = {};
        ::gethostname(host, sizeof(host) - 1);
        return concat(host, "-", ::getpid(), "\n");
    }
    // A number that no process has: the largest of Linux is 2^22.
    static std::string dead_process() {
        char host[256] = {};
        ::gethostname(host, sizeof(host) - 1);
        return concat(host, "-", 1 << 30, "\n");
    }
};

double now() { return unix_time(); }

TEST(WatchedRun, ReadsWhatIsNewAndNoLineThatIsNotComplete) {
    const Directory d;
    WatchedRun run(d.path);
    EXPECT_TRUE(run.update(now()).empty());
    EXPECT_EQ(run.state(), State::waiting);
    d.write("config.toml", "[data]\ntrain = [\"x\"]\n[train]\nsteps = 40\n");
    d.write("run.lock", Directory::this_process());
    d.log(1, 5);
    d.log(2, 4);
    d.write("metrics.jsonl", "{\"step\":3,\"lo", true);
    EXPECT_EQ(run.update(now()).size(), 2U);
    EXPECT_EQ(run.state(), State::running);
    EXPECT_EQ(run.steps(), 40);
    EXPECT_DOUBLE_EQ(*run.seconds_left(), 19);  // 38 steps of half a second
    EXPECT_TRUE(run.update(now()).empty());
    d.write("metrics.jsonl", "ss\":3.5}\n", true);
    const auto added = run.update(now());
    ASSERT_EQ(added.size(), 1U);
    EXPECT_EQ(added[0].step, 3);
    EXPECT_EQ(*added[0].loss, 3.5);
    EXPECT_FALSE(run.checkpoint());
    for (const char* name : {"step-0000000002", "step-0000000010", "step-0000000012.tmp", "other"})
        fs::create_directories(d.path + "/checkpoints/" + name);
    run.update(now());
    EXPECT_EQ(run.checkpoint()->step, 10);
}

TEST(WatchedRun, SaysWhichStageItIsIn) {
    const Directory d;
    d.write("config.toml",
            "[data]\ntrain = [\"x\"]\n[train]\nsteps = 40\n[[stage]]\nuntil = 2\n[[stage]]\n"
            "parallel.cp = 2\n");
    d.write("run.lock", Directory::this_process());
    d.log(2, 5);
    WatchedRun run(d.path);
    run.update(now());
    EXPECT_EQ(run.stage(), "stage 1 of 2, until step 2");
    d.log(3, 5);
    run.update(now());
    EXPECT_EQ(run.stage(), "stage 2 of 2, until step 40: parallel.cp = 2");
    EXPECT_NE(render(run, 100, now()).find("\nstage 2 of 2, until step 40: parallel.cp = 2\n"), std::string::npos);
    d.write("config.toml", "[data]\ntrain = [\"x\"]\n[train]\nsteps = 4000\n");
    run.update(now());
    EXPECT_EQ(run.stage(), "");
}

TEST(WatchedRun, AResumedRunDropsTheStepsAfterItsCheckpoint) {
    const Directory d;
    d.write("run.lock", Directory::this_process());
    for (int step = 1; step <= 5; ++step) d.log(step, step);
    WatchedRun run(d.path);
    EXPECT_EQ(run.update(now()).size(), 5U);
    const Directory other;
    for (int step = 1; step <= 3; ++step) other.log(step, step);
    other.log(4, 40);
    fs::rename(other.path + "/metrics.jsonl", d.path + "/metrics.jsonl");  // a resumed run replaces the file
    const auto added = run.update(now());
    ASSERT_EQ(added.size(), 1U);
    EXPECT_EQ(added[0].step, 4);
    EXPECT_EQ(*run.last()->loss, 40);
    EXPECT_EQ(run.history().steps.size(), 4U);
}

TEST(WatchedRun, States) {
    const Directory d;
    d.write("run.lock", Directory::dead_process());
    d.log(1, 5);
    WatchedRun run(d.path);
    run.update(now());
    EXPECT_EQ(run.state(), State::died);
    EXPECT_NE(render(run, 100, now()).find("tutti report --flight"), std::string::npos);
    d.write("run.lock", "another-host-12\n");
    run.update(now());
    EXPECT_EQ(run.state(), State::running);
    run.update(now() + 3600);
    EXPECT_EQ(run.state(), State::silent);
    d.write("run.lock", Directory::dead_process());
    d.age("metrics.jsonl", 5);
    d.write("run.json", "{\"preempted\": true}");
    run.update(now());
    EXPECT_EQ(run.state(), State::stopped);
    d.write("run.json", "{\"preempted\": false}");
    run.update(now());
    EXPECT_EQ(run.state(), State::ended);
    d.age("run.json", 60);  // of an earlier start
    d.write("run.lock", Directory::this_process());
    run.update(now());
    EXPECT_EQ(run.state(), State::running);
    EXPECT_THROW(WatchedRun(d.path + "/run.json"), DataError);
}

// A copy has times of its own for its files.
TEST(WatchedRun, ACopyOfARunIsAsOldAsItsLines) {
    const Directory d;
    d.write("metrics.jsonl", concat("{\"step\":1,\"loss\":5,\"step_ms\":500,\"time\":", int64_t(now()) - 3600, "}\n"));
    WatchedRun run(d.path);
    run.update(now());
    EXPECT_EQ(run.state(), State::silent);
    d.write("run.json", concat("{\"preempted\": false, \"time\": ", int64_t(now()) - 3590, "}"));
    d.age("run.json", 60);
    run.update(now());
    EXPECT_EQ(run.state(), State::ended);
    d.write("run.json",
            concat("{\"preempted\": false, \"time\": ", int64_t(now()) - 3610, "}"));  // of an earlier start
    run.update(now());
    EXPECT_EQ(run.state(), State::silent);
}

// Between two generations no rank holds the lock, and the launcher's says that the run goes on.
TEST(WatchedRun, ALaunchedRunGoesOnBetweenGenerationsAndNamesTheCulprit) {
    const Directory d;
    d.write("run.lock", Directory::dead_process());
    d.write("launch.lock", Directory::this_process());
    d.log(1, 5);
    WatchedRun run(d.path);
    run.update(now());
    EXPECT_EQ(run.state(), State::running);
    EXPECT_EQ(run.start(), nullptr);
    const double then = now() - 100;
    ASSERT_TRUE(append_event(d.path, {then, kStarted, 1, 8, "8 of 8 ranks"}));
    ASSERT_TRUE(append_event(d.path, {then + 10, kDied, 1, 8, "rank 3 on host n2 was killed by signal 9 (Killed)"}));
    ASSERT_TRUE(append_event(d.path, {then + 11, kStarted, 2, 5, "5 of 8 ranks"}));
    d.write("events.jsonl", "{\"time\":1,\"event\":\"di", true);  // being written
    run.update(now());
    ASSERT_NE(run.start(), nullptr);
    EXPECT_EQ(run.start()->generation, 2);
    EXPECT_EQ(run.start()->ranks, 5);
    const std::string page = render(run, 100, then + 20);
    EXPECT_NE(page.find("generation 2, started 9.0 s ago: 5 of 8 ranks\n"), std::string::npos) << page;
    EXPECT_NE(page.find("generation 1 died 10.0 s ago: rank 3 on host n2 was killed by signal 9 (Killed)\n"),
              std::string::npos)
        << page;
    d.write("launch.lock", Directory::dead_process());
    run.update(now());
    EXPECT_EQ(run.state(), State::died);
}

// The curve of a long run keeps its mean and its ends within the points that it may have.
TEST(WatchedRun, ALongCurveIsAveraged) {
    const Directory d;
    constexpr int kSteps = 10000;
    double sum = 0;
    for (int step = 1; step <= kSteps; ++step) sum += 1.0 / step;
    {
        std::ofstream file(d.path + "/metrics.jsonl");
        for (int step = 1; step <= kSteps; ++step) file << "{\"step\":" << step << ",\"loss\":" << 1.0 / step << "}\n";
    }
    WatchedRun run(d.path);
    EXPECT_EQ(run.update(now()).size(), size_t{kSteps});
    const auto& points = run.history().steps;
    ASSERT_LE(points.size(), WatchedRun::kMostPoints);
    ASSERT_GE(points.size(), WatchedRun::kMostPoints / 2);
    double weighed = 0;
    int64_t before = 0;
    for (const LoggedStep& point : points) {
        weighed +=
            static_cast<double>(point.step - before) * *point.loss;  // the mean of the lines since the last point
        before = point.step;
    }
    EXPECT_EQ(before, kSteps);
    EXPECT_NEAR(weighed, sum, 1e-6 * sum);  // the file has six digits
    EXPECT_EQ(run.tail().size(), WatchedRun::kTail);
    EXPECT_EQ(run.tail().back().step, kSteps);
}

TEST(BrailleCurve, FillsItsColumnsAndFalls) {
    std::vector<Point> points;
    for (int i = 0; i <= 100; ++i) points.push_back({double(i), double(100 - i)});
    const std::string text = braille_curve(points, 60, 4);
    size_t lines = 0, begin = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin), ++lines)
        EXPECT_EQ(columns_of(text.substr(begin, end - begin)), 60U);
    EXPECT_EQ(lines, 4U);
    EXPECT_NE(text.find("100.0"), std::string::npos);
    EXPECT_TRUE(braille_curve({{1, 2}}, 60, 4).empty());
    EXPECT_TRUE(braille_curve({{1, std::nan("")}, {2, std::nan("")}}, 60, 4).empty());
    EXPECT_FALSE(braille_curve({{1, 2}, {2, 2}}, 60, 4).empty());  // a constant
}

}  // namespace
}  // namespace tutti::report
