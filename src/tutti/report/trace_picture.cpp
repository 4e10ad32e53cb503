#include "tutti/report/trace_picture.h"

#include <algorithm>
#include <map>

#include "tutti/base/error.h"
#include "tutti/report/svg.h"

namespace tutti::report {

namespace {

constexpr size_t kDrawnSpans = 400;  // of a row

// "h.3" of "forward h.3" and "forward of h.3", for the bar of the span; operations have their names.
std::string name_in(const TracedSpan& s) {
    if (s.activity == "communication" || s.activity == "wait") return s.name;
    for (const char* pass : {"forward ", "backward ", "recompute "})
        if (s.name.starts_with(pass)) {
            const std::string unit = s.name.substr(std::string(pass).size());
            return unit.starts_with("of ") ? unit.substr(3) : unit;
        }
    return s.name;
}

// Operations of each group, and the GPU's compute, have separate rows.
bool has_row(const TracedSpan& s) { return s.activity == "communication" || s.activity == "gpu"; }

}  // namespace

std::string meaning_of(const TracedSpan& s) {
    if (s.activity == "wait" || s.activity == "begin") return "wait";
    if (s.activity == "communication" || s.activity == "data") return s.activity;
    if (s.activity != "compute" && s.activity != "gpu") return "other";
    for (const char* pass : {"forward", "backward", "recompute"})
        if (s.name.starts_with(pass)) return pass;
    return s.name.starts_with("optimizer") ? "optimizer" : "other";
}

const TracedSpan* typical_step(const TracedRank& rank) {
    std::vector<const TracedSpan*> steps;
    for (const TracedSpan& s : rank.spans)
        if (s.activity == "step") steps.push_back(&s);
    if (steps.empty()) return nullptr;
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const TracedSpan* a, const TracedSpan* b) {
        return a->end_us - a->begin_us < b->end_us - b->begin_us;
    });
    return *middle;
}

std::pair<double, double> extent_of(const std::vector<TracedRank>& trace, const TracedSpan& step) {
    double begin = step.begin_us, end = step.end_us;
    for (const TracedRank& rank : trace)
        for (const TracedSpan& s : rank.spans) {
            if (s.activity != "step" || s.step != step.step) continue;
            begin = std::min(begin, s.begin_us);
            end = std::max(end, s.end_us);
        }
    return {begin, end};
}

svg::Bars bars_of(const std::vector<TracedRank>& trace, const TracedSpan& step, const std::string& title) {
    const auto [begin, end] = extent_of(trace, step);
    const bool in_ms = end - begin < 10e6;
    const double unit = in_ms ? 1000 : 1e6;
    svg::Bars chart{.title = title,
                    .description = concat("What each rank did in step ", step.step, "; the table has the numbers."),
                    .x_label = concat(in_ms ? "ms" : "s", " since the beginning of the step"),
                    .end = (end - begin) / unit,
                    .most_in_row = kDrawnSpans};
    for (size_t i = 0; i < std::min(trace.size(), kDrawnRanks); ++i) {
        const TracedRank& rank = trace[i];
        if (i > 0) chart.rows.push_back({.label = "", .height = 6});  // between ranks
        const size_t first = chart.rows.size();
        chart.rows.push_back({.label = concat("rank ", rank.rank), .height = 16, .idle = true});
        chart.rows.push_back({.label = "", .height = 6});
        std::map<std::string, size_t> row_of_group;
        for (const TracedSpan& s : rank.spans)
            if (has_row(s)) row_of_group[s.group] = 0;
        for (auto& [group, row] : row_of_group) {
            row = chart.rows.size();
            chart.rows.push_back({.label = group, .height = 13});
        }
        for (const TracedSpan& s : rank.spans) {
            if (s.activity == "step" || s.activity == "action" || s.end_us < begin || s.begin_us > end) continue;
            const std::string meaning = meaning_of(s);
            const size_t row = has_row(s) ? row_of_group[s.group] : meaning == "wait" ? first + 1 : first;
            std::string text = concat(s.name, ", ", short_number((s.end_us - s.begin_us) / 1000), " ms");
            if (!s.group.empty() && s.activity != "gpu") text += concat(", operation ", s.number, " of ", s.group);
            if (s.bytes > 0) text += ", " + short_bytes(static_cast<double>(s.bytes));
            chart.bars.push_back(
                {row, (s.begin_us - begin) / unit, (s.end_us - begin) / unit, meaning, std::move(text), name_in(s)});
        }
    }
    if (trace.size() > kDrawnRanks)
        chart.description += concat(" Ranks 0 to ", kDrawnRanks - 1, " of ", trace.size(), " are drawn.");
    return chart;
}

}  // namespace tutti::report
