#include "tutti/mesh/mesh.h"

namespace tutti::mesh {

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
    for (const Axis& axis : axes_) {
        check<UsageError>(axis.size >= 1, "mesh axis ", axis.name, " must have one rank or more, got ", axis.size);
        size_ *= axis.size;
    }
}

const Axis* Mesh::find(std::string_view name, int& stride) const {
    stride = 1;
    for (const Axis& axis : axes_) {
        if (axis.name == name) return &axis;
        stride *= axis.size;
    }
    return nullptr;
}

int Mesh::size(std::string_view name) const {
    int stride;
    const Axis* axis = find(name, stride);
    return axis ? axis->size : 1;
}

int Mesh::coordinate(int rank, std::string_view name) const {
    check(rank >= 0 && rank < size_, "rank ", rank, " of a mesh of ", size_);
    int stride;
    const Axis* axis = find(name, stride);
    return axis ? rank / stride % axis->size : 0;
}

std::vector<int> Mesh::group(int rank, std::string_view name) const {
    int stride;
    const Axis* axis = find(name, stride);
    if (axis == nullptr) return {rank};
    const int first = rank - coordinate(rank, name) * stride;
    std::vector<int> ranks;
    for (int i = 0; i < axis->size; ++i) ranks.push_back(first + i * stride);
    return ranks;
}

namespace {

// Cuts one section of a dim by every axis that shards it; the first axis cuts coarsest.
struct Cut {
    int64_t offset = 0, size = 0;
};

Cut cut(const Mesh& mesh, int rank, int dim, int64_t section, const Placement& placement, const Shape& global,
        std::string_view name) {
    Cut part{0, section};
    for (const Shard& shard : placement) {
        if (shard.dim != dim) continue;
        const int ranks = mesh.size(shard.axis);
        check<UsageError>(part.size % ranks == 0, name, " ", global, ": dim ", dim, " has ", part.size,
                          " values to cut over ", ranks, " ranks of axis ", shard.axis,
                          "; the axis must divide the size");
        part.size /= ranks;
        part.offset += part.size * mesh.coordinate(rank, shard.axis);
    }
    return part;
}

}  // namespace

std::vector<Block> local_blocks(const Mesh& mesh, int rank, const Shape& global, const Placement& placement,
                                std::string_view name) {
    int sectioned = -1, sections = 1;
    for (const Shard& shard : placement) {
        check(shard.dim >= 0 && shard.dim < global.rank(), name, ": shard of dim ", shard.dim, " of ", global);
        if (shard.sections == 1) continue;
        check(sectioned < 0, name, ": only one dim may have sections");
        check<UsageError>(global[shard.dim] % shard.sections == 0, name, " ", global, ": dim ", shard.dim, " has no ",
                          shard.sections, " equal sections");
        sectioned = shard.dim;
        sections = shard.sections;
    }
    std::vector<Block> blocks;
    for (int s = 0; s < sections; ++s) {
        Block block;
        for (int dim = 0; dim < global.rank(); ++dim) {
            const bool here = dim == sectioned;
            const int64_t section = here ? global[dim] / sections : global[dim];
            const Cut part = cut(mesh, rank, dim, section, placement, global, name);
            block.offset.push_back(part.offset + (here ? s * section : 0));
            block.sizes.push_back(part.size);
            block.local.push_back(here ? s * part.size : 0);
        }
        blocks.push_back(block);
    }
    return blocks;
}

Shape local_shape(const Mesh& mesh, const Shape& global, const Placement& placement, std::string_view name) {
    const std::vector<Block> blocks = local_blocks(mesh, 0, global, placement, name);
    Shape shape = blocks.front().sizes;
    for (int dim = 0; dim < shape.rank(); ++dim) shape[dim] += blocks.back().local[dim];
    return shape;
}

}  // namespace tutti::mesh
