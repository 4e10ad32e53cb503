// schedule/drawing.cpp: coordinates of the SVG are in user units, about a pixel each.
#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/svg.h"
#include "tutti/base/units.h"
#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

using svg::box;

namespace {

// True for the second and later chunks of a rank, and for replica 1.
bool is_later(const Action& part, const Placement& placement) {
    if (part.replica > 0) return true;
    const int rank = placement.rank_of(part.replica, part.stage);
    for (int stage = 0; stage < part.stage; ++stage)
        if (placement.rank_of(part.replica, stage) == rank) return true;
    return false;
}

char letter_of(const Action& whole, const Placement& placement) {
    const bool later = is_later(whole, placement);
    switch (whole.op) {
        case Op::forward: return later ? 'f' : 'F';
        case Op::backward: return later ? 'b' : 'B';
        case Op::backward_input: return later ? 'i' : 'I';
        case Op::backward_weight: return later ? 'w' : 'W';
        default: return '#';
    }
}

std::string short_number(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), value < 1000 ? "%.4g" : "%.0f", value);
    return text.data();
}

// "f", "b", "i", "w", with a 2 for the lighter shade.
std::string style_of(const Action& part, const Placement& placement) {
    const char* const name = part.op == Op::forward          ? "f"
                             : part.op == Op::backward       ? "b"
                             : part.op == Op::backward_input ? "i"
                                                             : "w";
    return concat(name, is_later(part, placement) ? "2" : "");
}

constexpr const char* kStyle =
    "text{font:13px sans-serif;fill:#222}.n{font-size:11px;text-anchor:middle}.end{text-anchor:end}"
    ".idle{fill:url(#hatch)}rect{stroke:#fff;stroke-width:.5}"
    ".f{fill:#4c78c8}.f2{fill:#a9c0ea}.b{fill:#3f9f5f}.b2{fill:#a3d6b2}.i{fill:#2aa198}.i2{fill:#9bdbd5}"
    ".w{fill:#e0973a;stroke:#8a5a1c}.w2{fill:#f3cf9f;stroke:#8a5a1c}.o{fill:none;stroke:#000;stroke-width:1}";
constexpr const char* kHatch =
    "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
    "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\" stroke=\"none\"/>"
    "<path d=\"M0 6L6 0\" stroke=\"#ccc\" stroke-width=\".7\"/></pattern></defs>\n";

// A box and a letter for each operation that occurs, up to `right`.
std::string legend(const Timeline<double>& timeline, double right) {
    constexpr double kPlace = 32;
    std::string svg;
    for (const auto& [op, letter, css] : {std::tuple{Op::backward_weight, "W", "w"},
                                          {Op::backward_input, "I", "i"},
                                          {Op::backward, "B", "b"},
                                          {Op::forward, "F", "f"}}) {
        bool occurs = false;
        for (const auto& spans : timeline.ranks)
            for (const Span<double>& span : spans)
                for (const Action& part : Parts(span.action)) occurs = occurs || part.op == op;
        if (!occurs) continue;
        right -= kPlace;
        svg += box(css, right, 9, 12, 12) + svg::text("", right + 16, 19, letter);
    }
    return svg + '\n';
}

}  // namespace

std::string draw_text(const Timeline<double>& timeline, const Placement& placement, int columns) {
    // One column for the shortest action where the width allows, so that every action shows.
    double shortest = timeline.makespan;
    for (const auto& spans : timeline.ranks)
        for (const Span<double>& span : spans)
            if (span.end > span.start) shortest = std::min(shortest, span.end - span.start);
    const double exact = timeline.makespan / shortest;
    const int width = exact < columns ? static_cast<int>(exact + 0.999999) : columns;
    const size_t digits = std::to_string(timeline.ranks.size() - 1).size();
    std::string text;
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        text += concat("rank ", right(std::to_string(rank), digits), "  ");
        auto span = timeline.ranks[rank].begin();
        const auto end = timeline.ranks[rank].end();
        for (int column = 0; column < width; ++column) {
            const double time = (column + 0.5) * timeline.makespan / width;
            while (span != end && span->end <= time) ++span;
            text += span != end && span->start <= time ? letter_of(span->action, placement) : '.';
        }
        text += '\n';
    }
    return text;
}

std::string draw_svg(const Timeline<double>& timeline, const Schedule& schedule) {
    const Placement& placement = schedule.placement;
    constexpr double kLeft = 60, kTop = 30, kRow = 22, kGap = 4;
    size_t longest = 1;
    for (const auto& spans : timeline.ranks) longest = std::max(longest, spans.size());
    // Wide enough for a number in most boxes, but not wider than viewers can open.
    const double width = std::min(20000.0, std::max(600.0, 18.0 * static_cast<double>(longest)));
    const double scale = width / std::max(timeline.makespan, 1e-300);
    const double height = kTop + (kRow + kGap) * static_cast<double>(timeline.ranks.size()) + 8;

    std::string svg = svg::begin_file(kLeft + width + 10, height, kStyle, schedule.name) + kHatch +
                      svg::text("", kLeft, 19,
                                concat(schedule.name, ": ", placement.ranks, " ranks, ", schedule.total_microbatches(),
                                       " microbatches, makespan ", short_number(timeline.makespan), ", bubble ",
                                       short_number(timeline.bubble))) +
                      legend(timeline, kLeft + width);
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        const double y = kTop + (kRow + kGap) * static_cast<double>(rank);
        svg += svg::text("end", kLeft - 8, y + 16, concat("rank ", rank)) + box("idle", kLeft, y, width, kRow) + '\n';
        for (const Span<double>& span : timeline.ranks[rank]) {
            const double x = kLeft + span.start * scale, wide = (span.end - span.start) * scale;
            svg += concat("<g><title>", escape_html(to_string(span.action)), ": ", short_number(span.start), " to ",
                          short_number(span.end), "</title>");
            const bool halves = span.action.op == Op::overlap;
            double top = y;
            for (const Action& part : Parts(span.action)) {
                svg += box(style_of(part, placement), x, top, wide, halves ? kRow / 2 : kRow);
                if (!halves && wide >= 10) svg += svg::text("n", x + wide / 2, y + 15, std::to_string(part.microbatch));
                top += kRow / 2;
            }
            if (halves) svg += box("o", x, y, wide, kRow);
            svg += "</g>\n";
        }
    }
    return svg + "</svg>\n";
}

}  // namespace tutti::schedule
