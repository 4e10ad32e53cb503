// planner/page.cpp: a plan as one HTML page: a table of layouts, the fastest on its nodes, bars of time and memory, the
// front of time against memory.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/parallel/groups.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/rehearsal/drawing.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"

namespace tutti::planner {

namespace {

constexpr double kGiB = 1 << 30;

struct Part {
    std::string name, style;
    double value;
};

// Rows of stacked bars, in the unit of the axis; the limit is a line across them.
std::string stacked(const std::string& id, svg::Bars chart, const std::vector<std::vector<Part>>& rows) {
    report::Legend legend;
    for (size_t i = 0; i < rows.front().size(); ++i)
        if (std::any_of(rows.begin(), rows.end(), [&](const auto& parts) { return parts[i].value > 0; }))
            legend.emplace_back(rows.front()[i].style, rows.front()[i].name);
    chart.description = chart.title + ". ";
    for (const std::vector<Part>& parts : rows) {
        double at = 0;
        for (const Part& part : parts) {
            if (part.value <= 0) continue;
            chart.bars.push_back({chart.rows.size(), at, at + part.value, part.style,
                                  concat(part.name, ": ", report::short_number(part.value), " ", chart.x_label)});
            at += part.value;
        }
        const std::string label = std::to_string(chart.rows.size() + 1);
        chart.rows.push_back({.label = label, .height = 22, .value = report::short_number(at)});
        chart.description += concat(label, ": ", report::short_number(at), " ", chart.x_label, ". ");
        chart.end = std::max(chart.end, at);
    }
    return concat("<figure class=\"card full\">", report::figure(chart, id, "of the layouts above", legend),
                  "</figure>\n");
}

std::vector<Part> time_parts(const simulate::StepTime& t) {
    return {{"matrix products", "c1", t.products},
            {"attention", "c6", t.attention},
            {"elementwise, optimizer", "optimizer", t.elementwise + t.optimizer},
            {"recompute", "recompute", t.recompute},
            {"exposed tp, cp, ep", "communication", t.tp + t.cp + t.ep},
            {"exposed dp, offload", "communication later", t.dp + t.offload},
            {"pipeline bubble", "wait", t.bubble},
            {"other", "other", t.other}};
}

std::vector<Part> memory_parts(const Finalist& f) {
    std::vector<Part> parts;
    for (const Purpose purpose : kAllPurposes) {
        const std::string name(name_of(purpose));
        parts.push_back({name, name, double(f.step.shown.memory.at_peak[purpose]) / kGiB});
    }
    return parts;
}

// A row for each layout, and below it the reason why it is slower than the first.
std::string table(const Plan& plan) {
    std::string rows;
    int place = 0;
    const simulate::RehearsedStep& best = plan.finalists.chosen.front().step;
    for (const Finalist& f : plan.finalists.chosen) {
        const std::string reason =
            ++place == 1 ? "the fastest that fits" : concat("slower by ", render(compare(best, f.step)));
        rows += concat("<tr class=\"has-reason\"><td>", place, "</td><td class=\"words\">",
                       escape_html(describe_layout(f.run)), "</td><td>", format_time(f.seconds()), "</td><td>",
                       format_time(f.seconds() * f.step.low), " to ", format_time(f.seconds() * f.step.high),
                       "</td><td>", format_percent(f.step.mfu()), "</td><td>", format_bytes(f.bytes()),
                       "</td></tr><tr><td></td><td colspan=\"5\" ", "class=\"reason words\">", escape_html(reason),
                       "</td></tr>\n");
    }
    return concat(
        "<div class=\"card full\"><h2>Layouts</h2><div class=\"scroll\"><table><thead><tr><th></th><th "
        "class=\"words\">layout</th><th>step</th><th>8 of 10 "
        "runs</th><th>MFU</th><th>memory</th></tr></thead><tbody>\n",
        rows, "</tbody></table></div></div>\n");
}

// The front by probes, the rehearsed layouts of the table, and the memory of a device.
std::string front_card(const Plan& plan) {
    report::Chart chart{.id = "front",
                        .title = "Time against memory",
                        .description = "Layouts that no other one beats in both, up to 4 times the best time. ",
                        .x_label = "memory of a rank, GiB",
                        .y_unit = "s"};
    report::Series front{
        .label = "no other layout beats it in both (by probes)", .colour = 8, .mark = report::Mark::dots, .points = {}};
    constexpr double kSlowest = 4;  // times the best; slower layouts would flatten the rest of the chart
    for (auto c = plan.found.front.rbegin(); c != plan.found.front.rend(); ++c) {
        if (c->seconds > kSlowest * plan.found.front.front().seconds) continue;
        front.points.push_back({c->bytes / kGiB, c->seconds});
        front.titles.push_back(
            concat(describe_layout(c->run), ": ", format_time(c->seconds), ", ", format_bytes(c->bytes)));
        chart.description += concat(front.titles.back(), ". ");
    }
    chart.series = {front};
    const auto add = [&](const char* label, int colour, size_t begin, size_t end) {
        report::Series some{.label = label, .colour = colour, .mark = report::Mark::points, .points = {}};
        for (size_t i = begin; i < std::min(end, plan.finalists.chosen.size()); ++i) {
            const Finalist& f = plan.finalists.chosen[i];
            some.points.push_back({double(f.bytes()) / kGiB, f.seconds()});
            some.titles.push_back(concat(i + 1, ": ", describe_layout(f.run), ": ", format_time(f.seconds()), ", ",
                                         format_bytes(f.bytes())));
            chart.description += concat(some.titles.back(), ". ");
        }
        if (!some.points.empty()) chart.series.push_back(std::move(some));
    };
    add("others of the table (rehearsed)", 1, 1, plan.finalists.chosen.size());
    add("the fastest (rehearsed)", 2, 0, 1);
    const double memory = plan.request.cluster.memory;
    if (memory < 3 * double(plan.finalists.chosen.front().bytes()))
        chart.series.push_back(
            {concat("memory of a device, ", format_bytes(memory)), 8, report::Mark::limit, {{memory / kGiB, 0}}});
    chart.from_zero = true;
    return report::wide_card(chart);
}

// The ranks of the fastest layout on their nodes.
std::string nodes_card(const Plan& plan) {
    const spec::RunSpec& run = plan.finalists.chosen.front().run;
    const mesh::Mesh mesh = parallel::make_mesh(run, plan.request.gpus);
    const svg::Picture picture =
        rehearsal::draw_nodes(mesh, rehearsal::axes_with_several_ranks(mesh), plan.request.cluster.per_node,
                              "The fastest layout on its nodes");
    return concat("<figure class=\"card full\"><div class=\"drawing\">", svg::in_page(picture, "nodes"),
                  "</div></figure>\n");
}

}  // namespace

std::string to_html(const Plan& plan) {
    const Request& r = plan.request;
    const SearchCounts& g = plan.found.counts;
    std::vector<std::vector<Part>> times, memories;
    for (const Finalist& f : plan.finalists.chosen) {
        times.push_back(time_parts(f.step.time));
        memories.push_back(memory_parts(f));
    }
    const simulate::RehearsedStep& best = plan.finalists.chosen.front().step;
    const auto fact = [](const char* name, const std::string& value) {
        return concat("<div><dt>", name, "</dt><dd>", escape_html(value), "</dd></div>");
    };
    const std::string title = concat("Plan: ", name_of(r.run.model), " on ", r.gpus, " x ", r.cluster.name);
    return report::page(
        title, concat("<header><h1>", escape_html(title), "</h1><p>global batch ", r.run.train.global_batch, " of ",
                      r.run.train.seq_len, " tokens, ", describe_numerics(r.run), "; ", format_count(double(g.all)),
                      " layouts searched in ", format_time(g.seconds), ", ", g.priced,
                      " priced; time and memory: ", escape_html(plan.certified), "</p></header>\n<dl class=\"facts\">",
                      fact("step", format_time(best.seconds)), fact("MFU, causal", format_percent(best.mfu())),
                      fact("throughput", format_rate(best.tokens_per_s(), "tokens")),
                      fact("memory of a rank", format_bytes(plan.finalists.chosen.front().bytes())),
                      "</dl>\n<div class=\"grid\">", table(plan), nodes_card(plan),
                      stacked("time", {.title = "Where the time of a step goes", .x_label = "s"}, times),
                      stacked("memory",
                              {.title = "Memory of the fullest rank",
                               .x_label = "GiB",
                               .limit = r.cluster.memory / kGiB,
                               .limit_label = "memory of a device"},
                              memories),
                      front_card(plan), "</div>\n"));
}

}  // namespace tutti::planner
