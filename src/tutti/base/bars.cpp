#include "tutti/base/bars.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"

namespace tutti::svg {

namespace {

constexpr double kRight = 14, kGap = 2, kAxis = 34, kTop = 4;

double left_of(const Bars& bars) {
    double longest = 0;
    for (const Bars::Row& row : bars.rows) longest = std::max(longest, width_of(row.label));
    return 14 + longest;
}

bool has_limit(const Bars& bars) { return bars.limit > 0 && bars.limit < 3 * bars.end; }

// The label of a bar in the largest font in which it fits; "" if it fits in none.
std::string label_on(const Bar& bar, double x, double y, double width, double height) {
    if (bar.label.empty()) return "";
    const std::string colour = bar.style.find(" later") == std::string::npos ? "on" : "ink";
    for (const auto& [style, size] : {std::pair{"cell", 11.0}, {"half", 9.0}})
        if (width_of(bar.label, size) <= width && size <= height)
            return text(concat("m ", style, ' ', colour), x + width / 2, y + height / 2 + 0.35 * size, bar.label);
    return "";
}

// The longest part of a bar, between `begin` and `end`, that no bar drawn later covers.
std::pair<double, double> seen_part(const Bars& bars, size_t index, double begin, double end) {
    std::vector<std::pair<double, double>> covers;
    for (size_t i = index + 1; i < bars.bars.size(); ++i) {
        const Bar& bar = bars.bars[i];
        if (bar.row == bars.bars[index].row && bar.top == bars.bars[index].top && bar.style != "frame")
            covers.emplace_back(bar.begin, bar.end);
    }
    std::sort(covers.begin(), covers.end());
    covers.emplace_back(end, end);
    std::pair<double, double> longest{begin, begin};
    double from = begin;  // all before is covered, or no longer than `longest`
    for (const auto& [first, last] : covers) {
        const double to = std::clamp(first, begin, end);
        if (to - from > longest.second - longest.first) longest = {from, to};
        from = std::max(from, last);
    }
    return longest;
}

std::string axis(const Bars& bars, const Scale& scale, double bottom) {
    const double end = std::max(bars.end, has_limit(bars) ? bars.limit : 0);
    std::string drawn;
    const std::vector<double> ticks = linear_ticks(0, end, scale.folded() ? 10 : 5);
    const std::vector<std::string> labels = tick_labels(ticks);
    for (size_t i = 0; i < ticks.size(); ++i) {
        if (scale.folded() && ticks[i] > scale.head && ticks[i] < scale.tail) continue;
        const double x = scale.at(ticks[i]);
        const double last = bars.width - 2 - width_of(labels[i]) / 2;
        drawn += line("grid", x, kTop, x, bottom) + text("m", std::min(x, last), bottom + 14, labels[i]);
    }
    drawn += line("axis", scale.start, bottom, scale.at(end), bottom);
    drawn += text("m", (scale.start + scale.at(end)) / 2, bottom + 29,
                  scale.folded() ? bars.x_label + "; the middle is left out" : bars.x_label);
    return drawn;
}

}  // namespace

double Scale::at(double value) const {
    if (!folded() || value <= head) return start + per_unit * value;
    if (value < tail) return start + per_unit * head + gap * (value - head) / (tail - head);
    return start + per_unit * (head + value - tail) + gap;
}

Scale scale_of(const Bars& bars) {
    size_t fullest = 0;
    std::vector<size_t> count(bars.rows.size(), 0);
    for (const Bar& bar : bars.bars)  // lower halves and frames share the place of another bar
        if (bar.top == 0 && bar.style != "frame") fullest = std::max(fullest, ++count[bar.row]);
    double value = 0;  // the widest
    for (const Bars::Row& row : bars.rows) value = std::max(value, width_of(row.value));
    const double end = std::max({bars.end, has_limit(bars) ? bars.limit : 0, 1e-300});
    Scale scale{.start = left_of(bars)};
    const double room = bars.width - scale.start - (value > 0 ? value + kRight : kRight);
    if (bars.most_in_row == 0 || fullest <= bars.most_in_row) {
        scale.per_unit = room / end;
        return scale;
    }
    constexpr double kBreak = 34;
    const double drawn = end * static_cast<double>(bars.most_in_row) / static_cast<double>(fullest);
    scale.gap = kBreak;
    scale.per_unit = (room - kBreak) / drawn;
    scale.head = drawn / 2;
    scale.tail = end - drawn / 2;
    return scale;
}

std::vector<std::pair<std::string, std::string>> legend_of(const Bars& bars) {
    std::vector<std::pair<std::string, std::string>> legend;
    for (const Tone& tone : kTones) {
        const auto has = [&](const Bar& bar) { return bar.style.substr(0, bar.style.find(' ')) == tone.name; };
        if (std::any_of(bars.bars.begin(), bars.bars.end(), has)) legend.emplace_back(tone.name, tone.label);
    }
    return legend;
}

Picture draw(const Bars& bars) {
    const Scale scale = scale_of(bars);
    std::vector<double> tops, ends(bars.rows.size(), scale.start);
    double bottom = has_limit(bars) ? kTop + 16 : kTop;  // with room for its label
    for (const Bars::Row& row : bars.rows) {
        tops.push_back(bottom);
        bottom += row.height + kGap;
    }
    std::string body = axis(bars, scale, bottom) + '\n';
    for (size_t r = 0; r < bars.rows.size(); ++r) {
        const Bars::Row& row = bars.rows[r];
        if (!row.label.empty()) body += text("e", scale.start - 6, tops[r] + row.height / 2 + 4, row.label);
        if (row.idle) body += box("idle", scale.start, tops[r], scale.at(bars.end) - scale.start, row.height);
    }
    for (size_t i = 0; i < bars.bars.size(); ++i) {
        const Bar& bar = bars.bars[i];
        double begin = std::max(0.0, bar.begin), end = std::min(bars.end, bar.end);
        if (begin > end) continue;
        if (scale.folded()) {
            if (begin >= scale.head && end <= scale.tail) continue;
            if (begin < scale.head) end = std::min(end, scale.head);
            if (end > scale.tail) begin = std::max(begin, scale.tail);
        }
        const Bars::Row& row = bars.rows[bar.row];
        const double x = scale.at(begin), width = std::max(0.3, scale.at(end) - x);
        const double y = tops[bar.row] + bar.top * row.height, height = bar.part * row.height;
        ends[bar.row] = std::max(ends[bar.row], x + width);
        // A hairline of background between neighbours.
        const double drawn = width > 3 ? width - 0.6 : width;
        body += box(bar.style, x, y, drawn, height, bar.title);
        if (!label_on(bar, x, y, drawn, height).empty()) {
            const auto [from, to] = seen_part(bars, i, begin, end);
            body += label_on(bar, scale.at(from), y, std::min(drawn, scale.at(to) - scale.at(from)), height);
        }
        body += '\n';
    }
    for (size_t r = 0; r < bars.rows.size(); ++r)
        if (!bars.rows[r].value.empty())
            body += text("ink", ends[r] + 6, tops[r] + bars.rows[r].height / 2 + 4, bars.rows[r].value);
    if (scale.folded()) {
        const double x = scale.at(scale.head), middle = x + scale.gap / 2;
        body += box("paper", x, kTop, scale.gap, bottom - kTop - kGap);
        for (size_t r = 0; r < bars.rows.size(); ++r)
            if (bars.rows[r].idle) body += text("m", middle, tops[r] + bars.rows[r].height / 2 + 4, "…");
        body += text("m", middle, bottom + 14, "…");
    }
    if (has_limit(bars)) {
        const double x = scale.at(bars.limit);
        body += line("limit", x, kTop - 2, x, bottom) + text("e ink", x - 4, kTop + 9, bars.limit_label);
    }
    return {bars.width, bottom + kAxis, bars.title, bars.description, body};
}

Picture draw_with_legend(const Bars& bars) {
    Picture picture = draw(bars);
    const auto legend = legend_of(bars);
    std::string head = text("h ink", 14, 22, bars.title);
    double x = 14, down = 32;
    for (const auto& [style, label] : legend) {
        const double width = 34 + width_of(label);
        if (down == 32 || x + width > picture.width) x = 14, down += 20;
        head += box(style, x, down - 20, 12, 12) + text("", x + 17, down - 10, label);
        x += width;
    }
    picture.body = concat(head, "\n<g transform=\"translate(0 ", coordinate(down), ")\">\n", picture.body, "</g>\n");
    picture.height += down;
    return picture;
}

}  // namespace tutti::svg
