// report/svg.h: the charts of the run report as SVG text. Colours come from the page's CSS classes, so that one drawing
// serves light, dark and paper.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/bars.h"

namespace tutti::report {

struct Point {
    double x = 0;
    double y = 0;  // NaN: a gap in the line
};

enum class Mark {
    line,    // the series itself
    faint,   // raw values behind a smoothed line
    dots,    // few values, joined by a dashed line; a tooltip shows the value of each dot
    points,  // the same without the line
    ticks,   // events on the x axis; y is not used
    limit,   // a line across the chart at x, with the label beside it; y is not used
    bound,   // dashed, such as the ends of a predicted range
};

// `colour` is the CSS class c1 ... c8 of the page.
struct Series {
    std::string label;  // "": not in the legend
    int colour = 1;
    Mark mark = Mark::line;
    std::vector<Point> points;
    std::vector<std::string> titles = {};  // tooltips of the dots; empty: made of their numbers
};

struct Chart {
    std::string id;  // unique in the page
    std::string title;
    std::string description;  // screen readers read it in place of the picture
    std::string x_label = "step";
    std::string y_unit;  // behind the title: "tokens/s", "%"
    std::vector<Series> series;
    bool from_zero = false;  // the y axis starts at 0
    bool allow_log = false;  // logarithmic y axis when all values are positive and their range is wide
    int width = 420;         // units of the drawing; the page scales it to its column
    int height = 235;
};

struct MemoryBar {
    std::string label;
    double predicted = -1;  // bytes; negative: unknown
    double measured = -1;
};

// 1-2-5 values inside [low, high]; only powers of ten when there are more than about ten of those.
std::vector<double> log_ticks(double low, double high);
// A readable count: 1.23M, 45.6k, 0.0123. At most `digits` significant digits.
std::string short_number(double value, int digits = 3);
std::string short_bytes(double bytes);  // 1.23 GiB

// Exponential moving average, corrected for its start; skips NaN and keeps the x. The half-life in points grows from 1
// by a tenth per point up to the given one: a fixed one would lag far behind the steep beginning of a loss curve.
std::vector<Point> smooth(const std::vector<Point>& points, double half_life);
// At most about `limit` points that keep every bucket's lowest and highest value, so that no spike disappears.
std::vector<Point> thin_out(const std::vector<Point>& points, size_t limit);

// Bars of one row, each with its share of the whole; `label` names a bar in its tooltip.
struct ShareBar {
    std::string label;
    int colour = 1;
    double share = 0;
};
std::string share_bar(const std::string& id, const std::string& title, const std::string& description,
                      const std::vector<ShareBar>& bars);

std::string line_chart(const Chart& chart);  // "" when there is no finite value to draw
std::string memory_bars(const std::string& id, const std::string& title, const std::vector<MemoryBar>& bars);

// Values around 1 as the shades of a table's cells: above it one colour, below it another, none at 1.
struct HeatMap {
    std::string id, title, description, x_label;
    std::vector<std::string> rows;            // labels
    std::vector<std::vector<double>> values;  // of equally many columns in each row
    std::string column;                       // name of a column: "expert"
};
std::string heat_map(const HeatMap& map);

}  // namespace tutti::report
