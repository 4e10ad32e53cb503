// report/timeline.cpp: timeline() of svg.h.
#include <algorithm>
#include <map>

#include "tutti/base/error.h"
#include "tutti/report/svg.h"
#include "tutti/report/svg_parts.h"

namespace tutti::report {

using svg::coordinate, svg::segment, svg::text_at;

std::string timeline(const Timeline& chart) {
    constexpr int kWidth = 1060, kGap = 2, kAxis = 36;
    size_t longest = 1;
    int height = 6;
    std::vector<int> tops;
    for (const auto& [label, row_height] : chart.rows) {
        longest = std::max(longest, label.size());
        tops.push_back(height);
        height += row_height + kGap;
    }
    const double start = 14 + 6.2 * static_cast<double>(longest), scale = (kWidth - 14 - start) / chart.end;
    std::string text = svg::open(chart.id, kWidth, height + kAxis, chart.title, chart.description);
    const std::vector<double> ticks = linear_ticks(0, chart.end, 5);
    const std::vector<std::string> labels = tick_labels(ticks);
    for (size_t i = 0; i < ticks.size(); ++i) {
        const double at = start + ticks[i] * scale;
        text += segment("grid", at, 4, at, height) + text_at(at, height + 15, "middle", labels[i]);
    }
    text += segment("axis", start, height, kWidth - 14, height);
    text += text_at((start + kWidth - 14) / 2, height + 31, "middle", chart.x_label, "label");
    for (size_t row = 0; row < chart.rows.size(); ++row)
        if (!chart.rows[row].first.empty())
            text += text_at(start - 6, tops[row] + chart.rows[row].second / 2.0 + 4, "end", chart.rows[row].first);
    for (const TimelineBar& bar : chart.bars) {
        const double begin = std::max(0.0, bar.begin), end = std::min(chart.end, bar.end);
        if (begin > end) continue;
        text += concat("<rect class=\"span c", bar.colour, "\" x=\"", coordinate(start + begin * scale), "\" y=\"",
                       tops[bar.row], "\" width=\"", coordinate(std::max(0.3, (end - begin) * scale)), "\" height=\"",
                       chart.rows[bar.row].second, "\"><title>", escape_html(bar.title), "</title></rect>");
    }
    return text + "</svg>";
}

}  // namespace tutti::report
