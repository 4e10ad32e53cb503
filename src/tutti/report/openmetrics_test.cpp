// The text for Prometheus, read by a strict parser of its own after the two specifications; the board of Grafana.
#include "tutti/report/openmetrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::report {
namespace {

struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
};

// OpenMetrics 1.0, section 4 (ABNF), as far as the text has it: families in one piece, TYPE, UNIT, HELP in this order
// before the samples, suffixes by type, the unit as the end of the name, no sample twice, "# EOF" last.
// Text 0.0.4 has no UNIT and no EOF, and its TYPE has the name of the samples.
std::vector<Sample> parse(const std::string& text, bool open) {
    static const std::regex type("# TYPE ([a-z_]+) (gauge|counter|info)"), unit("# UNIT ([a-z_]+) ([a-z]+)"),
        help("# HELP ([a-z_]+) [^\\\\]+"), sample(R"x(([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+))x"),
        label(R"x(([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(,|$))x");
    std::vector<Sample> all;
    std::set<std::string> families, seen;
    std::string family, kind, has_unit;
    bool has_help = false, ended = false;
    std::istringstream lines(text);
    EXPECT_TRUE(text.ends_with('\n'));
    for (std::string line; std::getline(lines, line);) {
        std::smatch m;
        EXPECT_FALSE(ended) << "behind EOF: " << line;
        if (line == "# EOF") {
            ended = true;
        } else if (std::regex_match(line, m, type)) {
            family = m[1], kind = m[2], has_unit = "", has_help = false;
            EXPECT_TRUE(families.insert(family).second) << family << " twice";
            EXPECT_TRUE(open ? kind != "counter" || !family.ends_with("_total") : kind != "info") << line;
        } else if (std::regex_match(line, m, unit)) {
            EXPECT_TRUE(open && m[1] == family && family.ends_with("_" + m[2].str())) << line;
            has_unit = m[2];
        } else if (std::regex_match(line, m, help)) {
            EXPECT_TRUE(m[1] == family && !has_help) << line;
            has_help = true;
        } else if (std::regex_match(line, m, sample)) {
            const std::string suffix = !open ? "" : kind == "counter" ? "_total" : kind == "info" ? "_info" : "";
            EXPECT_EQ(m[1], family + suffix);
            EXPECT_TRUE(has_help) << line;
            EXPECT_TRUE(seen.insert(m[1].str() + m[2].str()).second) << "twice: " << line;
            Sample one{m[1], {}, std::nan("")};
            const std::string labels = m[2];
            for (std::sregex_iterator i(labels.begin(), labels.end(), label), end; i != end; ++i)
                EXPECT_TRUE(one.labels.emplace((*i)[1], (*i)[2]).second) << line;
            if (m[3] != "NaN") {
                size_t used = 0;
                one.value = std::stod(m[3], &used);
                EXPECT_EQ(used, m[3].str().size()) << line;
            }
            EXPECT_TRUE(kind != "counter" || one.value >= 0) << line;
            all.push_back(one);
        } else {
            ADD_FAILURE() << "no line of the format: " << line;
        }
    }
    EXPECT_EQ(ended, open);
    return all;
}

class Metrics : public ::testing::Test {
  protected:
    Metrics() { std::filesystem::create_directories(path_ + "/checkpoints/step-0000000030"); }
    void write(const std::string& name, const std::string& text) const { std::ofstream(path_ + "/" + name) << text; }
    static Json line(int step, double loss) {
        const TimeSpent spent{.trained = 2.0 * step,
                              .lost = 4,
                              .saving = 1,
                              .restarting = 2,
                              .other = 3,
                              .lost_steps = 2,
                              .deaths = 1,
                              .from_memory = 1};
        return {{"step", step},
                {"tokens", 100 * step},
                {"loss", std::isfinite(loss) ? Json(loss) : Json()},
                {"step_ms", 2000.0},
                {"tokens_per_s", 64.0},
                {"mfu", 0.25},
                {"comm", {{"dp", {{"operations", 2}, {"bytes", 8}, {"wait_ms", 500.0}}}}},
                {"ranks", {{"rank", {0, 1}}, {"wait_ms", {500.0, 250.0}}, {"mem_peak_bytes", {1000, 2000}}}},
                {"skipped", 1},
                {"seconds", to_json(spent)},
                {"time", 1.0}};
    }
    std::vector<Sample> samples(const WatchedRun& run) const {
        const std::vector<WatchedRun> runs = {run};
        const auto open = parse(metrics_text(runs, MetricsFormat::openmetrics), true);
        const auto text = parse(metrics_text(runs, MetricsFormat::text), false);
        EXPECT_EQ(open.size(), text.size());
        for (size_t i = 0; i < std::min(open.size(), text.size()); ++i) {
            EXPECT_EQ(open[i].name, text[i].name);
            EXPECT_EQ(open[i].labels, text[i].labels);
        }
        return open;
    }
    static double value(const std::vector<Sample>& all, const std::string& name,
                        std::map<std::string, std::string> labels) {
        for (const Sample& sample : all) {
            auto others = sample.labels;
            others.erase("run");
            if (sample.name == name && others == labels) return sample.value;
        }
        ADD_FAILURE() << "no " << name;
        return 0;
    }

    ScratchFolder folder_;
    // The run's name is a label, whatever it is.
    std::string path_ = folder_.path("a \"run\" \\ of\nlines");
};

TEST_F(Metrics, AreThoseOfTheLog) {
    write("config.toml", "[data]\ntrain = [\"x\"]\n[train]\nsteps = 400\n");
    write("first_step.json", Json{{"layout", "dp_shard 2"},
                                  {"version", "1"},
                                  {"model", "m"},
                                  {"ranks",
                                   {{{"rank", 0}, {"memory", {{"weights", 10}}}, {"rehearsed", {{"weights", 11}}}},
                                    {{"rank", 1}, {"memory", {{"weights", 12}}}, {"rehearsed", {{"weights", 13}}}}}}}
                                 .dump());
    write("metrics.jsonl", line(10, 5).dump() + "\n" + line(30, std::nan("")).dump() + "\n");
    WatchedRun run(path_);
    run.update(2);
    ASSERT_EQ(run.state(), WatchedRun::State::running);
    const auto all = samples(run);
    EXPECT_EQ(value(all, "tutti_run_info", {{"model", "m"}, {"layout", "dp_shard 2"}, {"version", "1"}}), 1);
    EXPECT_EQ(value(all, "tutti_run_state", {{"state", "running"}}), 1);
    EXPECT_EQ(value(all, "tutti_run_state", {{"state", "died"}}), 0);
    EXPECT_EQ(value(all, "tutti_training_step", {}), 30);
    EXPECT_EQ(value(all, "tutti_training_steps_planned", {}), 400);
    EXPECT_TRUE(std::isnan(value(all, "tutti_training_loss", {})));
    EXPECT_EQ(value(all, "tutti_training_step_seconds", {}), 2);
    EXPECT_EQ(value(all, "tutti_training_tokens_total", {}), 3000);
    EXPECT_EQ(value(all, "tutti_training_positions_total", {}), 30 * 128);  // steps of 2 s at 64 a second
    EXPECT_EQ(value(all, "tutti_mfu_ratio", {}), 0.25);
    EXPECT_EQ(value(all, "tutti_memory_bytes", {{"rank", "1"}, {"purpose", "weights"}, {"kind", "predicted"}}), 13);
    EXPECT_EQ(value(all, "tutti_memory_peak_bytes", {{"rank", "1"}}), 2000);
    EXPECT_EQ(value(all, "tutti_wait_seconds_total", {{"rank", "0"}, {"group", "dp"}}), 30 * 0.5);
    EXPECT_EQ(value(all, "tutti_rank_wait_seconds_total", {{"rank", "1"}}), 30 * 0.25);
    EXPECT_EQ(value(all, "tutti_rank_wait_ratio", {{"rank", "1"}}), 0.125);
    EXPECT_EQ(value(all, "tutti_checkpoint_step", {}), 30);
    EXPECT_EQ(value(all, "tutti_ranks", {}), 2);
    EXPECT_EQ(value(all, "tutti_restarts_total", {{"reason", "died"}}), 1);
    EXPECT_EQ(value(all, "tutti_lost_steps_total", {}), 2);
    EXPECT_EQ(value(all, "tutti_restarts_from_memory_total", {}), 1);
    EXPECT_EQ(value(all, "tutti_skipped_steps_total", {}), 1);
    EXPECT_EQ(value(all, "tutti_time_seconds_total", {{"on", "trained"}}), 60);
    EXPECT_NEAR(value(all, "tutti_goodput_ratio", {}), 60.0 / 70, 1e-12);
    for (const Sample& sample : all) EXPECT_EQ(sample.labels.at("run"), folder_.path("a \\\"run\\\" \\\\ of\\nlines"));
}

TEST_F(Metrics, OfAnEndedRunNoNumbersOfAStep) {
    write("metrics.jsonl", line(30, 5).dump() + "\n");
    write("run.json", "{\"preempted\": true}");
    WatchedRun run(path_);
    run.update(2);
    ASSERT_EQ(run.state(), WatchedRun::State::stopped);
    std::set<std::string> names;
    for (const Sample& sample : samples(run)) names.insert(sample.name);
    for (const char* gone : {"tutti_training_loss", "tutti_mfu_ratio", "tutti_training_step_seconds",
                             "tutti_memory_peak_bytes", "tutti_rank_wait_ratio"})
        EXPECT_FALSE(names.contains(gone)) << gone;
    for (const char* stays : {"tutti_run_state", "tutti_training_tokens_total", "tutti_goodput_ratio"})
        EXPECT_TRUE(names.contains(stays)) << stays;
    // Before anything is there, and of several runs.
    const ScratchFolder empty;
    const std::vector<WatchedRun> runs = {run, WatchedRun(empty.path("."))};
    EXPECT_FALSE(parse(metrics_text(runs, MetricsFormat::openmetrics), true).empty());
}

TEST(MetricNames, HaveTheUnitsOfPrometheus) {
    std::set<std::string> names;
    for (const MetricFamily& family : metric_families()) {
        const std::string name = family.name, unit = family.unit;
        EXPECT_TRUE(name.starts_with("tutti_") && names.insert(name).second) << name;
        EXPECT_TRUE(unit.empty() || name.ends_with("_" + unit)) << name;
        for (const char* other : {"_ms", "_percent", "_gb", "_total"}) EXPECT_FALSE(name.ends_with(other)) << name;
    }
}

TEST(Negotiation, TheOlderFormatIsTheDefault) {
    EXPECT_EQ(format_of("application/openmetrics-text;version=1.0.0;q=0.5,text/plain"), MetricsFormat::openmetrics);
    EXPECT_EQ(format_of("*/*"), MetricsFormat::text);
    EXPECT_EQ(format_of(""), MetricsFormat::text);
}

// Every query of the board names samples that exist, and every panel has one.
TEST(GrafanaBoard, AsksForMetricsThatExist) {
    std::set<std::string> samples, asked;
    for (const MetricFamily& family : metric_families())
        samples.insert(concat(family.name, std::string_view(family.type) == "counter" ? "_total"
                                           : std::string_view(family.type) == "info"  ? "_info"
                                                                                      : ""));
    const Json board = Json::parse(read_file(TUTTI_SOURCE "/share/grafana/tutti.json"));
    const std::regex name("tutti_[a-z_]+");
    for (const Json& panel : board.at("panels")) {
        ASSERT_TRUE(panel.contains("targets")) << panel.at("title");
        for (const Json& target : panel.at("targets")) {
            const std::string expression = target.at("expr").text();
            EXPECT_NE(expression.find("run=~\"$run\""), std::string::npos) << expression;
            size_t found = 0;
            for (std::sregex_iterator i(expression.begin(), expression.end(), name), end; i != end; ++i, ++found) {
                EXPECT_TRUE(samples.contains(i->str())) << i->str();
                asked.insert(i->str());
            }
            EXPECT_GT(found, 0U) << expression;
        }
    }
    EXPECT_GE(asked.size(), 12U);
    EXPECT_TRUE(samples.contains("tutti_run_state"));  // of the variable `run`
    EXPECT_NE(board.dump().find("label_values(tutti_run_state, run)"), std::string::npos);
}

}  // namespace
}  // namespace tutti::report
