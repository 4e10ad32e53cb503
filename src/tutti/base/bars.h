// base/bars.h: a chart of rows of bars along one axis of time or of bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/svg.h"

namespace tutti::svg {

struct Bar {
    size_t row = 0;
    double begin = 0, end = 0;  // in the unit of the axis
    std::string style;          // a class of kTones; with " later": lighter
    std::string title = {};     // tooltip
    std::string label = {};     // written on the bar if it fits
    double top = 0, part = 1;   // offset and height, as shares of the row's height
};

struct Bars {
    struct Row {
        std::string label;
        double height = 16;
        bool idle = false;       // a background marks time without bars as idle
        std::string value = {};  // after the last bar
    };
    std::string title, description, x_label;
    std::vector<Row> rows;
    std::vector<Bar> bars;
    double end = 0;  // of the axis, which begins at 0
    // A line across the rows, such as the memory of a device. The axis is extended to it, but at most to three times
    // `end`; beyond that, the line is not drawn.
    double limit = 0;
    std::string limit_label = {};
    double width = 1060;
    // If a row has more bars, only the beginning and the end of the axis are drawn, with a gap between; 0: no limit.
    size_t most_in_row = 0;
};

// The map from values to x coordinates, which is linear but for a gap.
struct Scale {
    double start = 0, per_unit = 1;      // x = start + per_unit * value, up to `head`
    double head = 0, tail = 0, gap = 0;  // values between head and tail are not drawn; the gap has this width
    bool folded() const { return tail > head; }
    double at(double value) const;
};
Scale scale_of(const Bars& bars);

// The tones that occur, as class and label, in the order of the palette.
std::vector<std::pair<std::string, std::string>> legend_of(const Bars& bars);

Picture draw(const Bars& bars);              // the rows and the axis
Picture draw_with_legend(const Bars& bars);  // with the title and the legend above

}  // namespace tutti::svg
