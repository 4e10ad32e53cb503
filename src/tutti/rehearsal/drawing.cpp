// rehearsal/drawing.cpp: coordinates are in units of about a pixel.
#include "tutti/rehearsal/drawing.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/palette.h"
#include "tutti/base/units.h"
#include "tutti/rehearsal/card.h"

namespace tutti::rehearsal {

namespace {

constexpr double kWidth = 640, kMargin = 12;

std::string colour(int rank) { return svg::rank_class(rank) + " edged"; }

// The first of these texts that fits, else the first one on several lines; none when no text fits.
std::vector<std::string> fitting(double width, double height, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
        if (height < 12) break;
        if (svg::width_of(text) <= width - 2) return {text};
        std::vector<std::string> lines(1);
        std::istringstream words(text);
        for (std::string word; words >> word;) {
            const std::string longer = lines.back().empty() ? word : lines.back() + " " + word;
            if (svg::width_of(longer) <= width - 2)
                lines.back() = longer;
            else
                lines.push_back(word);
        }
        const bool fits =
            std::all_of(lines.begin(), lines.end(), [&](const auto& line) { return svg::width_of(line) <= width - 2; });
        if (fits && 14 * static_cast<double>(lines.size()) <= height - 2) return lines;
    }
    return {};
}

std::string labelled_box(const std::string& css, double x, double y, double width, double height,
                         const std::vector<std::string>& labels, const std::string& title) {
    std::string drawn = svg::box(css, x, y, width, height, title);
    const std::vector<std::string> lines = fitting(width, height, labels);
    double base = y + height / 2 + 4.5 - 7 * static_cast<double>(lines.size() - 1);
    for (const std::string& line : lines) {
        drawn += svg::text("m plain", x + width / 2, base, line);
        base += 14;
    }
    if (lines.empty() && height >= 12 && svg::width_of(labels.back(), 9) <= width - 1)
        drawn += svg::text("m half plain", x + width / 2, y + height / 2 + 3, labels.back());
    return drawn + '\n';
}

// The rows and columns of a drawn grid. Of three dims the first is that of experts, which are side by side.
struct Sheet {
    int64_t rows = 1, columns = 1;
    std::vector<mesh::Block> rectangles(const mesh::Block& b, const Shape& shape) const {
        if (shape.rank() == 1) return {{{0, b.offset[0]}, {1, b.sizes[0]}}};
        if (shape.rank() == 2) return {b};
        std::vector<mesh::Block> experts;
        for (int64_t e = b.offset[0]; e < b.offset[0] + b.sizes[0]; ++e)
            experts.push_back({{b.offset[1], e * shape[2] + b.offset[2]}, {b.sizes[1], b.sizes[2]}});
        return experts;
    }
};
Sheet sheet_of(const Shape& shape) {
    if (shape.rank() == 1) return {1, shape[0]};
    if (shape.rank() == 2) return {shape[0], shape[1]};
    return {shape[1], shape[0] * shape[2]};
}

// The rectangles of a grid, scaled to width and height.
std::string draw_grid(const Grid& grid, double x, double y, double width, double height) {
    const Sheet sheet = sheet_of(grid.shape);
    const double across = width / static_cast<double>(sheet.columns), down = height / static_cast<double>(sheet.rows);
    std::string drawn = svg::box("idle edged", x, y, width, height) + '\n';
    for (const Holding& h : grid.holdings) {
        const std::string ranks = ranks_text(h.ranks);
        const std::string title =
            concat(h.ranks.size() == 1 ? "rank " : "ranks ", ranks, h.label.empty() ? "" : ", " + h.label);
        std::vector<std::string> labels = {ranks, std::to_string(h.ranks.front())};
        if (!h.label.empty())
            labels = {title, h.label, h.label.substr(h.label.rfind(' ') + 1)};
        else if (h.ranks.size() > 1)
            labels.back() = concat(h.ranks.front(), "…");
        for (const mesh::Block& block : h.blocks)
            for (const mesh::Block& r : sheet.rectangles(block, grid.shape))
                drawn +=
                    labelled_box(colour(h.ranks.front()), x + across * static_cast<double>(r.offset[1]),
                                 y + down * static_cast<double>(r.offset[0]), across * static_cast<double>(r.sizes[1]),
                                 down * static_cast<double>(r.sizes[0]), labels, title);
    }
    return drawn;
}

// "mlp.up_proj" of "model.layers.2.mlp.up_proj.weight": unique within a block.
std::string short_name(const std::string& name) {
    const std::string text = name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
    const size_t last = text.rfind('.');
    const size_t before = last == std::string::npos || last == 0 ? last : text.rfind('.', last - 1);
    return before == std::string::npos ? text : text.substr(before + 1);
}

std::string shape_text(const Shape& shape) { return joined(shape, " x "); }

// The ranks that have a column, and before which of them a gap stands between nodes.
struct Columns {
    std::vector<int> ranks;
    std::vector<size_t> breaks;
    size_t cut = 0;  // the column behind nodes that are left out; 0: all are drawn
};

Columns columns_of_ranks(int size, int per_node) {
    constexpr int kNodesOfMany = 1;  // before the last; more have no room for numbers of five digits
    Columns columns;
    const bool all = size <= kMostDrawn;
    for (int r = 0; r < size; ++r) {
        const int node = per_node > 0 ? r / per_node : 0;
        if (!all && node >= kNodesOfMany && node < (size - 1) / per_node) continue;
        if (!all && r % per_node >= kMostDrawn / (kNodesOfMany + 1)) continue;
        if (!columns.ranks.empty() && per_node > 0 && columns.ranks.back() / per_node != node) {
            columns.breaks.push_back(columns.ranks.size());
            if (node > columns.ranks.back() / per_node + 1) columns.cut = columns.ranks.size();
        }
        columns.ranks.push_back(r);
    }
    return columns;
}

class Canvas {
  public:
    explicit Canvas(double width = kWidth) : width_(width) {}

    void heading(const std::string& text) {
        y_ += 26;
        body_ += svg::text("h ink", kMargin, y_, text) + '\n';
        y_ += 8;
    }

    void note(const std::string& text) {
        y_ += 18;
        body_ += svg::text("", kMargin, y_, text) + '\n';
        y_ += 8;
    }

    // A column for each rank, a row for each axis, where ranks of one group have one colour. With `per_node`, ranks
    // of a node stand together; of more than kMostDrawn ranks the first node and the last one are drawn.
    void mesh(const mesh::Mesh& mesh, const std::vector<mesh::Axes>& axes, int per_node) {
        constexpr double kLabels = 96, kRow = 22, kBetween = 10, kRemark = 84;
        const Columns columns = columns_of_ranks(mesh.size(), per_node);
        const auto gaps = static_cast<double>(columns.breaks.size());
        const double remark = per_node > 0 ? kRemark : 0;
        const double cell = std::min(48.0, (width_ - kLabels - 2 * kMargin - remark - gaps * kBetween) /
                                               static_cast<double>(columns.ranks.size()));
        const auto left_of = [&](size_t i) {
            const auto before = std::upper_bound(columns.breaks.begin(), columns.breaks.end(), i);
            return kMargin + kLabels + cell * static_cast<double>(i) +
                   kBetween * static_cast<double>(before - columns.breaks.begin());
        };
        if (per_node > 0) {
            for (size_t i = 0; i < columns.ranks.size(); ++i)
                if (i == 0 || columns.ranks[i] % per_node == 0)
                    body_ += svg::text("ink", left_of(i), y_ + 12, concat("node ", columns.ranks[i] / per_node));
            y_ += 18;
        }
        const auto row = [&](const std::string& name, const std::string& said, const auto& draw) {
            body_ += svg::text("e ink", kMargin + kLabels - 8, y_ + 16, name) + '\n';
            for (size_t i = 0; i < columns.ranks.size(); ++i) draw(columns.ranks[i], left_of(i));
            if (columns.cut > 0) body_ += svg::text("m", left_of(columns.cut) - kBetween / 2, y_ + 16, "…");
            if (per_node > 0) body_ += svg::text("", left_of(columns.ranks.size() - 1) + cell + 8, y_ + 16, said);
            y_ += kRow;
        };
        row("rank", "", [&](int r, double x) {
            body_ += labelled_box(colour(r), x, y_, cell, kRow, {std::to_string(r)}, concat("rank ", r));
        });
        y_ += 4;
        for (const mesh::Axes a : axes) {
            std::map<std::vector<int>, int> groups;
            bool inside = true;
            for (const int r : columns.ranks) {
                const std::vector<int> group = mesh.group(r, a);
                groups.try_emplace(group, static_cast<int>(groups.size()));
                inside = inside && per_node > 0 && group.front() / per_node == group.back() / per_node;
            }
            row(mesh::name_of(a), inside ? "in a node" : "across nodes", [&](int r, double x) {
                const std::vector<int> group = mesh.group(r, a);
                const std::string place = std::to_string(mesh.coordinate(r, a));
                body_ += labelled_box(colour(groups[group]), x, y_, cell, kRow, {place},
                                      concat("rank ", r, ": ", mesh::name_of(a), ' ', place, ", in a group with ranks ",
                                             ranks_text(group)));
            });
        }
        note("One colour in a row: ranks of one group, which communicate; the number: the rank's place in it.");
    }

    // Grids of one row, and experts, as strips below each other; others side by side.
    void part(const LayoutPart& part) {
        heading(part.title);
        const bool squares = part.kind == LayoutPart::Kind::square;
        const int columns = squares ? 2 : 4;
        const double place = (kWidth - 2 * kMargin) / columns, side = squares ? 230 : 124;
        double bottom = y_;
        int column = 0;
        for (const Grid& grid : part.grids) {
            const bool strip = part.kind == LayoutPart::Kind::line || grid.shape.rank() == 3;
            if (grid.shape.rank() == 1 && !strip) continue;
            if (column == columns || strip) y_ = bottom, column = 0;
            const Sheet sheet = sheet_of(grid.shape);
            const auto scaled = [&](int64_t size) {
                return std::max(
                    30.0, side * static_cast<double>(size) / static_cast<double>(std::max(sheet.rows, sheet.columns)));
            };
            const double width = strip ? kWidth - 2 * kMargin : squares ? side : scaled(sheet.columns);
            const double height = strip ? (grid.shape.rank() == 3 ? 52 : 26) : squares ? side : scaled(sheet.rows);
            const double x = kMargin + place * column++;
            const std::string name = part.kind == LayoutPart::Kind::tensor ? short_name(grid.name) : grid.name;
            double top = y_ + 14;
            body_ += svg::text("ink", x, top, name);
            if (strip)
                body_ += svg::text("", x + svg::width_of(name) + 10, top, shape_text(grid.shape));
            else
                body_ += svg::text("", x, top += 15, shape_text(grid.shape));
            body_ += '\n' + draw_grid(grid, x, top + 6, width, height);
            bottom = std::max(bottom, top + 6 + height + 12);
            if (strip) column = columns;
        }
        y_ = bottom;
    }

    // The colours of the purposes that have bytes.
    void legend(const MemoryByPurpose& bytes) {
        double x = kMargin;
        for (const Purpose purpose : kAllPurposes) {
            if (bytes[purpose] <= 0) continue;
            const std::string name(name_of(purpose));
            body_ += svg::box(name, x, y_ + 4, 12, 12) + svg::text("", x + 17, y_ + 14, name);
            x += 30 + svg::width_of(name);
        }
        y_ += 26;
    }

    svg::Picture done(const std::string& title) const { return {width_, y_ + kMargin, title, "", body_}; }

    double width_;
    std::string body_;
    double y_ = 0;
};

// The unit in which an axis up to so many bytes is labelled.
std::pair<double, const char*> unit_of(double bytes) {
    constexpr std::array<std::pair<double, const char*>, 4> kUnits{
        {{1, "bytes"}, {1 << 10, "KiB"}, {1 << 20, "MiB"}, {1 << 30, "GiB"}}};
    size_t u = 0;
    while (u + 1 < kUnits.size() && bytes >= 2 * kUnits[u + 1].first) ++u;
    return kUnits[u];
}

}  // namespace

svg::Picture draw_nodes(const mesh::Mesh& mesh, const std::vector<mesh::Axes>& axes, int per_node,
                        const std::string& title) {
    Canvas canvas(svg::Bars{}.width);
    canvas.heading(title);
    canvas.mesh(mesh, axes, per_node);
    return canvas.done(title);
}

svg::Picture draw_layout(const Layout& layout, int per_node) {
    check<UsageError>(layout.mesh.size() <= kMostDrawn, "a picture of ", layout.mesh.size(), " ranks: at most ",
                      kMostDrawn, " are drawn; print the layout as text, or draw fewer ranks along the largest axis");
    Canvas canvas;
    canvas.heading(layout.title);
    canvas.mesh(layout.mesh, layout.axes, per_node);
    for (const LayoutPart& part : layout.parts) {
        const auto is_whole = [](const Grid& grid) { return grid.holdings.size() == 1; };
        if (!std::all_of(part.grids.begin(), part.grids.end(), is_whole)) canvas.part(part);
    }
    return canvas.done(layout.title);
}

svg::Bars memory_bars(const std::string& title, const std::vector<std::pair<std::string, MemoryByPurpose>>& bars) {
    svg::Bars chart{.title = title, .description = title + ": ", .x_label = "", .width = kWidth};
    for (const auto& [label, bytes] : bars) chart.end = std::max(chart.end, static_cast<double>(bytes.total()));
    const auto [unit, unit_name] = unit_of(chart.end);
    chart.x_label = unit_name;
    chart.end /= unit;
    for (const auto& [label, bytes] : bars) {
        double begin = 0;
        for (const Purpose purpose : kAllPurposes) {
            if (bytes[purpose] <= 0) continue;
            const double end = begin + static_cast<double>(bytes[purpose]) / unit;
            const std::string said = format_bytes(bytes[purpose]);
            chart.bars.push_back({chart.rows.size(), begin, end, std::string(name_of(purpose)),
                                  concat(name_of(purpose), ": ", said), said});
            begin = end;
        }
        chart.rows.push_back({.label = label, .height = 24, .value = format_bytes(bytes.total())});
        chart.description += concat(label, " ", format_bytes(bytes.total()), "; ");
    }
    return chart;
}

svg::Picture draw_memory_over_step(const std::string& title, const Program& program, int64_t capacity) {
    constexpr double kHeight = 260, kLabels = 44;
    constexpr size_t kMostColumns = 400;  // of equal width; the fullest sample of a column is drawn
    const std::vector<Program::Memory>& samples = program.memory;
    check(!samples.empty(), "a program without samples of its memory");
    const size_t columns = std::min(samples.size(), kMostColumns);
    std::vector<const Program::Memory*> shown(columns, nullptr);
    MemoryByPurpose largest;
    int64_t most = 1;
    for (size_t i = 0; i < samples.size(); ++i) {
        const Program::Memory*& at = shown[i * columns / samples.size()];
        if (at == nullptr || samples[i].bytes.total() > at->bytes.total()) at = &samples[i];
        most = std::max(most, samples[i].bytes.total());
        for (const Purpose purpose : kAllPurposes)
            largest[purpose] = std::max(largest[purpose], samples[i].bytes[purpose]);
    }
    Canvas canvas;
    canvas.heading(title);
    canvas.legend(largest);
    const bool line = capacity > 0 && capacity < 3 * most;
    const double end = double(line ? std::max(most, capacity) : most);
    const double top = canvas.y_ + 10, bottom = top + kHeight, scale = kHeight / end, left = kMargin + kLabels,
                 width = (kWidth - left - kMargin) / double(columns);
    const auto [unit, unit_name] = unit_of(end);
    const std::vector<double> ticks = svg::linear_ticks(0, end / unit, 4);
    const std::vector<std::string> labels = svg::tick_labels(ticks);
    for (size_t i = 0; i < ticks.size(); ++i) {
        const double y = bottom - scale * unit * ticks[i];
        canvas.body_ +=
            svg::line("grid", left, y, kWidth - kMargin, y) +
            svg::text("e", left - 5, y + 4, labels[i] + (i + 1 == ticks.size() ? concat(' ', unit_name) : ""));
    }
    for (size_t i = 0; i < columns; ++i) {
        double y = bottom;
        for (const Purpose purpose : kAllPurposes) {
            const double height = scale * double(shown[i]->bytes[purpose]);
            if (height < 0.05) continue;
            y -= height;
            canvas.body_ +=
                svg::box(name_of(purpose), left + double(i) * width, y, width, height,
                         concat(program.places[shown[i]->place], ": ", format_bytes(shown[i]->bytes.total()),
                                ", of which ", name_of(purpose), ' ', format_bytes(shown[i]->bytes[purpose])));
        }
        if (i % 8 == 7) canvas.body_ += '\n';
    }
    if (line) {
        const double y = bottom - scale * double(capacity);
        canvas.body_ += svg::line("limit", left, y, kWidth - kMargin, y) +
                        svg::text("ink", left + 4, y + 13, concat("the machine has ", format_bytes(capacity)));
    }
    canvas.y_ = bottom + 18;
    canvas.body_ += svg::text("", left, canvas.y_,
                              concat("peak ", format_bytes(most), "; from the first pass of the step to the last"));
    canvas.y_ += 8;
    return canvas.done(title);
}

}  // namespace tutti::rehearsal
