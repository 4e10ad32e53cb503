// train/report.cpp: render_report() of report.h: what goes on the page and in which order. The drawing is in
// report_svg.cpp, the look in report_style.h, the reading of the files in report_read.cpp.
#include "tutti/train/report.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/train/report_style.h"
#include "tutti/train/report_svg.h"

namespace tutti::train {
namespace {

using Field = std::optional<double> LoggedStep::*;

constexpr size_t kSmoothFrom = 20;  // points; fewer are readable as they are
constexpr size_t kTableRows = 50;

std::vector<Point> values_of(const RunHistory& run, Field field, double scale = 1) {
    std::vector<Point> points;
    for (const LoggedStep& step : run.steps) {
        if (step.*field) points.push_back({static_cast<double>(step.step), *(step.*field) * scale});
    }
    return points;
}

std::vector<double> finite(const std::vector<Point>& points) {
    std::vector<double> values;
    for (const Point& point : points) {
        if (std::isfinite(point.y)) values.push_back(point.y);
    }
    return values;
}

std::optional<double> median(std::vector<double> values) {
    if (values.empty()) return std::nullopt;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

std::string step_number(double step) { return concat(static_cast<int64_t>(step)); }

std::string duration(double seconds) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    if (seconds < 10) return short_number(seconds, 2) + " s";
    if (whole < 60) return concat(whole, " s");
    if (whole < 3600) return concat(whole / 60, " min ", whole % 60, " s");
    if (whole < 48 * 3600) return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
    return concat(whole / 86400, " d ", whole % 86400 / 3600, " h");
}

bool is_bad(const LoggedStep& step) {
    const auto not_finite = [](const std::optional<double>& value) { return value && !std::isfinite(*value); };
    return step.skipped_before > 0 || not_finite(step.loss) || not_finite(step.grad_norm);
}

// "train: 5.56 at step 1, 1.43 at step 2000, lowest 1.4 at step 1980, highest ..." for those who hear the page.
std::string in_words(const Series& series) {
    const Point* first = nullptr;
    const Point *last = nullptr, *lowest = nullptr, *highest = nullptr;
    for (const Point& point : series.points) {
        if (!std::isfinite(point.y)) continue;
        if (!first) first = lowest = highest = &point;
        last = &point;
        if (point.y < lowest->y) lowest = &point;
        if (point.y > highest->y) highest = &point;
    }
    if (!first) return "";
    const auto place = [](const Point& p) { return concat(short_number(p.y, 4), " at step ", step_number(p.x)); };
    return concat(series.label, ": ", place(*first), ", ", place(*last), ", lowest ", place(*lowest), ", highest ",
                  place(*highest), ". ");
}

double half_life_of(size_t points) { return std::max(2.0, std::round(static_cast<double>(points) / 60)); }

// Adds the values as a line; long ones as a faint line behind their moving average.
void add_series(Chart& chart, const std::string& label, int colour, std::vector<Point> points) {
    if (finite(points).empty()) return;
    const Series raw{label, colour, Mark::line, std::move(points)};
    chart.description += in_words(raw);
    if (raw.points.size() < kSmoothFrom) {
        chart.series.push_back(raw);
        return;
    }
    chart.series.push_back({"", colour, Mark::faint, raw.points});
    chart.series.push_back({label, colour, Mark::line, smooth(raw.points, half_life_of(raw.points.size()))});
}

std::string legend(const Chart& chart) {
    std::string items;
    int count = 0;
    for (const Series& series : chart.series) {
        if (series.label.empty()) continue;
        ++count;
        std::string_view mark = "<path class=\"line\" d=\"M2 5H22\"/>";
        if (series.mark == Mark::ticks) mark = "<path class=\"event\" d=\"M12 1l4 8h-8z\"/>";
        if (series.mark == Mark::dots) {
            mark = "<path class=\"dashed\" d=\"M2 5H22\"/><circle class=\"dot\" cx=\"12\" cy=\"5\" r=\"3\"/>";
        }
        items += concat("<li><svg class=\"c", series.colour, "\" viewBox=\"0 0 24 10\" aria-hidden=\"true\">", mark,
                        "</svg>", escape_html(series.label), "</li>");
    }
    return count < 2 ? "" : "<ul class=\"legend\">" + items + "</ul>";
}

std::string caption(const Chart& chart) {
    return concat("<figcaption><b>", escape_html(chart.title), "</b><span class=\"unit\">", escape_html(chart.y_unit),
                  "</span>", legend(chart), "</figcaption>");
}

std::string chart_card(const Chart& chart) {
    const std::string svg = line_chart(chart);
    return svg.empty() ? "" : concat("<figure class=\"card\">", caption(chart), svg, "</figure>\n");
}

std::string loss_card(const RunHistory& run) {
    Chart chart{.id = "loss",
                .title = "Loss",
                .description = "",
                .y_unit = run.totals.loss_unit,
                .series = {},
                .allow_log = true};
    add_series(chart, "train", 1, values_of(run, &LoggedStep::loss));
    Series eval{"evaluation", 2, Mark::dots, values_of(run, &LoggedStep::eval_loss)};
    chart.description += in_words(eval);
    if (!eval.points.empty()) chart.series.push_back(std::move(eval));
    Series skipped{"skipped or not finite", 4, Mark::ticks, {}};
    for (const LoggedStep& step : run.steps) {
        if (is_bad(step)) skipped.points.push_back({static_cast<double>(step.step), 0});
    }
    if (!skipped.points.empty()) chart.series.push_back(std::move(skipped));

    // Two drawings, because one that fits a desk has letters too small for a phone. The page shows one of them.
    Chart wide = chart;
    wide.id = "loss-wide";
    wide.width = 1060;
    wide.height = 340;
    chart.height = 300;
    const std::string svg = line_chart(chart);
    if (svg.empty())
        return "<section class=\"card full\"><p class=\"quiet\">No step with a finite loss was logged "
               "yet.</p></section>\n";
    return concat("<figure class=\"card full\">", caption(chart), "<div class=\"wide-only\">", line_chart(wide),
                  "</div><div class=\"narrow-only\">", svg, "</div></figure>\n");
}

std::string charts(const RunHistory& run) {
    Chart norm{.id = "grad-norm",
               .title = "Gradient norm",
               .description = "",
               .y_unit = "before clipping",
               .series = {},
               .allow_log = true};
    add_series(norm, "gradient norm", 1, values_of(run, &LoggedStep::grad_norm));
    Chart lr{.id = "lr", .title = "Learning rate", .description = "", .y_unit = "", .series = {}, .from_zero = true};
    lr.series.push_back({"learning rate", 1, Mark::line, values_of(run, &LoggedStep::lr)});
    lr.description = in_words(lr.series[0]);
    Chart speed{
        .id = "speed", .title = "Throughput", .description = "", .y_unit = "tokens/s", .series = {}, .from_zero = true};
    add_series(speed, "tokens/s", 1, values_of(run, &LoggedStep::tokens_per_s));
    Chart mfu{.id = "mfu",
              .title = "MFU",
              .description = "",
              .y_unit = "% of the dense peak",
              .series = {},
              .from_zero = true};
    const std::vector<Point> model = values_of(run, &LoggedStep::mfu, 100);
    const std::vector<Point> hardware = values_of(run, &LoggedStep::hfu, 100);
    add_series(mfu, "MFU", 1, model);
    // Without recompute they are the same number, and two equal lines say nothing.
    if (finite(model) != finite(hardware)) {
        mfu.title = "MFU and HFU";
        add_series(mfu, "HFU", 3, hardware);
    }
    return loss_card(run) + chart_card(norm) + chart_card(lr) + chart_card(speed) + chart_card(mfu);
}

std::string memory_card(const RunHistory& run) {
    std::vector<Bar> bars;
    for (const MemoryUse& use : run.totals.memory) {
        bars.push_back({use.purpose, use.predicted_bytes.value_or(-1), use.measured_bytes.value_or(-1)});
    }
    const std::string svg = memory_bars("memory", "Memory by purpose", bars);
    if (svg.empty()) return "";
    return concat(
        "<figure class=\"card\"><figcaption><b>Memory by purpose</b><span class=\"unit\">peak</span>"
        "<ul class=\"legend\"><li><svg viewBox=\"0 0 24 10\" aria-hidden=\"true\"><rect class=\"bar-predicted\" "
        "x=\"2\" y=\"1\" "
        "width=\"20\" height=\"8\" rx=\"2\"/></svg>predicted</li><li><svg viewBox=\"0 0 24 10\" aria-hidden=\"true\">"
        "<rect class=\"bar-measured\" x=\"2\" y=\"1\" width=\"20\" height=\"8\" rx=\"2\"/></svg>measured</li></ul>"
        "</figcaption>",
        svg, "</figure>\n");
}

std::string skipped_card(const RunHistory& run) {
    std::string rows;
    size_t count = 0;
    const auto cell = [](const std::optional<double>& value) {
        if (!value) return std::string("–");
        return std::isfinite(*value) ? short_number(*value, 4) : std::string("not finite");
    };
    for (const LoggedStep& step : run.steps) {
        if (!is_bad(step) || ++count > kTableRows) continue;
        const bool why = !step.skip_reason.empty();
        rows += concat(why ? "<tr class=\"has-reason\">" : "<tr>", "<td>", step.step, "</td><td>", step.skipped_before,
                       "</td><td>", cell(step.loss), "</td><td>", cell(step.grad_norm), "</td></tr>");
        if (why) rows += "<tr><td colspan=\"4\" class=\"reason\">" + escape_html(step.skip_reason) + "</td></tr>";
    }
    std::string body = "<p class=\"quiet\">None: every logged loss and gradient norm is finite.</p>";
    if (count > 0) {
        body =
            "<table><thead><tr><th scope=\"col\">step</th><th scope=\"col\">skipped</th><th scope=\"col\">loss</th>"
            "<th scope=\"col\">gradient norm</th></tr></thead><tbody>" +
            rows + "</tbody></table>";
    }
    if (count > kTableRows)
        body += concat("<p class=\"quiet\">and ", count - kTableRows, " more in metrics.jsonl.</p>");
    return "<section class=\"card\"><h2>Skipped and non-finite steps</h2>" + body + "</section>\n";
}

std::string facts(const RunHistory& run) {
    std::string items;
    const auto add = [&](std::string_view name, const std::optional<std::string>& value) {
        if (value) items += concat("<div><dt>", name, "</dt><dd>", escape_html(*value), "</dd></div>");
    };
    const auto last = [&](Field field) -> std::optional<double> {
        const std::vector<double> values = finite(values_of(run, field));
        return values.empty() ? std::nullopt : std::optional(values.back());
    };
    const auto shown = [](const std::optional<double>& value, auto format) {
        return value ? std::optional<std::string>(format(*value)) : std::nullopt;
    };
    const auto count = [](double value) { return short_number(value); };
    const auto loss = [](double value) { return short_number(value, 4); };
    const RunTotals& totals = run.totals;
    if (!totals.model.empty()) add("model", totals.model);
    add("parameters", shown(totals.parameters, count));
    add("steps", run.steps.empty() ? std::nullopt : std::optional(concat(run.steps.back().step)));
    add("tokens", shown(totals.tokens ? totals.tokens : last(&LoggedStep::tokens), count));
    add("wall time", shown(totals.wall_s, duration));
    add("final loss", shown(totals.final_loss ? totals.final_loss : last(&LoggedStep::loss), loss));
    add("evaluation loss", shown(last(&LoggedStep::eval_loss), loss));
    add("tokens/s, median", shown(median(finite(values_of(run, &LoggedStep::tokens_per_s))), count));
    add("MFU, median",
        shown(median(finite(values_of(run, &LoggedStep::mfu, 100))), [](double v) { return short_number(v) + " %"; }));
    const std::vector<double> peaks = finite(values_of(run, &LoggedStep::mem_peak_bytes));
    if (!peaks.empty()) add("memory peak", short_bytes(*std::max_element(peaks.begin(), peaks.end())));
    return items.empty() ? "" : "<dl class=\"facts\">" + items + "</dl>\n";
}

std::string notes(const RunHistory& run) {
    if (run.notes.empty()) return "";
    std::string lines;
    for (const std::string& note : run.notes) lines += "<p>" + escape_html(note) + "</p>";
    return "<aside class=\"notes\">" + lines + "</aside>\n";
}

std::string texts(const RunHistory& run) {
    std::string cards;
    if (!run.totals.sample.empty()) {
        cards += "<section class=\"card full long\"><h2>Sample</h2><pre class=\"sample\">" +
                 escape_html(run.totals.sample) + "</pre></section>\n";
    }
    if (!run.config.empty()) {
        cards += "<section class=\"card full long\"><details><summary>Config, as resolved</summary><pre>" +
                 escape_html(run.config) + "</pre></details></section>\n";
    }
    return cards;
}

}  // namespace

std::string render_report(const RunHistory& run) {
    const std::string name = escape_html(run.name);
    std::string page = concat(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>",
        name, " – Tutti run report</title><style>", kReportStyle, "</style></head>\n<body><main>\n");
    page += concat("<header><p>Tutti run report</p><h1>", name, "</h1>");
    if (!run.totals.machine.empty()) page += "<p>" + escape_html(run.totals.machine) + "</p>";
    page += "</header>\n" + facts(run) + notes(run);
    page += "<div class=\"grid\">\n" + charts(run) + memory_card(run) + skipped_card(run) + texts(run) + "</div>\n";
    page +=
        "<footer><p>Bold lines are exponential moving averages where a faint line, the logged values, runs behind "
        "them. "
        "Drawn from metrics.jsonl, run.json and config.toml of this run by <code>tutti report</code>.</p></footer>\n";
    return page + "</main></body></html>\n";
}

}  // namespace tutti::train
