// base/bars.h: rows of bars along one axis, of time or of bytes: the picture of schedules, steps, traces and memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/base/svg.h"

namespace tutti::svg {

struct Bar {
    size_t row = 0;
    double begin = 0, end = 0;  // in the unit of the axis
    std::string style;          // a meaning of palette.h, with " later": lighter
    std::string title = {};     // tooltip
    std::string label = {};     // written on the bar where it fits
    double top = 0, part = 1;   // the bar's share of the row's height
};

struct Bars {
    struct Row {
        std::string label;
        double height = 16;
        bool idle = false;       // the row's whole length has a background: time without bars is idle
        std::string value = {};  // behind the last bar
    };
    std::string title, description, x_label;
    std::vector<Row> rows;
    std::vector<Bar> bars;
    double end = 0;  // of the axis, which begins at 0
    // A line across the rows, such as the memory of a device. It is left out where it lies beyond three times the axis,
    // which otherwise grows to it.
    double limit = 0;
    std::string limit_label = {};
    double width = 1060;
    // More bars in a row than this: only the beginning and the end of the axis are drawn, with a break between them.
    // 0: all of it.
    size_t most_in_row = 0;
};

// The axis of a picture, piece by piece: where a value lies in it.
struct Scale {
    double start = 0, per_unit = 1;      // x = start + per_unit * value, up to `head`
    double head = 0, tail = 0, gap = 0;  // values between head and tail are not drawn; there are `gap` units of space
    bool folded() const { return tail > head; }
    double at(double value) const;
};
Scale scale_of(const Bars& bars);

// The meanings that occur, as class and label, in the order of the palette.
std::vector<std::pair<std::string, std::string>> legend_of(const Bars& bars);

// The rows and the axis; as a file or a picture by itself also the title and the legend.
Picture draw(const Bars& bars);
Picture draw_with_legend(const Bars& bars);

}  // namespace tutti::svg
