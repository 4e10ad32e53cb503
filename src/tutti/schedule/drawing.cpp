// schedule/drawing.cpp: the pictures of timeline.h.
#include <algorithm>
#include <array>
#include <cstdio>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/schedule/timeline.h"

namespace tutti::schedule {

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

// Classes of base/palette.h.
std::string style_of(const Action& part, const Placement& placement) {
    const char* const name = part.op == Op::forward          ? "forward"
                             : part.op == Op::backward       ? "backward"
                             : part.op == Op::backward_input ? "backward-input"
                                                             : "backward-weight";
    return concat(name, is_later(part, placement) ? " later" : "");
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

svg::Bars picture_of(const Timeline<double>& timeline, const Schedule& schedule, const std::string& x_label) {
    constexpr size_t kMostInRow = 48;  // a box of one microbatch has room for its number
    size_t longest = 1;
    bool halves = false;
    for (const auto& spans : timeline.ranks) {
        longest = std::max(longest, spans.size());
        for (const Span<double>& span : spans) halves = halves || span.action.op == Op::overlap;
    }
    std::vector<std::vector<int>> versions;
    if (schedule.updates_each) versions = weight_versions(schedule);
    const double share = timeline.makespan > 0 ? timeline.bubble / timeline.makespan : 0;
    svg::Bars bars{
        .title = concat(schedule.name, ": ", schedule.placement.ranks, " ranks, ", schedule.total_microbatches(),
                        " microbatches; bubble ", short_number(timeline.bubble), " of ",
                        short_number(timeline.makespan), ", ", format_percent(share)),
        .description = schedule.updates_each
                           ? "A row for each rank, its passes: above the microbatch, below the updates that the "
                             "weights in use have seen."
                           : "A row for each rank, its passes with the numbers of their microbatches.",
        .x_label = x_label,
        .end = timeline.makespan,
        .width = std::clamp(90 + 20.0 * static_cast<double>(longest), 660.0, 1060.0),
        .most_in_row = kMostInRow};
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        bars.rows.push_back(
            {.label = concat("rank ", rank), .height = halves || schedule.updates_each ? 28.0 : 22.0, .idle = true});
        for (size_t i = 0; i < timeline.ranks[rank].size(); ++i) {
            const Span<double>& span = timeline.ranks[rank][i];
            std::string title =
                concat(to_string(span.action), ": ", short_number(span.start), " to ", short_number(span.end));
            if (schedule.updates_each) title += concat(", weights after ", versions[rank][i], " updates");
            const double part = span.action.op == Op::overlap || schedule.updates_each ? 0.5 : 1;
            double top = 0;
            for (const Action& action : Parts(span.action)) {
                bars.bars.push_back({.row = rank,
                                     .begin = span.start,
                                     .end = span.end,
                                     .style = style_of(action, schedule.placement),
                                     .title = title,
                                     .label = std::to_string(action.microbatch),
                                     .top = top,
                                     .part = part});
                top += part;
            }
            if (schedule.updates_each)
                bars.bars.push_back({.row = rank,
                                     .begin = span.start,
                                     .end = span.end,
                                     .style = style_of(span.action, schedule.placement) + " later",
                                     .title = title,
                                     .label = concat("v", versions[rank][i]),
                                     .top = 0.5,
                                     .part = 0.5});
            // One frame around both.
            if (part < 1) bars.bars.push_back({rank, span.start, span.end, "frame", title});
        }
    }
    return bars;
}

}  // namespace tutti::schedule
