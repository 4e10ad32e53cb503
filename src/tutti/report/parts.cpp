// report/parts.cpp: see parts.h.
#include "tutti/report/parts.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/report/style.h"

namespace tutti::report {
namespace {

constexpr size_t kSmoothFrom = 20;  // points; fewer are readable as they are

std::string step_number(double step) { return concat(static_cast<int64_t>(step)); }

double half_life_of(size_t points) { return std::max(2.0, std::round(static_cast<double>(points) / 60)); }

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

}  // namespace

std::vector<Point> values_of(const RunHistory& run, Field field, double scale) {
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

std::string duration(double seconds) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    if (seconds < 10) return short_number(seconds, 2) + " s";
    if (whole < 60) return concat(whole, " s");
    if (whole < 3600) return concat(whole / 60, " min ", whole % 60, " s");
    if (whole < 48 * 3600) return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
    return concat(whole / 86400, " d ", whole % 86400 / 3600, " h");
}

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

std::string caption(const Chart& chart) {
    return concat("<figcaption><b>", escape_html(chart.title), "</b><span class=\"unit\">", escape_html(chart.y_unit),
                  "</span>", legend(chart), "</figcaption>");
}

std::string chart_card(const Chart& chart) {
    const std::string svg = line_chart(chart);
    return svg.empty() ? "" : concat("<figure class=\"card\">", caption(chart), svg, "</figure>\n");
}

std::string wide_card(Chart chart) {
    Chart wide = chart;
    wide.id += "-wide";
    wide.width = 1060;
    wide.height = 340;
    chart.height = 300;
    const std::string svg = line_chart(chart);
    if (svg.empty()) return "";
    return concat("<figure class=\"card full\">", caption(chart), "<div class=\"wide-only\">", line_chart(wide),
                  "</div><div class=\"narrow-only\">", svg, "</div></figure>\n");
}

std::string page(const std::string& title, const std::string& body) {
    return concat(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>",
        escape_html(title), "</title><style>", kReportStyle, "</style></head>\n<body><main>\n", body,
        "</main></body></html>\n");
}

}  // namespace tutti::report
