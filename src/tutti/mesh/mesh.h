// mesh/mesh.h: the named grid of ranks, and how a tensor lies on it. Numbers only: no communication, no tensors.
// Rank order, innermost axis first: tp, cp, dp_shard, dp_replicate, pp (docs/design.md, section 4).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/shape.h"

namespace tutti::mesh {

struct Axis {
    std::string name;
    int size = 1;
};

// A mixed-radix grid: rank = sum of coordinate[i] * product of the sizes before i.
class Mesh {
  public:
    Mesh() = default;  // one rank
    explicit Mesh(std::vector<Axis> axes);

    int size() const { return size_; }
    const std::vector<Axis>& axes() const { return axes_; }
    int size(std::string_view axis) const;                  // 1 for an axis that the mesh lacks
    int coordinate(int rank, std::string_view axis) const;  // 0 likewise
    // The ranks that differ from `rank` in this axis only, by coordinate; `rank` itself included.
    std::vector<int> group(int rank, std::string_view axis) const;

  private:
    const Axis* find(std::string_view axis, int& stride) const;
    std::vector<Axis> axes_;
    int size_ = 1;
};

// A tensor dim is cut into as many contiguous parts as the axis has ranks. `sections` > 1: the dim is a concatenation
// of equal sections (q | k | v of a fused projection), each of which is cut.
struct Shard {
    std::string axis;
    int dim = 0;
    int sections = 1;
};
// Axes that are not named replicate. Order matters when one dim is cut by several axes: the first cuts coarsest.
using Placement = std::vector<Shard>;

// One contiguous block of the global tensor: sizes.numel() values starting at `offset` in each dim.
struct Block {
    Shape offset;  // in the global tensor
    Shape sizes;
    Shape local;  // where the block begins in the local tensor
};

// What `rank` holds of a tensor of shape `global`: one block, or one per section. Throws UsageError when a dim does not
// divide, naming the parameter.
std::vector<Block> local_blocks(const Mesh& mesh, int rank, const Shape& global, const Placement& placement,
                                std::string_view name);
Shape local_shape(const Mesh& mesh, const Shape& global, const Placement& placement, std::string_view name);

}  // namespace tutti::mesh
