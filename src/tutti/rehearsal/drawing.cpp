// rehearsal/drawing.cpp: coordinates are in units of about a pixel.
#include "tutti/rehearsal/drawing.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/svg.h"
#include "tutti/base/units.h"
#include "tutti/plan/placement.h"

namespace tutti::rehearsal {

namespace {

constexpr double kWidth = 640, kMargin = 12, kLetter = 7.2;  // a letter of 13 units is about so wide
constexpr int kColours = 8;

// Light colours under dark letters; ranks after the eighth have the same colours, paler.
std::string style() {
    constexpr const char* kFills[kColours] = {"#7fb8e6", "#f7b267", "#9ccc7a", "#e89ac0",
                                              "#c3a6e0", "#f2d65c", "#6fcdbf", "#e58a7b"};
    std::string css =
        "text{font:13px sans-serif;fill:#222}.h{font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}"
        ".s{font-size:12px;fill:#555}rect{stroke:#444;stroke-width:.6}.none{fill:#f3f3f3}";
    for (int c = 0; c < kColours; ++c)
        for (int turn = 0; turn < kMostDrawn / kColours; ++turn)
            css += concat(".c", c + turn * kColours, "{fill:", kFills[c],
                          ";fill-opacity:", svg::coordinate(1 - 0.22 * turn), '}');
    return css;
}

std::string colour(int rank) { return concat('c', rank % kMostDrawn); }

double width_of(const std::string& text) { return kLetter * static_cast<double>(columns_of(text)); }

// The first of these texts that fits; "" when none does.
std::string fitting(double width, const std::vector<std::string>& texts) {
    for (const std::string& text : texts)
        if (width_of(text) <= width - 2) return text;
    return "";
}

std::string labelled_box(const std::string& css, double x, double y, double width, double height,
                         const std::vector<std::string>& labels, const std::string& title) {
    std::string drawn = svg::box(css, x, y, width, height, title);
    const std::string label = height >= 12 ? fitting(width, labels) : "";
    if (!label.empty()) drawn += svg::text("m", x + width / 2, y + height / 2 + 4.5, label);
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
    std::string drawn = svg::box("none", x, y, width, height) + '\n';
    for (const Holding& h : grid.holdings) {
        const std::string ranks = plan::ranks_text(h.ranks);
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

class Picture {
  public:
    void heading(const std::string& text) {
        y_ += 26;
        body_ += svg::text("h", kMargin, y_, text) + '\n';
        y_ += 8;
    }

    // A column for each rank, a row for each axis, shaded by the coordinate.
    void mesh(const Layout& l) {
        constexpr double kLabels = 110, kRow = 22;
        const double cell = std::min(48.0, (kWidth - kLabels - 2 * kMargin) / l.mesh.size());
        const auto row = [&](const std::string& name, const auto& style_at, const auto& text_at) {
            body_ += svg::text("e", kMargin + kLabels - 8, y_ + 16, name) + '\n';
            for (int r = 0; r < l.mesh.size(); ++r)
                body_ += labelled_box(style_at(r), kMargin + kLabels + cell * r, y_, cell, kRow, {text_at(r)},
                                      concat("rank ", r, ": ", name, ' ', text_at(r)));
            y_ += kRow;
        };
        row("rank", colour, [](int r) { return std::to_string(r); });
        y_ += 4;
        for (const mesh::Axes a : l.axes)
            row(
                mesh::name_of(a), [&](int r) { return l.mesh.coordinate(r, a) % 2 == 0 ? "even" : "odd"; },
                [&](int r) { return std::to_string(l.mesh.coordinate(r, a)); });
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
            body_ += svg::text("", x, top, name);
            if (strip)
                body_ += svg::text("s", x + width_of(name) + 10, top, shape_text(grid.shape));
            else
                body_ += svg::text("s", x, top += 15, shape_text(grid.shape));
            body_ += '\n' + draw_grid(grid, x, top + 6, width, height);
            bottom = std::max(bottom, top + 6 + height + 12);
            if (strip) column = columns;
        }
        y_ = bottom;
    }

    // The colours of the purposes.
    void legend() {
        double x = kMargin;
        for (int p = 0; p < kPurposes; ++p) {
            const std::string name(name_of(static_cast<Purpose>(p)));
            body_ += svg::box(colour(p), x, y_ + 4, 12, 12) + svg::text("s", x + 17, y_ + 14, name);
            x += 30 + 6.5 * static_cast<double>(name.size());
        }
        y_ += 26;
    }

    std::string file(const std::string& title, const std::string& more_css = "") const {
        return svg::begin_file(kWidth, y_ + kMargin, style() + more_css, title) + body_ + "</svg>\n";
    }

    std::string body_;
    double y_ = 0;
};

}  // namespace

std::string draw_svg(const Layout& layout) {
    check<UsageError>(layout.mesh.size() <= kMostDrawn, "a picture of ", layout.mesh.size(), " ranks: at most ",
                      kMostDrawn, " are drawn; print the layout as text, or draw fewer ranks along the largest axis");
    Picture picture;
    picture.heading(layout.title);
    picture.mesh(layout);
    for (const LayoutPart& part : layout.parts) {
        const auto is_whole = [](const Grid& grid) { return grid.holdings.size() == 1; };
        if (!std::all_of(part.grids.begin(), part.grids.end(), is_whole)) picture.part(part);
    }
    return picture.file(layout.title, ".even{fill:#fff}.odd{fill:#d9dde3}");
}

std::string draw_memory(const std::string& title, const std::vector<std::pair<std::string, MemoryByPurpose>>& bars) {
    constexpr double kRow = 30;
    Picture picture;
    picture.heading(title);
    picture.legend();
    double x = kMargin, labels = 0;
    int64_t most = 1;
    for (const auto& [label, bytes] : bars) {
        labels = std::max(labels, width_of(label));
        most = std::max(most, bytes.total());
    }
    constexpr double kValues = 70;
    const double start = kMargin + labels + 8, scale = (kWidth - start - kValues - kMargin) / static_cast<double>(most);
    for (const auto& [label, bytes] : bars) {
        picture.body_ += svg::text("e", start - 8, picture.y_ + 18, label);
        x = start;
        for (int p = 0; p < kPurposes; ++p) {
            const auto purpose = static_cast<Purpose>(p);
            const double width = scale * static_cast<double>(bytes[purpose]);
            if (width > 0)
                picture.body_ += labelled_box(colour(p), x, picture.y_, width, kRow - 6, {format_bytes(bytes[purpose])},
                                              concat(name_of(purpose), ": ", format_bytes(bytes[purpose])));
            x += width;
        }
        picture.body_ += svg::text("", x + 6, picture.y_ + 18, format_bytes(bytes.total())) + '\n';
        picture.y_ += kRow;
    }
    return picture.file(title);
}

std::string draw_memory_over_step(const std::string& title, const Program& program, int64_t capacity) {
    constexpr double kHeight = 260;
    constexpr size_t kMostColumns = 400;  // of equal width; the fullest sample of a column is drawn
    Picture picture;
    picture.heading(title);
    picture.legend();
    const std::vector<Program::Memory>& samples = program.memory;
    check(!samples.empty(), "a program without samples of its memory");
    const size_t columns = std::min(samples.size(), kMostColumns);
    std::vector<const Program::Memory*> shown(columns, nullptr);
    int64_t most = 1;
    for (size_t i = 0; i < samples.size(); ++i) {
        const Program::Memory*& at = shown[i * columns / samples.size()];
        if (at == nullptr || samples[i].bytes.total() > at->bytes.total()) at = &samples[i];
        most = std::max(most, samples[i].bytes.total());
    }
    const bool line = capacity > 0 && capacity < 3 * most;
    const double top = picture.y_ + 6, scale = kHeight / double(line ? std::max(most, capacity) : most),
                 width = (kWidth - 2 * kMargin) / double(columns);
    for (size_t i = 0; i < columns; ++i) {
        double y = top + kHeight;
        for (int p = 0; p < kPurposes; ++p) {
            const double height = scale * double(shown[i]->bytes[static_cast<Purpose>(p)]);
            if (height < 0.05) continue;
            y -= height;
            picture.body_ += svg::box(
                colour(p), kMargin + double(i) * width, y, width, height,
                concat(program.places[shown[i]->place], ": ", format_bytes(shown[i]->bytes.total()), ", of which ",
                       name_of(static_cast<Purpose>(p)), " ", format_bytes(shown[i]->bytes[static_cast<Purpose>(p)])));
        }
        if (i % 8 == 7) picture.body_ += '\n';
    }
    if (line) {
        const double y = top + kHeight - scale * double(capacity);
        picture.body_ += svg::box("l", kMargin, y, kWidth - 2 * kMargin, 1) +
                         svg::text("s", kMargin + 4, y + 12, concat("the machine has ", format_bytes(capacity)));
    }
    picture.y_ = top + kHeight + 18;
    picture.body_ += svg::text("s", kMargin, picture.y_,
                               concat("peak ", format_bytes(most), "; from the first pass of the step to the last"));
    picture.y_ += 8;
    return picture.file(title, ".l{fill:#b00}");
}

}  // namespace tutti::rehearsal
