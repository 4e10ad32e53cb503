// report/svg.cpp: the charts (svg.h). Coordinates are the drawing's own units; one unit is about one pixel.
#include "tutti/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"
#include "tutti/base/svg.h"

namespace tutti::report {

using svg::coordinate;
using svg::line;
using svg::linear_ticks;
using svg::scientific;
using svg::text;
using svg::tick_labels;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The range of values of one axis, and the map from values to coordinates.
struct Axis {
    double low = 0, high = 1;   // values at the ends
    double start = 0, end = 1;  // coordinates there
    bool logarithmic = false;
    std::vector<double> ticks;
    std::vector<std::string> labels;

    double at(double value) const {
        const double share = logarithmic ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
        return start + share * (end - start);
    }
};

struct Range {
    double low = std::numeric_limits<double>::infinity();
    double high = -std::numeric_limits<double>::infinity();
    bool empty() const { return low > high; }
    void add(double value) {
        if (!std::isfinite(value)) return;
        low = std::min(low, value);
        high = std::max(high, value);
    }
};

Axis x_axis(const Range& range) {
    Axis axis;
    axis.low = range.low;
    axis.high = range.high;
    if (range.low == range.high) {
        axis.low -= 0.5;
        axis.high += 0.5;
    }
    for (double tick : linear_ticks(axis.low, axis.high, 4))
        if (tick == std::round(tick)) axis.ticks.push_back(tick);  // there is no step 2.5
    axis.labels = tick_labels(axis.ticks);
    return axis;
}

Axis y_axis(const Range& range, const Chart& chart) {
    Axis axis;
    axis.low = range.low;
    axis.high = range.high;
    // Below one decade a linear axis shows the same shape and is easier to read.
    axis.logarithmic = chart.allow_log && range.low > 0 && range.high / range.low > 10;
    if (axis.logarithmic) {
        const double room = std::pow(range.high / range.low, 0.04);
        axis.low /= room;
        axis.high *= room;
        axis.ticks = log_ticks(axis.low, axis.high);
        for (double tick : axis.ticks) axis.labels.push_back(short_number(tick));
        return axis;
    }
    if (chart.from_zero) axis.low = std::min(0.0, axis.low);
    if (axis.low == axis.high) {
        const double room = axis.low == 0 ? 1 : std::abs(axis.low) * 0.1;
        axis.low -= room;
        axis.high += room;
    }
    // The axis ends on ticks, so that the outermost values lie between lines.
    const std::vector<double> inside = linear_ticks(axis.low, axis.high, 4);
    const double step = inside[1] - inside[0];
    axis.low = std::floor(axis.low / step + 1e-9) * step;
    axis.high = std::ceil(axis.high / step - 1e-9) * step;
    for (int i = 0; axis.low + i * step <= axis.high + step * 1e-6; ++i) axis.ticks.push_back(axis.low + i * step);
    axis.labels = tick_labels(axis.ticks);
    return axis;
}

std::string path_of(const std::vector<Point>& points, const Axis& x, const Axis& y) {
    std::string path;
    for (size_t i = 0; i < points.size(); ++i) {
        if (!std::isfinite(points[i].y)) continue;
        const bool starts = i == 0 || !std::isfinite(points[i - 1].y);
        const bool ends = i + 1 == points.size() || !std::isfinite(points[i + 1].y);
        path += concat(starts ? 'M' : 'L', coordinate(x.at(points[i].x)), ' ', coordinate(y.at(points[i].y)));
        if (starts && ends) path += "h0";  // a lone value between gaps: its round caps make a dot
    }
    return path;
}

std::string series_marks(const Series& series, const Axis& x, const Axis& y) {
    const std::string colour = concat("c", series.colour);
    if (series.mark == Mark::limit) {
        std::string marks;
        for (const Point& point : series.points)
            marks += line("limit", x.at(point.x), y.start, x.at(point.x), y.end) +
                     text("e ink", x.at(point.x) - 4, y.end + 10, series.label);
        return marks;
    }
    if (series.mark == Mark::ticks) {
        std::string marks;
        for (const Point& point : series.points) {
            const double at = x.at(point.x);
            marks += concat("<path class=\"event ", colour, "\" d=\"M", coordinate(at), ' ', coordinate(y.start - 9),
                            "l4 8h-8z\"/>");
        }
        return marks;
    }
    const std::string_view style = series.mark == Mark::faint                                ? "faint"
                                   : series.mark == Mark::dots || series.mark == Mark::bound ? "dashed"
                                                                                             : "line";
    // A wide screen shows about 1,000 columns: more points only make the page heavy.
    std::string marks;
    if (series.mark != Mark::points)
        marks = concat("<path class=\"", style, " ", colour, "\" d=\"", path_of(thin_out(series.points, 1200), x, y),
                       "\"/>");
    if (series.mark != Mark::dots && series.mark != Mark::points) return marks;
    const bool named = !series.titles.empty();
    const std::vector<Point> shown = named ? series.points : thin_out(series.points, 200);
    for (size_t i = 0; i < shown.size(); ++i) {
        if (!std::isfinite(shown[i].y)) continue;
        const std::string title =
            named ? series.titles[i]
                  : concat(series.label, ", step ", short_number(shown[i].x, 6), ": ", short_number(shown[i].y, 5));
        marks += concat("<circle class=\"dot ", colour, "\" cx=\"", coordinate(x.at(shown[i].x)), "\" cy=\"",
                        coordinate(y.at(shown[i].y)), "\" r=\"3\"><title>", escape_html(title), "</title></circle>");
    }
    return marks;
}

}  // namespace

std::vector<double> log_ticks(double low, double high) {
    check(low > 0 && low < high && std::isfinite(high), "log_ticks: required: 0 < low < high; got ", low, " to ", high);
    std::vector<double> all, decades;
    for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, power) <= high; ++power) {
        for (const double mantissa : {1.0, 2.0, 5.0}) {
            const double tick = mantissa * std::pow(10.0, power);
            if (tick < low || tick > high) continue;
            all.push_back(tick);
            if (mantissa == 1.0) decades.push_back(tick);
        }
    }
    return all.size() > 10 && decades.size() >= 2 ? decades : all;
}

std::string short_number(double value, int digits) {
    if (std::isnan(value)) return "not a number";
    if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
    const double size = std::abs(value);
    if (size == 0) return "0";
    if (size < 1e-3) return scientific(value, digits);
    if (size < std::pow(10.0, std::max(3, digits)) - 0.5) return fmt::format("{:.{}g}", value, digits);
    constexpr std::array<std::pair<double, const char*>, 4> kUnits{{{1e3, "k"}, {1e6, "M"}, {1e9, "G"}, {1e12, "T"}}};
    for (const auto& [unit, name] : kUnits) {
        // 999,999 is 1M, not 1e+03k: the rounding decides the unit.
        if (size / unit < 999.5 || unit == 1e12)
            return fmt::format("{:.{}g}{}", value / unit, std::max(3, digits), name);
    }
    return "";
}

std::string short_bytes(double bytes) {
    constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (std::abs(bytes) >= 999.5 && unit + 1 < kUnits.size()) {
        bytes /= 1024;
        ++unit;
    }
    return fmt::format("{:.{}g} {}", bytes, std::abs(bytes) >= 999.5 ? 5 : 3, kUnits[unit]);
}

std::vector<Point> smooth(const std::vector<Point>& points, double half_life) {
    double sum = 0, weight = 0;
    std::vector<Point> smoothed;
    for (const Point& point : points) {
        if (!std::isfinite(point.y)) continue;
        const double keep = std::exp2(-1 / std::min(half_life, 1 + 0.1 * static_cast<double>(smoothed.size())));
        sum = keep * sum + (1 - keep) * point.y;
        weight = keep * weight + (1 - keep);
        smoothed.push_back({point.x, sum / weight});
    }
    return smoothed;
}

std::vector<Point> thin_out(const std::vector<Point>& points, size_t limit) {
    if (points.size() <= limit) return points;
    const size_t buckets = std::max<size_t>(1, limit / 2);
    std::vector<Point> kept;
    for (size_t bucket = 0; bucket < buckets; ++bucket) {
        const size_t begin = bucket * points.size() / buckets;
        const size_t end = (bucket + 1) * points.size() / buckets;
        size_t low = end, high = end;
        for (size_t i = begin; i < end; ++i) {
            if (!std::isfinite(points[i].y)) continue;
            if (low == end || points[i].y < points[low].y) low = i;
            if (high == end || points[i].y > points[high].y) high = i;
        }
        if (low == end) {
            kept.push_back({points[begin].x, kNan});
        } else {
            kept.push_back(points[std::min(low, high)]);
            if (low != high) kept.push_back(points[std::max(low, high)]);
        }
    }
    return kept;
}

std::string line_chart(const Chart& chart) {
    Range x_range, y_range;
    for (const Series& series : chart.series) {
        for (const Point& point : series.points) {
            x_range.add(point.x);
            if (series.mark != Mark::ticks && series.mark != Mark::limit) y_range.add(point.y);
        }
    }
    if (x_range.empty() || y_range.empty()) return "";
    Axis x = x_axis(x_range);
    Axis y = y_axis(y_range, chart);
    size_t longest = 1;
    for (const std::string& label : y.labels) longest = std::max(longest, label.size());
    x.start = 12 + 6.6 * static_cast<double>(longest);  // a digit is about 6.6 units wide at the size of the labels
    x.end = chart.width - 14;
    y.start = chart.height - 36;
    y.end = 10;

    std::string body;
    for (size_t i = 0; i < y.ticks.size(); ++i) {
        const double at = y.at(y.ticks[i]);
        body += line("grid", x.start, at, x.end, at) + text("e", x.start - 6, at + 4, y.labels[i]);
    }
    body += line("axis", x.start, y.start, x.end, y.start);
    for (size_t i = 0; i < x.ticks.size(); ++i) {
        const double at = x.at(x.ticks[i]);
        // A long label at the very end would stick out of the drawing.
        const double middle = std::min(at, chart.width - 2 - 3.3 * static_cast<double>(x.labels[i].size()));
        body += line("axis", at, y.start, at, y.start + 4) + text("m", middle, y.start + 17, x.labels[i]);
    }
    body += text("m", (x.start + x.end) / 2, chart.height - 4, chart.x_label);
    if (y.logarithmic) body += text("e", x.end, chart.height - 4, "log scale");
    for (const Series& series : chart.series) body += series_marks(series, x, y);
    return svg::in_page({double(chart.width), double(chart.height), chart.title, chart.description, body}, chart.id);
}

std::string share_bar(const std::string& id, const std::string& title, const std::string& description,
                      const std::vector<ShareBar>& bars) {
    constexpr double kWidth = 420, kHeight = 22;
    std::string body;
    double at = 0;
    for (const ShareBar& bar : bars) {
        body += svg::box(concat('c', bar.colour), at, 0, bar.share * kWidth, kHeight,
                         concat(bar.label, ": ", short_number(100 * bar.share), " %"));
        at += bar.share * kWidth;
    }
    return svg::in_page({kWidth, kHeight, title, description, body}, id);
}

std::string memory_bars(const std::string& id, const std::string& title, const std::vector<MemoryBar>& bars) {
    double largest = 0;
    size_t longest = 0;
    std::string description;
    for (const MemoryBar& bar : bars) {
        longest = std::max(longest, bar.label.size());
        largest = std::max({largest, bar.predicted, bar.measured});
        description += concat(bar.label, ": predicted ", bar.predicted < 0 ? "unknown" : short_bytes(bar.predicted),
                              ", measured ", bar.measured < 0 ? "unknown" : short_bytes(bar.measured), ". ");
    }
    if (largest <= 0) return "";
    constexpr int kWidth = 420, kRow = 38, kValues = 112;
    const int labels = 16 + 7 * static_cast<int>(std::min<size_t>(longest, 24));
    std::string body;
    double top = 4;
    for (const MemoryBar& bar : bars) {
        body += text("e", labels - 8, top + 19, bar.label);
        const auto draw = [&](double bytes, std::string_view style, double y, const std::string& more) {
            if (bytes < 0) return;
            const double length = std::max(1.0, bytes / largest * (kWidth - labels - kValues));
            body += concat("<rect class=\"", style, "\" x=\"", labels, "\" y=\"", coordinate(y), "\" width=\"",
                           coordinate(length), "\" height=\"12\" rx=\"2\"/>");
            body += text("", labels + length + 6, y + 10.5, short_bytes(bytes) + more);
        };
        std::string difference;
        if (bar.predicted > 0 && bar.measured >= 0)
            difference = fmt::format(" ({:+.1f}%)", 100 * (bar.measured / bar.predicted - 1));
        const bool meaning = std::any_of(std::begin(svg::kTones), std::end(svg::kTones),
                                         [&](const svg::Tone& tone) { return tone.name == bar.label; });
        const std::string colour = meaning ? bar.label : "c1";
        draw(bar.predicted, "bar-predicted " + colour, top, "");
        draw(bar.measured, colour, top + 15, difference);
        body += line("axis", labels, top - 3, labels, top + 30);
        top += kRow;
    }
    return svg::in_page({kWidth, 6.0 + kRow * static_cast<int>(bars.size()), title, description, body}, id);
}

std::string heat_map(const HeatMap& map) {
    constexpr double kWidth = 1060, kRow = 18, kAxis = 40;
    size_t longest = 1, columns = 1;
    for (const std::string& label : map.rows) longest = std::max(longest, label.size());
    for (const std::vector<double>& row : map.values) columns = std::max(columns, row.size());
    const double start = 14 + 6.2 * static_cast<double>(longest),
                 height = 6 + kRow * static_cast<double>(map.rows.size());
    const double cell = (kWidth - 14 - start) / static_cast<double>(columns);
    std::string body;
    for (size_t r = 0; r < map.rows.size(); ++r) {
        const double top = 6 + kRow * static_cast<double>(r);
        body += text("e", start - 6, top + kRow / 2 + 4, map.rows[r]);
        for (size_t c = 0; c < map.values[r].size(); ++c) {
            const double value = map.values[r][c];
            const double left = start + cell * static_cast<double>(c);
            // Twice the mean, or nothing, has the full shade.
            const double shade = 0.04 + 0.9 * std::min(1.0, std::abs(value - 1));
            body += concat("<rect class=\"span c", value > 1 ? 4 : 1, "\" x=\"", coordinate(left), "\" y=\"",
                           coordinate(top), "\" width=\"", coordinate(std::max(0.3, cell - 1)), "\" height=\"",
                           coordinate(kRow - 1), "\" fill-opacity=\"", std::round(shade * 100) / 100, "\"><title>",
                           escape_html(concat(map.rows[r], ", ", map.column, " ", c, ": ", short_number(value))),
                           "</title></rect>");
            if (cell > 40)
                body +=
                    text(shade > 0.5 ? "m on" : "m ink", left + cell / 2, top + kRow / 2 + 4, short_number(value, 2));
        }
    }
    const size_t step = std::max<size_t>(1, (columns + 15) / 16);
    for (size_t c = 0; c < columns; c += step)
        body += text("m", start + cell * (static_cast<double>(c) + 0.5), height + 13, concat(c));
    body += text("m", (start + kWidth - 14) / 2, height + 31, map.x_label);
    return svg::in_page({kWidth, height + kAxis, map.title, map.description, body}, map.id);
}

}  // namespace tutti::report
