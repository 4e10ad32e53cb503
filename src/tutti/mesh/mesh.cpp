#include "tutti/mesh/mesh.h"

#include <algorithm>
#include <array>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"

namespace tutti::mesh {

std::string_view name_of(Axis axis) {
    constexpr std::array<std::string_view, kAxes> kNames = {
        "tp_copy", "tp_part", "cp_ulysses", "cp_ring", "dp_shard", "etp", "ep", "edp", "dp_replicate", "pp"};
    return kNames[to_size(axis)];
}

std::string name_of(Axes axes) {
    std::string name;
    const auto add = [&](Axes part, std::string_view text) {
        if (!axes.contains(part)) return;
        if (!name.empty()) name += '+';
        name += text;
        axes = axes - part;
    };
    add(kTp, "tp");
    add(kCp, "cp");
    add(kDp, "dp");
    add(kExpertParallel, "ep");
    for (int i = 0; i < kAxes; ++i) add(static_cast<Axis>(i), name_of(static_cast<Axis>(i)));
    return name;
}

namespace {

// The product of the sizes.
int checked_size(const std::vector<AxisSize>& axes) {
    Axes seen;
    int size = 1;
    for (const AxisSize& a : axes) {
        check<UsageError>(a.size >= 1, "mesh axis ", name_of(a.axis), " must have one rank or more, got ", a.size);
        check(!seen.contains(a.axis), "mesh axis ", name_of(a.axis), " is named twice");
        seen = seen | a.axis;
        size *= a.size;
    }
    return size;
}

bool has(const std::vector<AxisSize>& grid, Axes axes) {
    for (const AxisSize& a : grid) axes = axes - a.axis;
    return axes.empty();
}

}  // namespace

Mesh::Mesh(std::vector<AxisSize> axes, std::vector<AxisSize> second)
    : axes_(std::move(axes)), second_(std::move(second)), size_(checked_size(axes_)) {
    check<UsageError>(second_.empty() || checked_size(second_) == size_, "a mesh of ", size_,
                      " ranks, whose second grid has ", checked_size(second_));
}

const std::vector<AxisSize>& Mesh::grid_of(Axes axes) const {
    if (has(axes_, axes)) return axes_;
    check(has(second_, axes), "no grid of the mesh has the axes ", name_of(axes));
    return second_;
}

int Mesh::size(Axes axes) const {
    int size = 1;
    for (const AxisSize& a : grid_of(axes))
        if (axes.contains(a.axis)) size *= a.size;
    return size;
}

int Mesh::coordinate(int rank, Axes axes) const {
    check(rank >= 0 && rank < size_, "rank ", rank, " of a mesh of ", size_);
    int coordinate = 0, scale = 1;
    for (const AxisSize& a : grid_of(axes)) {
        if (axes.contains(a.axis)) {
            coordinate += rank % a.size * scale;
            scale *= a.size;
        }
        rank /= a.size;
    }
    return coordinate;
}

std::vector<int> Mesh::group(int rank, Axes axes) const {
    check(rank >= 0 && rank < size_, "rank ", rank, " of a mesh of ", size_);
    std::vector<int> ranks = {rank};
    int stride = 1;
    for (const AxisSize& a : grid_of(axes)) {
        if (axes.contains(a.axis)) {
            const int here = rank / stride % a.size;
            std::vector<int> more;
            for (int i = 0; i < a.size; ++i)
                for (int r : ranks) more.push_back(r + (i - here) * stride);
            ranks = std::move(more);
        }
        stride *= a.size;
    }
    return ranks;
}

namespace {

// How a section of a dim is cut.
struct Cut {
    int64_t local = 0;             // indices that every part has memory for
    int64_t offset = 0, size = 0;  // what this part holds
};

Cut cut(const Mesh& mesh, int rank, const Shard& shard, const Shape& global, std::string_view name) {
    const int64_t parts = mesh.size(shard.axes), section = global[shard.dim] / shard.sections;
    const int64_t units = ceil_div(section, shard.grain);
    check<UsageError>(section * shard.sections == global[shard.dim], name, " ", global, ": dim ", shard.dim, " has no ",
                      shard.sections, " equal sections");
    if (parts == 1 && !shard.padded) return {section, 0, section};
    const bool divides = units * shard.grain == section && units % parts == 0;
    if (!shard.padded && !divides)  // a text for each parameter would be a tenth of a rehearsal
        throw UsageError(concat(name, " ", global, ": dim ", shard.dim, " has ", section * shard.sections,
                                " values to cut over ", parts, " ranks of axis ", name_of(shard.axes),
                                "; the axis must divide the size",
                                shard.grain > 1 ? concat(" in steps of ", shard.grain) : ""));
    const int64_t local = ceil_div(units, parts) * shard.grain;
    const int64_t first = std::min(section, local * mesh.coordinate(rank, shard.axes));
    return {local, first, std::min(local, section - first)};
}

}  // namespace

Part part_of(const Mesh& mesh, int rank, const Shape& global, const Placement& placement, std::string_view name) {
    Part part{global, {}};
    Block block = whole_block(global);
    int sections = 1;
    Axes used;
    for (const Shard& s : placement) {
        check(s.dim >= 0 && s.dim < global.rank(), name, ": shard of dim ", s.dim, " of ", global);
        if (block.sizes[s.dim] != global[s.dim] || !(used & s.axes).empty())
            throw Error(concat(name, ": dim ", s.dim, " or axis ", name_of(s.axes), " is cut twice"));
        check(s.dim == 0 || (s.sections == 1 && !s.padded), name, ": only dim 0 may have sections or padding");
        used = used | s.axes;
        sections *= s.sections;
        const Cut c = cut(mesh, rank, s, global, name);
        part.shape[s.dim] = c.local * s.sections;
        block.offset[s.dim] = c.offset;
        block.sizes[s.dim] = c.size;
    }
    for (int s = 0; s < sections; ++s) {
        if (block.numel() > 0 || global.numel() == 0)
            part.blocks.push_back({block, s * (part.shape.numel() / sections)});
        if (sections > 1) block.offset[0] += global[0] / sections;
    }
    return part;
}

}  // namespace tutti::mesh
