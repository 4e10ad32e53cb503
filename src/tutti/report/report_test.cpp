// report/report_test.cpp: reading a run directory, the arithmetic of the charts, the cards, and the page as a whole.
#include "tutti/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"

namespace tutti::report {
namespace {

namespace fs = std::filesystem;

std::string message_of(const fs::path& run_dir) {
    try {
        read_run(run_dir);
    } catch (const DataError& error) {
        return error.what();
    }
    return "no DataError";
}

// The first tag that does not close the open one, or is not closed at the end; "" when all are balanced.
std::string first_unbalanced(const std::string& page) {
    // The style sheet holds no tags, and HTML's void elements are written <meta .../>.
    const std::regex tag(R"(<(/?)([a-zA-Z0-9]+)((?:\s+[a-zA-Z0-9:-]+="[^"<>]*")*)\s*(/?)>)");
    std::vector<std::string> open;
    size_t tags = 0;
    for (std::sregex_iterator i(page.begin(), page.end(), tag), end; i != end; ++i, ++tags) {
        const std::smatch& match = *i;
        if (match[4].length()) continue;
        if (!match[1].length()) {
            open.push_back(match[2]);
        } else if (open.empty() || open.back() != match[2]) {
            return concat("</", match[2].str(), "> while ", open.empty() ? "nothing" : open.back(), " is open");
        } else {
            open.pop_back();
        }
    }
    // A '<' outside the pattern's matches is a malformed tag or unescaped text.
    const auto brackets = to_size(std::count(page.begin(), page.end(), '<'));
    const size_t doctype = page.starts_with("<!DOCTYPE html>") ? 1 : 0;
    if (brackets != tags + doctype) return concat(brackets, " times '<', but ", tags, " tags");
    return open.empty() ? "" : open.back() + " is not closed";
}

size_t count_of(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

std::string line(int step, const std::string& rest) { return concat("{\"step\": ", step, ", ", rest, "}\n"); }

TEST(ReportSvg, EscapesWhatHtmlWouldRead) {
    EXPECT_EQ(escape_html("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    EXPECT_EQ(escape_html("line\n\ttab"), "line\n\ttab");
    EXPECT_EQ(escape_html(std::string("a\0b\x1b", 4)),
              "a\xef\xbf\xbd"
              "b\xef\xbf\xbd");
    EXPECT_EQ(escape_html("λόγος"), "λόγος");
}

TEST(ReportSvg, LinearTicksAreOneTwoFive) {
    EXPECT_EQ(svg::linear_ticks(0, 10, 4), (std::vector<double>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(svg::linear_ticks(1, 2996, 4), (std::vector<double>{500, 1000, 1500, 2000, 2500}));
    EXPECT_EQ(svg::linear_ticks(-3, 3, 4), (std::vector<double>{-3, -2, -1, 0, 1, 2, 3}));
    const std::vector<double> small = svg::linear_ticks(0, 6e-4, 4);
    ASSERT_EQ(small.size(), 4u);  // 0, 2e-4, 4e-4, 6e-4
    EXPECT_DOUBLE_EQ(small[3], 6e-4);
    EXPECT_THROW(svg::linear_ticks(1, 1, 4), Error);
    EXPECT_THROW(svg::linear_ticks(0, std::nan(""), 4), Error);
}

TEST(ReportSvg, LogTicks) {
    const auto expect_near = [](const std::vector<double>& got, const std::vector<double>& wanted) {
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12 * wanted[i]);
    };
    expect_near(log_ticks(0.9, 25), {1, 2, 5, 10, 20});
    expect_near(log_ticks(1e-4, 100), {1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100});
    EXPECT_THROW(log_ticks(0, 1), Error);
}

TEST(ReportSvg, TickLabelsHaveTheDigitsThatTellThemApart) {
    using Labels = std::vector<std::string>;
    EXPECT_EQ(svg::tick_labels({0, 0.5, 1}), (Labels{"0", "0.5", "1.0"}));
    EXPECT_EQ(svg::tick_labels({0, 5000, 10000}), (Labels{"0", "5k", "10k"}));
    EXPECT_EQ(svg::tick_labels({500, 1000, 1500}), (Labels{"500", "1000", "1500"}));
    EXPECT_EQ(svg::tick_labels({0, 5e-5, 1e-4, 1.5e-4}), (Labels{"0", "5e-5", "1e-4", "1.5e-4"}));
    EXPECT_EQ(svg::tick_labels({1.2e6, 1.4e6}), (Labels{"1.2M", "1.4M"}));
}

TEST(ReportSvg, NumbersForPeople) {
    EXPECT_EQ(short_number(8030261248.0), "8.03G");
    EXPECT_EQ(short_number(999999), "1M");
    EXPECT_EQ(short_number(1234), "1.23k");
    EXPECT_EQ(short_number(1.27131, 4), "1.271");
    EXPECT_EQ(short_number(3e-4), "3e-4");
    EXPECT_EQ(short_number(9.9999e-5), "1e-4");
    EXPECT_EQ(short_number(0), "0");
    EXPECT_EQ(short_number(std::nan("")), "not a number");
    EXPECT_EQ(short_bytes(0), "0 B");
    EXPECT_EQ(short_bytes(1536), "1.5 KiB");
    EXPECT_EQ(short_bytes(1023.9 * 1024 * 1024), "1 GiB");
}

TEST(ReportSvg, SmoothingByHand) {
    // Half-lives 1, 1.1, 1.2 -> 2^(-1/h) = 0.5, 0.53253, 0.56123; the weights are normalised by their sum.
    const std::vector<Point> smoothed = smooth({{1, 4}, {2, std::nan("")}, {3, 8}, {4, 0}}, 100);
    ASSERT_EQ(smoothed.size(), 3u);
    EXPECT_DOUBLE_EQ(smoothed[0].y, 4);
    const double keep1 = std::pow(2, -1 / 1.1), keep2 = std::pow(2, -1 / 1.2);
    const double sum1 = keep1 * 2 + (1 - keep1) * 8, weight1 = keep1 * 0.5 + (1 - keep1);
    EXPECT_NEAR(smoothed[1].y, sum1 / weight1, 1e-12);
    EXPECT_NEAR(smoothed[2].y, keep2 * sum1 / (keep2 * weight1 + 1 - keep2), 1e-12);
    EXPECT_EQ(smoothed[2].x, 4);
    for (const Point& point : smooth(std::vector<Point>(50, Point{0, 7}), 5)) EXPECT_NEAR(point.y, 7, 1e-12);
}

TEST(ReportSvg, ThinningKeepsEverySpike) {
    std::vector<Point> points;
    for (int i = 0; i < 10000; ++i)
        points.push_back({static_cast<double>(i), i == 6789 ? 100.0 : i == 4321 ? -100.0 : 1.0});
    const std::vector<Point> kept = thin_out(points, 200);
    EXPECT_LE(kept.size(), 200u);
    const auto has = [&](double x, double y) {
        return std::any_of(kept.begin(), kept.end(), [&](const Point& p) { return p.x == x && p.y == y; });
    };
    EXPECT_TRUE(has(6789, 100));
    EXPECT_TRUE(has(4321, -100));
    EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](const Point& a, const Point& b) { return a.x < b.x; }));
}

TEST(ReportSvg, LogAxisOnlyForAWideRangeOfPositiveValues) {
    const auto drawn = [](double low, double high) {
        Chart chart{.id = "c",
                    .title = "t",
                    .description = "",
                    .y_unit = "",
                    .series = {{"s", 1, Mark::line, {{1, high}, {2, low}}}}};
        chart.allow_log = true;
        return line_chart(chart);
    };
    EXPECT_NE(drawn(0.01, 30).find("log scale"), std::string::npos);
    EXPECT_EQ(drawn(1.2, 5.6).find("log scale"), std::string::npos);
    EXPECT_EQ(drawn(-1, 30).find("log scale"), std::string::npos);
    EXPECT_EQ(first_unbalanced(drawn(0.01, 30)), "");
}

TEST(ReportSvg, LinesBreakAtWhatIsNotFinite) {
    const Chart chart{.id = "c",
                      .title = "t",
                      .description = "",
                      .y_unit = "",
                      .series = {{"s", 1, Mark::line, {{1, 2}, {2, 3}, {3, std::nan("")}, {4, 5}, {5, std::nan("")}}}}};
    const std::string svg = line_chart(chart);
    const size_t path = svg.find("<path class=\"line c1\" d=\"");
    ASSERT_NE(path, std::string::npos);
    const std::string data = svg.substr(path + 25, svg.find("\"/>", path) - path - 25);
    EXPECT_EQ(count_of(data, "M"), 2u) << data;
    EXPECT_EQ(count_of(data, "L"), 1u) << data;
    EXPECT_TRUE(data.ends_with("h0")) << data;  // the lone value is a dot
    EXPECT_EQ(line_chart({.id = "c", .title = "t", .description = "", .y_unit = "", .series = {}}), "");
}

TEST(ReportSvg, HeatMapShadesWhatIsNotTheMean) {
    const std::string svg = heat_map({.id = "h",
                                      .title = "Load",
                                      .description = "",
                                      .x_label = "expert",
                                      .rows = {"layer 3"},
                                      .values = {{1, 2.5, 0}},
                                      .column = "expert"});
    EXPECT_NE(svg.find("layer 3, expert 1: 2.5"), std::string::npos);
    EXPECT_NE(svg.find("class=\"span c4\""), std::string::npos);      // above the mean
    EXPECT_NE(svg.find("fill-opacity=\"0.94\""), std::string::npos);  // twice and more
    EXPECT_NE(svg.find("fill-opacity=\"0.04\""), std::string::npos);  // the mean
    EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(ReportSvg, BarsAreInProportion) {
    const std::string svg = memory_bars("m", "Memory", {{"weights", 200, 100}, {"<w>", -1, 50}});
    std::vector<double> widths;
    const std::regex width("width=\"([0-9.]+)\" height=\"12\"");
    for (std::sregex_iterator i(svg.begin(), svg.end(), width), end; i != end; ++i)
        widths.push_back(std::stod((*i)[1]));
    ASSERT_EQ(widths.size(), 3u);  // the unknown prediction has no bar
    EXPECT_NEAR(widths[1], widths[0] / 2, 0.1);
    EXPECT_NEAR(widths[2], widths[0] / 4, 0.1);
    EXPECT_NE(svg.find("100 B (-50.0%)"), std::string::npos);
    EXPECT_NE(svg.find("&lt;w&gt;: predicted unknown"), std::string::npos);
    EXPECT_EQ(first_unbalanced(svg), "");
}

TEST(ReportRead, LinesHeaderNullAndTotals) {
    const ScratchFolder dir;
    dir.write("metrics.jsonl",
              "{\"header\": true, \"model\": \"from the log\", \"parameters\": 7}\n" +
                  line(1, "\"loss\": 5.5, \"lr\": 3e-4, \"skipped\": 0") +
                  line(2, "\"loss\": null, \"grad_norm\": null, \"skipped\": 1, \"skip_reason\": \"wq\"") +
                  line(3, "\"loss\": 5.25, \"eval_loss\": 5.4, \"skipped\": 1") +
                  line(10, "\"loss\": 5.0, \"skipped\": 4"));
    dir.write(
        "run.json",
        R"({"model": "llama-tiny", "tokens": 4096, "memory": {"weights": null}, "rehearsed": {"memory": {"weights": 8}}})");
    dir.write("config.toml", "[train]\nsteps = 3\n");
    const RunHistory run = read_run(dir.path());
    EXPECT_EQ(run.name, fs::path(dir.path()).filename().string());
    ASSERT_EQ(run.steps.size(), 4u);
    EXPECT_EQ(run.steps[0].loss, 5.5);
    EXPECT_EQ(run.steps[0].lr, 3e-4);
    EXPECT_FALSE(run.steps[0].eval_loss.has_value());
    EXPECT_TRUE(run.steps[1].loss.has_value() && std::isnan(*run.steps[1].loss));
    EXPECT_EQ(run.steps[1].skip_reason, "wq");
    EXPECT_EQ(run.steps[2].eval_loss, 5.4);
    // An unchanged count is no event; a count that rose by three means three steps.
    EXPECT_EQ(run.steps[1].skipped_before, 1);
    EXPECT_EQ(run.steps[2].skipped_before, 0);
    EXPECT_EQ(run.steps[3].skipped_before, 3);
    EXPECT_EQ(run.totals.model, "llama-tiny");
    EXPECT_EQ(run.totals.parameters, 7);
    EXPECT_EQ(run.totals.tokens, 4096);
    ASSERT_EQ(run.totals.memory.size(), 1u);
    EXPECT_EQ(run.totals.memory[0].predicted_bytes, 8);
    EXPECT_FALSE(run.totals.memory[0].measured_bytes.has_value());
    EXPECT_EQ(run.config, "[train]\nsteps = 3\n");
    EXPECT_TRUE(run.notes.empty());
}

TEST(ReportRead, AnEndThatARunHasPassedDoesNotCount) {
    const ScratchFolder dir;
    dir.write("metrics.jsonl", line(7, "\"loss\": 5"));
    dir.write("run.json",
              R"({"steps": 6, "final_loss": 9, "layout": "tp 2", "ranks": [{"rank": 0, "memory": {"weights": 1},)"
              R"( "rehearsed": {"weights": 1}}]})");
    const auto first = [&](int step) {
        dir.write(
            "first_step.json",
            concat(
                R"({"layout": "cp 2", "ranks": [{"rank": 0, "memory": {"weights": 2}, "rehearsed": {"weights": 2}}])",
                step > 0 ? concat(", \"step\": ", step) : "", "}"));
        return read_run(dir.path());
    };
    EXPECT_EQ(first(7).totals.layout, "cp 2");
    EXPECT_EQ(predicted_bytes(first(7), 0), 2);
    EXPECT_FALSE(first(7).totals.final_loss.has_value());
    EXPECT_EQ(first(6).totals.layout, "tp 2");
    EXPECT_EQ(first(6).totals.final_loss, 9);
    EXPECT_EQ(first(0).totals.layout, "tp 2");  // of an earlier version
}

TEST(ReportRead, ATornLastLineIsLeftOutAndNoted) {
    const ScratchFolder dir;
    for (const std::string torn : {"{\"step\": 2, \"lo", "{\"step\": 2, \"lo\n", "{\"step\": 2, \"loss\": 1"}) {
        dir.write("metrics.jsonl", line(1, "\"loss\": 5.5") + torn);
        const RunHistory run = read_run(dir.path());
        EXPECT_EQ(run.steps.size(), 1u);
        ASSERT_FALSE(run.notes.empty());
        EXPECT_NE(run.notes[0].find("Line 2 of metrics.jsonl"), std::string::npos) << run.notes[0];
        EXPECT_NE(render_report(run).find(escape_html(run.notes[0])), std::string::npos);
    }
}

TEST(ReportRead, DamageIsNamedWithItsPlace) {
    const ScratchFolder dir;
    EXPECT_NE(message_of(dir.path()).find("holds no run"), std::string::npos);
    dir.write("run.lock", "host-1");
    EXPECT_NE(message_of(dir.path()).find("metrics.jsonl: is not there: the run has logged no step"),
              std::string::npos);
    EXPECT_NE(message_of(dir.path("absent")).find("does not exist"), std::string::npos);
    dir.write("metrics.jsonl", line(1, "\"loss\": 1") + "{\"st\n" + line(2, "\"loss\": 1"));
    EXPECT_NE(message_of(dir.path()).find("metrics.jsonl:2: required: one JSON object, got `{\"st`"),
              std::string::npos);
    EXPECT_NE(message_of(dir.path("metrics.jsonl")).find("not a directory"), std::string::npos);
    dir.write("metrics.jsonl", line(1, "\"loss\": \"low\""));
    EXPECT_NE(message_of(dir.path()).find("metrics.jsonl:1: `loss` must be a number or null, got \"low\""),
              std::string::npos);
    dir.write("metrics.jsonl", "{\"loss\": 1}\n");
    EXPECT_NE(message_of(dir.path()).find("metrics.jsonl:1: `step` must be an integer"), std::string::npos);
    dir.write("metrics.jsonl", line(1, "\"loss\": 1"));
    dir.write("run.json", "{\"tokens\": 1,}");
    EXPECT_NE(message_of(dir.path()).find("run.json: byte 13"), std::string::npos) << message_of(dir.path());
}

// A run with everything that the page can show, and with text that tries to inject HTML.
RunHistory full_run() {
    RunHistory run;
    run.name = "<script>alert(1)</script>";
    for (int i = 1; i <= 40; ++i) {
        LoggedStep step;
        step.step = i;
        step.loss = i == 7 ? std::nan("") : 6.0 / i;
        if (i % 10 == 0) step.eval_loss = 6.5 / i;
        step.grad_norm = 1.0 + 1.0 / i;
        step.lr = 1e-3 / i;
        step.tokens = 1000.0 * i;
        step.tokens_per_s = 1000;
        step.mfu = 0.25;
        step.hfu = 0.5;
        step.mem_peak_bytes = 3.0 * (1 << 20);
        if (i == 7) step.skip_reason = "\"><img src=x>";
        step.comm["<dp>"] = {40, 2048, i < 20 ? 1.5 : 2.5};
        run.steps.push_back(step);
    }
    run.totals = {.model = "a&b",
                  .machine = "<cpu>",
                  .sample = "</pre><b>bold</b>",
                  .peak_origin = "<origin>",
                  .parameters = 1e6,
                  .tokens = 40000,
                  .wall_s = 3700,
                  .final_loss = 0.15,
                  .peak_flops = 207e9,
                  .memory = {{"weights", 100, 90}, {"</svg>", 10, 10}}};
    run.config = "[data]\ntrain = [\"</details>\"]\n";
    run.notes = {"<note>"};
    for (int rank = 0; rank < 9; ++rank) {
        const auto span = [](const char* name, const char* activity, const char* group, double begin, double end) {
            return TracedSpan{name, activity, group, 3, 1, group[0] != 0 ? 2048 : 0, 0, begin, end};
        };
        run.trace.push_back({rank,
                             {span("step", "step", "", 0, 10000), span("backward <b>", "compute", "", 2000, 6000),
                              span("all_reduce", "communication", "<dp>", 4000, 8000),
                              span("wait all_reduce", "wait", "<dp>", 7000, 8000)}});
    }
    return run;
}

TEST(ReportPage, IsWellFormedAndEscaped) {
    const std::string page = render_report(full_run());
    EXPECT_EQ(first_unbalanced(page), "");
    for (const std::string attack : {"<script", "<img", "<b>bold", "<cpu>", "<note>", "</details>\"]"}) {
        EXPECT_EQ(page.find(attack), std::string::npos) << attack;
    }
    EXPECT_NE(page.find("&lt;/pre&gt;&lt;b&gt;bold"), std::string::npos);
    EXPECT_NE(page.find("MFU and HFU are shares of 207.0 GFLOP/s: &lt;origin&gt;"), std::string::npos);
    EXPECT_NE(page.find("train = [&quot;&lt;/details&gt;&quot;]"), std::string::npos);
}

TEST(ReportPage, NeedsNoNetworkAndNoScript) {
    const std::string page = render_report(full_run());
    for (const std::string outside : {"http:", "https:", "url(", "@import", "<link", "<script", "src="}) {
        // The only src= is the attack of full_run(), escaped.
        EXPECT_EQ(count_of(page, outside), outside == "src=" ? 1u : 0u) << outside;
    }
}

TEST(ReportPage, ShowsWhatTheRunWas) {
    const std::string page = render_report(full_run());
    for (const std::string part :
         {"Loss", "Gradient norm", "Learning rate", "Throughput", "MFU and HFU", "Memory by purpose",
          "Skipped and non-finite steps", "Sample", "Config, as resolved"}) {
        EXPECT_NE(page.find(part), std::string::npos) << part;
    }
    EXPECT_NE(page.find("<dt>parameters</dt><dd>1M</dd>"), std::string::npos);
    EXPECT_NE(page.find("<dt>time in steps</dt><dd>1 h 1 min</dd>"), std::string::npos);
    EXPECT_NE(page.find("<dt>final loss</dt><dd>0.15</dd>"), std::string::npos);
    EXPECT_NE(page.find("<dt>MFU, median</dt><dd>25 %</dd>"), std::string::npos);
    EXPECT_NE(page.find("<dt>memory peak</dt><dd>3 MiB</dd>"), std::string::npos);
    EXPECT_NE(page.find("train: 6 at step 1, 0.15 at step 40, lowest 0.15 at step 40, highest 6 at step 1."),
              std::string::npos);
    EXPECT_NE(page.find("<td>7</td><td>0</td><td>not finite</td>"), std::string::npos);
    EXPECT_EQ(count_of(page, "class=\"event c4\""), 2u);        // step 7, in the wide and in the narrow drawing
    EXPECT_EQ(count_of(page, "<circle class=\"dot c2\""), 8u);  // four evaluations, in both
    // Every picture has a unique name.
    EXPECT_EQ(count_of(page, "role=\"img\""), count_of(page, "<desc id="));
    for (const std::string id : {"loss", "loss-wide", "grad-norm", "lr", "speed", "mfu", "memory"}) {
        EXPECT_EQ(count_of(page, concat("<title id=\"", id, "-t\">")), 1u) << id;
    }
}

TEST(ReportPage, ShowsStagesAndThePredictionOfOne) {
    RunHistory run;
    for (int i = 1; i <= 30; ++i) {
        LoggedStep step;
        step.step = i;
        step.loss = 100.0 - i;
        step.step_ms = i <= 10 ? 7 : 31 + i % 3;  // 32 in the middle of stage 2
        step.tokens_per_s = i <= 10 ? 5000 : 1100 + i % 3;
        run.steps.push_back(step);
    }
    const auto page_with = [&](const std::string& stages) {
        run.config = concat("[data]\ntrain = [\"a\"]\n[train]\nsteps = 40\n", stages);
        return render_report(run);
    };
    EXPECT_EQ(page_with("").find("<h2>Stages"), std::string::npos);
    const std::string stages =
        "[[stage]]\nuntil = 10\n[[stage]]\nuntil = 35\nparallel.cp = 2\n[[stage]]\ndata.train = [\"<b>\"]\n";
    run.predicted =
        PredictedStep{.machine = "m", .step_s = 0.03, .low_s = 0.02, .high_s = 0.04, .sent = {}, .trace = {}};
    const std::string whole = page_with(stages);
    EXPECT_EQ(first_unbalanced(whole), "");
    for (const std::string row :
         {"<tr><td>1</td><td>1 to 10</td><td>7</td><td>5k</td><td>90</td></tr>",
          "<tr class=\"has-reason\"><td>2</td><td>11 to 35</td><td>32</td><td>1.1k</td><td>70</td></tr>"
          "<tr><td colspan=\"5\" class=\"reason\">parallel.cp = 2</td></tr>",
          "<td>3</td><td>36 to 40</td><td>–</td><td>–</td><td>–</td></tr><tr><td colspan=\"5\" "
          "class=\"reason\">data.train = [&quot;&lt;b&gt;&quot;]</td></tr>"})
        EXPECT_NE(whole.find(row), std::string::npos) << row;
    run.predicted->first = 11, run.predicted->last = 35;
    const std::string second = page_with(stages);
    EXPECT_NE(second.find("<tr><td>step</td><td>30 ms</td><td>32 ms</td><td>-6.25 %</td>"), std::string::npos);
    EXPECT_NE(second.find("over the logged steps from 11 to 35."), std::string::npos);
    run.predicted->last = 0;
    EXPECT_EQ(second.find("over the logged steps."), std::string::npos);
    EXPECT_NE(page_with(stages), whole);  // the band does not begin with step 1
    run.predicted->first = 1, run.predicted->last = 0;
    EXPECT_EQ(page_with(stages), whole);
    run.predicted->first = 31, run.predicted->last = 40;  // nothing of that stage is logged
    EXPECT_EQ(page_with(stages).find("predicted, 8 of 10 runs"), std::string::npos);
}

// Two lines: 100 and 300 tokens/s, 1 and 3 MiB on the first rank, and more on the second.
TEST(ReportPage, MediansLieInTheMiddleAndTheFullestRankCounts) {
    RunHistory run;
    for (const int i : {1, 3}) {
        LoggedStep step;
        step.step = i;
        step.step_ms = 10 * i;
        step.tokens_per_s = 100 * i;
        step.mem_peak_bytes = i << 20;
        step.ranks = {{0, 1, double(i << 20)}, {1, 1, double(4 * i << 20)}};
        run.steps.push_back(step);
    }
    run.predicted = PredictedStep{.machine = "m", .step_s = 0.02, .peak_bytes = 8 << 20, .sent = {}, .trace = {}};
    const std::string page = render_report(run);
    EXPECT_NE(page.find("<dt>tokens/s, median</dt><dd>200</dd>"), std::string::npos);
    EXPECT_NE(page.find("<dt>memory peak</dt><dd>12 MiB</dd>"), std::string::npos);
    EXPECT_NE(page.find("<tr><td>step</td><td>20 ms</td><td>20 ms</td><td>+0 %</td>"), std::string::npos);
    EXPECT_NE(page.find("<tr><td>memory at the peak</td><td>8 MiB</td><td>8 MiB</td><td>+0 %</td>"), std::string::npos);
}

TEST(ReportPage, ShowsWhatWasTracedAndCounted) {
    const std::string page = render_report(full_run());
    EXPECT_NE(page.find("<td>&lt;dp&gt;</td><td>40</td><td>2 KiB</td><td>2.5</td>"), std::string::npos);
    // Rank, step, compute, of the step, data, waits, of the step, communication, hidden: 4 of 4 ms, 2 of them under
    // way.
    EXPECT_NE(page.find("<tr><td>8</td><td>10</td><td>4</td><td>40 %</td><td>0</td><td>1</td><td>10 %</td><td>4</td>"
                        "<td>50 %</td></tr>"),
              std::string::npos);
    EXPECT_EQ(count_of(page, "<title id=\"timeline-t\">"), 1u);
    EXPECT_EQ(count_of(page, "<title>backward &lt;b&gt;, 4 ms</title>"), 8u);  // the ninth rank is not drawn
    EXPECT_EQ(count_of(page, "<title>all_reduce, 4 ms, operation 1 of &lt;dp&gt;, 2 KiB</title>"), 8u);
    EXPECT_NE(page.find("Ranks 0 to 7 of 9 are drawn."), std::string::npos);
}

TEST(ReportPage, ARunThatHasNotLoggedYet) {
    const std::string page = render_report({.name = "new", .steps = {}, .totals = {}, .config = "", .notes = {}});
    EXPECT_EQ(first_unbalanced(page), "");
    EXPECT_NE(page.find("No step with a finite loss was logged yet."), std::string::npos);
}

// Two ranks, two microbatches: F takes 1 ms, B 2 ms, and rank 1 begins 0.5 ms late.
RunHistory traced() {
    RunHistory run;
    const auto span = [](const char* name, double begin_ms, double end_ms) {
        TracedSpan s{.name = name, .activity = "action", .group = ""};
        s.step = 3;
        s.begin_us = 1000 * begin_ms;
        s.end_us = 1000 * end_ms;
        return s;
    };
    run.trace.push_back(
        {0, {span("0F0", 10, 11), span("0F1", 11, 12), span("0B0", 14.5, 16.5), span("0B1", 17.5, 19.5)}});
    run.trace.push_back({1, run.trace[0].spans});  // the same stage of another data-parallel rank
    run.trace.push_back(
        {2, {span("1F0", 11.5, 12.5), span("1B0", 12.5, 14.5), span("1F1", 14.5, 15.5), span("1B1", 15.5, 17.5)}});
    return run;
}

TEST(PipelineCard, ShowsWhatWasMeasuredBesideTheTimelineOfTheSameActions) {
    const std::string card = pipeline_card(traced());
    const auto expect = [&](const char* text) {
        EXPECT_NE(card.find(text), std::string::npos) << text << "\n" << card;
    };
    expect("The pipeline in step 3");
    expect("<b>Measured</b>: 9.5 ms, bubble 36.8 %");       // 10 to 19.5; 6 ms of work
    expect("without messages</b>: 9.0 ms, bubble 33.3 %");  // rank 1 from 1 to 7, then 0B1
    EXPECT_EQ(count_of(card, "<svg aria-labelledby="), 2U);
    EXPECT_EQ(count_of(card, "<title>1B0: "), 2U);
}

TEST(TraceCard, DrawsNoEmptyFrameWithoutAWholeStep) {
    EXPECT_EQ(trace_card(traced()).find("<figure"), std::string::npos);
}

// An overlap is one pass of both stages, as long as all overlaps are on average.
TEST(PipelineCard, OverlapsHaveATimeOfTheirOwn) {
    RunHistory run = traced();
    run.trace.resize(1);
    run.trace.push_back({2, run.trace[0].spans});
    const auto name = [](TracedRank& rank, std::vector<std::string> names) {
        for (size_t i = 0; i < names.size(); ++i) rank.spans[i].name = names[i];
    };
    name(run.trace[0], {"0F0", "0F1", "0B0", "0B1"});
    name(run.trace[1], {"1F0", "(1F1;1B0)OVERLAP_F_B", "1B1", ""});
    run.trace[1].spans.pop_back();  // 1 ms, 1 ms, 2 ms
    const std::string card = pipeline_card(run);
    // 1F0 from 1 to 2, the overlap to 3, 0B0 to 5; 1B1 from 3 to 5; 0B1 to 7.
    EXPECT_NE(card.find("without messages</b>: 7.0 ms"), std::string::npos) << card;
}

TEST(PipelineCard, WithoutAPipelineThereIsNone) {
    EXPECT_EQ(pipeline_card({}), "");
    RunHistory one = traced();
    one.trace.resize(2);
    EXPECT_EQ(pipeline_card(one), "");
}

TEST(PipelineCard, AnIncompleteTraceSaysWhy) {
    RunHistory run = traced();
    run.trace[2].spans.clear();
    run.trace[2].spans.push_back(run.trace[0].spans[0]);
    run.trace[2].spans[0].name = "2F0";
    EXPECT_NE(pipeline_card(run).find("no rank computes stage 1"), std::string::npos) << pipeline_card(run);
}

}  // namespace
}  // namespace tutti::report
