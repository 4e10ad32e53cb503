// planner/page.cpp: a plan as one HTML page: a table of layouts, bars of their time and memory, the front of time
// against memory.
#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"

namespace tutti::planner {

namespace {

struct Part {
    std::string name;
    int colour;
    double value;
};

// A row of stacked bars for each list of parts, in the unit of the axis.
std::string stacked(const std::string& id, const std::string& title, const std::string& unit,
                    const std::vector<std::vector<Part>>& rows, const std::vector<std::string>& labels) {
    report::Timeline chart{.id = id, .title = title, .description = title + ". ", .x_label = unit};
    chart.end = 0;
    std::vector<std::pair<std::string, int>> names;
    for (size_t row = 0; row < rows.size(); ++row) {
        chart.rows.emplace_back(labels[row], 22);
        double at = 0;
        for (const Part& part : rows[row]) {
            if (part.value <= 0) continue;
            chart.bars.push_back({row, at, at + part.value, part.colour,
                                  concat(part.name, ": ", report::short_number(part.value), " ", unit)});
            at += part.value;
            if (std::none_of(names.begin(), names.end(), [&](const auto& n) { return n.first == part.name; }))
                names.emplace_back(part.name, part.colour);
        }
        chart.description += concat(labels[row], ": ", report::short_number(at), " ", unit, ". ");
        chart.end = std::max(chart.end, at);
    }
    std::string legend;
    for (const auto& [name, colour] : names)
        legend += concat("<li><svg class=\"c", colour,
                         "\" viewBox=\"0 0 24 10\" aria-hidden=\"true\"><rect class=\"span\" x=\"4\" y=\"0\" "
                         "width=\"16\" height=\"10\"/></svg>",
                         escape_html(name), "</li>");
    return concat("<figure class=\"card full\"><figcaption><b>", escape_html(title), "</b><span class=\"unit\">", unit,
                  "</span><ul class=\"legend\">", legend, "</ul></figcaption><div class=\"drawing\">",
                  report::timeline(chart), "</div></figure>\n");
}

std::vector<Part> time_parts(const simulate::StepTime& t) {
    return {{"matrix products", 1, t.products},
            {"attention", 6, t.attention},
            {"elementwise, optimizer", 3, t.elementwise + t.optimizer},
            {"recompute", 5, t.recompute},
            {"exposed tp, cp, ep", 2, t.tp + t.cp + t.ep},
            {"exposed dp, offload", 4, t.dp + t.offload},
            {"pipeline bubble", 8, t.bubble},
            {"other", 7, t.other}};
}

std::vector<Part> memory_parts(const Finalist& f) {
    constexpr double kGiB = 1 << 30;
    std::vector<Part> parts;
    for (int p = 0; p < kPurposes; ++p) {
        const auto purpose = static_cast<Purpose>(p);
        parts.push_back({std::string(name_of(purpose)), p + 1, double(f.rehearsed.memory.at_peak[purpose]) / kGiB});
    }
    return parts;
}

std::string table(const Plan& plan) {
    std::string rows;
    int place = 0;
    const simulate::Prediction& best = plan.finalists.chosen.front().prediction;
    for (const Finalist& f : plan.finalists.chosen) {
        const simulate::Prediction& p = f.prediction;
        const std::string reason = ++place == 1 ? "" : render(compare(best, p));
        rows += concat("<tr><td>", place, "</td><td style=\"text-align:left;white-space:normal\">",
                       escape_html(describe_layout(f.run)), "</td><td>", format_time(p.seconds()), "</td><td>",
                       format_time(p.seconds() * p.low), " to ", format_time(p.seconds() * p.high), "</td><td>",
                       format_percent(p.share_of_peak(p.model_causal)), "</td><td>",
                       format_bytes(static_cast<int64_t>(f.bytes())), "</td><td>", escape_html(reason), "</td></tr>\n");
    }
    return concat(
        "<div class=\"card full\"><h2>Layouts</h2><div class=\"scroll\"><table><tr><th></th><th "
        "style=\"text-align:left\">layout</th><th>step</th><th>8 of 10 runs</th><th>MFU</th><th>memory"
        "</th><th>loses by</th></tr>\n",
        rows, "</table></div></div>\n");
}

std::string front_card(const Plan& plan) {
    report::Chart chart{.id = "front",
                        .title = "Time against memory",
                        .description = "Layouts that no other one beats in both, up to 4 times the best time. ",
                        .x_label = "memory of a rank, GiB (by probes)",
                        .y_unit = "s"};
    report::Series series{.label = "", .colour = 1, .mark = report::Mark::dots, .points = {}};
    constexpr double kSlowest = 4;  // times the best; slower layouts would flatten the rest of the chart
    for (auto c = plan.found.front.rbegin(); c != plan.found.front.rend(); ++c) {
        if (c->seconds > kSlowest * plan.found.front.front().seconds) continue;
        series.points.push_back({c->bytes / (1 << 30), c->seconds});
        chart.description += concat(format_bytes(static_cast<int64_t>(c->bytes)), ": ", format_time(c->seconds), ". ");
    }
    chart.series = {series};
    chart.from_zero = true;
    return report::wide_card(chart);
}

}  // namespace

std::string to_html(const Plan& plan) {
    const Request& r = plan.request;
    const Gates& g = plan.found.gates;
    std::vector<std::vector<Part>> times, memories;
    std::vector<std::string> labels;
    for (const Finalist& f : plan.finalists.chosen) {
        times.push_back(time_parts(f.prediction.time));
        memories.push_back(memory_parts(f));
        labels.push_back(std::to_string(labels.size() + 1));
    }
    const simulate::Prediction& best = plan.finalists.chosen.front().prediction;
    const auto fact = [](const char* name, const std::string& value) {
        return concat("<div><dt>", name, "</dt><dd>", escape_html(value), "</dd></div>");
    };
    const std::string title = concat("Plan: ", name_of(r.run.model), " on ", r.gpus, " x ", r.cluster.name);
    return report::page(
        title,
        concat("<header><h1>", escape_html(title), "</h1><p>global batch ", r.run.train.global_batch, " of ",
               r.run.train.seq_len, " tokens, ", describe_numerics(r.run), "; ", format_count(double(g.all)),
               " layouts searched in ", format_time(g.seconds), ", ", g.priced,
               " priced; time and memory: ", escape_html(plan.certified), "</p></header>\n<dl class=\"facts\">",
               fact("step", format_time(best.seconds())),
               fact("MFU, causal", format_percent(best.share_of_peak(best.model_causal))),
               fact("throughput", format_rate(best.tokens_per_s(), "tokens")),
               fact("memory of a rank", format_bytes(static_cast<int64_t>(plan.finalists.chosen.front().bytes()))),
               "</dl>\n<div class=\"grid\">", table(plan),
               stacked("time", "Where the time of a step goes", "s", times, labels),
               stacked("memory", "Memory of the fullest rank", "GiB", memories, labels), front_card(plan), "</div>\n"));
}

}  // namespace tutti::planner
