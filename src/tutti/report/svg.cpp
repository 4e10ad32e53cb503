// report/svg.cpp: the charts (svg.h). Coordinates are the drawing's own units; one unit is about one pixel.
#include "tutti/report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/svg.h"

namespace tutti::report {

using svg::coordinate;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string printed(const char* format, int precision, double value) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), format, precision, value);
    return text.data();
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view style = "") {
    return concat("<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" text-anchor=\"", anchor, "\"",
                  style.empty() ? "" : concat(" class=\"", style, "\""), ">", escape_html(text), "</text>");
}

std::string segment(std::string_view style, double x1, double y1, double x2, double y2) {
    return concat("<line class=\"", style, "\" x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1), "\" x2=\"",
                  coordinate(x2), "\" y2=\"", coordinate(y2), "\"/>");
}

// Up to its title and description, which screen readers read in place of the picture.
std::string open_svg(std::string_view id, int width, int height, std::string_view title, std::string_view description) {
    return concat("<svg viewBox=\"0 0 ", width, " ", height, "\" role=\"img\" aria-labelledby=\"", id, "-t ", id,
                  "-d\"><title id=\"", id, "-t\">", escape_html(title), "</title><desc id=\"", id, "-d\">",
                  escape_html(description), "</desc>");
}

// 0.00015 -> "1.5e-4", the usual notation of learning rates.
std::string scientific(double value, int digits) {
    auto exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
    std::string mantissa = printed("%.*g", digits, value / std::pow(10.0, exponent));
    if (mantissa == "10" || mantissa == "-10") {
        mantissa.pop_back();
        ++exponent;
    }
    return concat(mantissa, "e", exponent);
}

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
    std::string marks =
        concat("<path class=\"", style, " ", colour, "\" d=\"", path_of(thin_out(series.points, 1200), x, y), "\"/>");
    if (series.mark != Mark::dots) return marks;
    for (const Point& point : thin_out(series.points, 200)) {
        if (!std::isfinite(point.y)) continue;
        marks += concat("<circle class=\"dot ", colour, "\" cx=\"", coordinate(x.at(point.x)), "\" cy=\"",
                        coordinate(y.at(point.y)), "\" r=\"3\"><title>", escape_html(series.label), ", step ",
                        short_number(point.x, 6), ": ", short_number(point.y, 5), "</title></circle>");
    }
    return marks;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int least) {
    check(std::isfinite(low) && std::isfinite(high) && low < high && least >= 2,
          "linear_ticks: required: finite low < high, "
          "at least 2 ticks; got ",
          low, " to ", high, ", ", least);
    constexpr std::array<double, 3> kSteps{5, 2, 1};
    for (int power = static_cast<int>(std::ceil(std::log10(high - low)));; --power) {
        for (const double mantissa : kSteps) {
            const double step = mantissa * std::pow(10.0, power);
            // The small slack keeps a bound that is itself a tick, in spite of rounding.
            const double first = std::ceil(low / step - 1e-9);
            const double last = std::floor(high / step + 1e-9);
            if (last - first + 1 < least) continue;
            std::vector<double> ticks;
            for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0 : i * step);
            return ticks;
        }
    }
}

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

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
    double largest = 0;
    for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
    std::vector<std::string> labels;
    if (largest > 0 && largest < 1e-3) {
        for (const double tick : ticks) labels.push_back(tick == 0 ? "0" : scientific(tick, 4));
        return labels;
    }
    double unit = 1;
    std::string_view suffix;
    for (const auto& [size, name] :
         {std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "k"}}) {
        if (largest < (size == 1e3 ? 1e4 : size)) continue;
        unit = size;
        suffix = name;
        break;
    }
    int digits = 0;
    const auto is_exact = [&](double tick) {
        const double shifted = tick / unit * std::pow(10.0, digits);
        return std::abs(shifted - std::round(shifted)) < 1e-6 * std::max(1.0, std::abs(shifted));
    };
    while (digits < 9 && !std::all_of(ticks.begin(), ticks.end(), is_exact)) ++digits;
    for (const double tick : ticks)
        labels.push_back(tick == 0 ? "0" : printed("%.*f", digits, tick / unit) + std::string(suffix));
    return labels;
}

std::string short_number(double value, int digits) {
    if (std::isnan(value)) return "not a number";
    if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
    const double size = std::abs(value);
    if (size == 0) return "0";
    if (size < 1e-3) return scientific(value, digits);
    if (size < std::pow(10.0, std::max(3, digits)) - 0.5) return printed("%.*g", digits, value);
    constexpr std::array<std::pair<double, const char*>, 4> kUnits{{{1e3, "k"}, {1e6, "M"}, {1e9, "G"}, {1e12, "T"}}};
    for (const auto& [unit, name] : kUnits) {
        // 999,999 is 1M, not 1e+03k: the rounding decides the unit.
        if (size / unit < 999.5 || unit == 1e12) return printed("%.*g", std::max(3, digits), value / unit) + name;
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
    return concat(printed("%.*g", std::abs(bytes) >= 999.5 ? 5 : 3, bytes), " ", kUnits[unit]);
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
            if (series.mark != Mark::ticks) y_range.add(point.y);
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

    std::string svg = open_svg(chart.id, chart.width, chart.height, chart.title, chart.description);
    for (size_t i = 0; i < y.ticks.size(); ++i) {
        const double at = y.at(y.ticks[i]);
        svg += segment("grid", x.start, at, x.end, at) + text_at(x.start - 6, at + 4, "end", y.labels[i]);
    }
    svg += segment("axis", x.start, y.start, x.end, y.start);
    for (size_t i = 0; i < x.ticks.size(); ++i) {
        const double at = x.at(x.ticks[i]);
        // A long label at the very end would stick out of the drawing.
        const double middle = std::min(at, chart.width - 2 - 3.3 * static_cast<double>(x.labels[i].size()));
        svg += segment("axis", at, y.start, at, y.start + 4) + text_at(middle, y.start + 17, "middle", x.labels[i]);
    }
    svg += text_at((x.start + x.end) / 2, chart.height - 4, "middle", chart.x_label, "label");
    if (y.logarithmic) svg += text_at(x.end, y.end + 10, "end", "log scale", "label");
    for (const Series& series : chart.series) svg += series_marks(series, x, y);
    return svg + "</svg>";
}

std::string share_bar(const std::string& id, const std::string& title, const std::string& description,
                      const std::vector<ShareBar>& bars) {
    constexpr int kWidth = 420, kHeight = 22;
    std::string svg = open_svg(id, kWidth, kHeight, title, description);
    double at = 0;
    for (const ShareBar& bar : bars) {
        svg += concat("<rect class=\"span c", bar.colour, "\" x=\"", coordinate(at), "\" y=\"0\" width=\"",
                      coordinate(bar.share * kWidth), "\" height=\"", kHeight, "\"><title>",
                      escape_html(concat(bar.label, ": ", short_number(100 * bar.share), " %")), "</title></rect>");
        at += bar.share * kWidth;
    }
    return svg + "</svg>";
}

std::string memory_bars(const std::string& id, const std::string& title, const std::vector<Bar>& bars) {
    double largest = 0;
    size_t longest = 0;
    std::string description;
    for (const Bar& bar : bars) {
        longest = std::max(longest, bar.label.size());
        largest = std::max({largest, bar.predicted, bar.measured});
        description += concat(bar.label, ": predicted ", bar.predicted < 0 ? "unknown" : short_bytes(bar.predicted),
                              ", measured ", bar.measured < 0 ? "unknown" : short_bytes(bar.measured), ". ");
    }
    if (largest <= 0) return "";
    constexpr int kWidth = 420, kRow = 38, kValues = 112;
    const int labels = 16 + 7 * static_cast<int>(std::min<size_t>(longest, 24));
    std::string svg = open_svg(id, kWidth, 6 + kRow * static_cast<int>(bars.size()), title, description);
    double top = 4;
    for (const Bar& bar : bars) {
        svg += text_at(labels - 8, top + 19, "end", bar.label, "label");
        const auto draw = [&](double bytes, std::string_view style, double y, const std::string& more) {
            if (bytes < 0) return;
            const double length = std::max(1.0, bytes / largest * (kWidth - labels - kValues));
            svg += concat("<rect class=\"", style, "\" x=\"", labels, "\" y=\"", coordinate(y), "\" width=\"",
                          coordinate(length), "\" height=\"12\" rx=\"2\"/>");
            svg += text_at(labels + length + 6, y + 10.5, "start", short_bytes(bytes) + more);
        };
        std::string difference;
        if (bar.predicted > 0 && bar.measured >= 0)
            difference = concat(" (", printed("%+.*f", 1, 100 * (bar.measured / bar.predicted - 1)), "%)");
        draw(bar.predicted, "bar-predicted", top, "");
        draw(bar.measured, "bar-measured", top + 15, difference);
        svg += segment("axis", labels, top - 3, labels, top + 30);
        top += kRow;
    }
    return svg + "</svg>";
}

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
    std::string text = open_svg(chart.id, kWidth, height + kAxis, chart.title, chart.description);
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

std::string heat_map(const HeatMap& map) {
    constexpr double kWidth = 1060, kRow = 18, kAxis = 40;
    size_t longest = 1, columns = 1;
    for (const std::string& label : map.rows) longest = std::max(longest, label.size());
    for (const std::vector<double>& row : map.values) columns = std::max(columns, row.size());
    const double start = 14 + 6.2 * static_cast<double>(longest),
                 height = 6 + kRow * static_cast<double>(map.rows.size());
    const double cell = (kWidth - 14 - start) / static_cast<double>(columns);
    std::string text =
        open_svg(map.id, static_cast<int>(kWidth), static_cast<int>(height + kAxis), map.title, map.description);
    for (size_t r = 0; r < map.rows.size(); ++r) {
        const double top = 6 + kRow * static_cast<double>(r);
        text += text_at(start - 6, top + kRow / 2 + 4, "end", map.rows[r]);
        for (size_t c = 0; c < map.values[r].size(); ++c) {
            const double value = map.values[r][c];
            const double left = start + cell * static_cast<double>(c);
            // Twice the mean, or nothing, has the full shade.
            const double shade = 0.04 + 0.9 * std::min(1.0, std::abs(value - 1));
            text += concat("<rect class=\"span c", value > 1 ? 4 : 1, "\" x=\"", coordinate(left), "\" y=\"",
                           coordinate(top), "\" width=\"", coordinate(std::max(0.3, cell - 1)), "\" height=\"",
                           coordinate(kRow - 1), "\" fill-opacity=\"", std::round(shade * 100) / 100, "\"><title>",
                           escape_html(concat(map.rows[r], ", ", map.column, " ", c, ": ", short_number(value))),
                           "</title></rect>");
            if (cell > 40) text += text_at(left + cell / 2, top + kRow / 2 + 4, "middle", short_number(value, 2));
        }
    }
    const size_t step = std::max<size_t>(1, (columns + 15) / 16);
    for (size_t c = 0; c < columns; c += step)
        text += text_at(start + cell * (static_cast<double>(c) + 0.5), height + 13, "middle", concat(c));
    text += text_at((start + kWidth - 14) / 2, height + 31, "middle", map.x_label, "label");
    return text + "</svg>";
}

}  // namespace tutti::report
