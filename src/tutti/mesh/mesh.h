// mesh/mesh.h: the named grid of ranks, and the part of a tensor that each rank holds. Numbers only: no communication,
// no tensors.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/mesh/block.h"

namespace tutti::mesh {

// Axes of the grid, innermost first: consecutive ranks are neighbours along the first axis. Tensor parallelism is two
// axes, kTp: a model with fewer key and value heads than tensor-parallel ranks cuts its key and value weights by
// `tp_part` alone, so that the ranks along `tp_copy` hold the same heads, and its other weights by both axes. Context
// parallelism is two axes, kCp: ranks along `cp_ulysses` exchange heads for tokens, ranks along `cp_ring` exchange keys
// and values.
//
// The experts of a mixture are laid out on a second grid over the same ranks: etp, ep and edp divide the ranks that tp,
// cp and dp_shard divide; dp_replicate and pp are in both (parallel folding, arXiv 2504.14960). `ep` cuts the experts,
// `etp` cuts each expert, and ranks along `edp` hold the same experts.
enum class Axis : uint8_t { tp_copy, tp_part, cp_ulysses, cp_ring, dp_shard, etp, ep, edp, dp_replicate, pp };
inline constexpr int kAxes = 10;
std::string_view name_of(Axis axis);

// A set of axes.
class Axes {
  public:
    constexpr Axes() = default;
    constexpr Axes(Axis axis) : bits_(1u << static_cast<unsigned>(axis)) {}
    constexpr Axes(std::initializer_list<Axes> parts) {
        for (Axes part : parts) bits_ |= part.bits_;
    }
    constexpr bool empty() const { return bits_ == 0; }
    constexpr bool contains(Axes other) const { return (bits_ & other.bits_) == other.bits_; }
    constexpr bool operator==(const Axes&) const = default;
    constexpr auto operator<=>(const Axes&) const = default;
    friend constexpr Axes operator|(Axes a, Axes b) { return from(a.bits_ | b.bits_); }
    friend constexpr Axes operator&(Axes a, Axes b) { return from(a.bits_ & b.bits_); }
    friend constexpr Axes operator-(Axes a, Axes b) { return from(a.bits_ & ~b.bits_); }

  private:
    static constexpr Axes from(unsigned bits) {
        Axes axes;
        axes.bits_ = bits;
        return axes;
    }
    unsigned bits_ = 0;
};
inline constexpr Axes kTp{Axis::tp_copy, Axis::tp_part}, kCp{Axis::cp_ulysses, Axis::cp_ring},
    kDp{Axis::dp_shard, Axis::dp_replicate};
inline constexpr Axes kExpertParallel{Axis::etp, Axis::ep}, kExpertData{Axis::edp, Axis::dp_replicate};
std::string name_of(Axes axes);  // "dp", "dp_shard", "cp+dp_shard"

struct AxisSize {
    Axis axis;
    int size = 1;
};

// A mixed-radix grid: rank = sum of coordinate[i] * product of the sizes before i. A mesh may have a second grid over
// the same ranks; a set of axes belongs to one of the two.
class Mesh {
  public:
    Mesh() = default;  // one rank, no axes
    explicit Mesh(std::vector<AxisSize> axes, std::vector<AxisSize> second = {});

    int size() const { return size_; }
    const std::vector<AxisSize>& axes() const { return axes_; }           // of the first grid
    const std::vector<AxisSize>& second_axes() const { return second_; }  // of the second grid; empty: none
    // size(): product of the sizes of the axes; coordinate(): place in group(). Error for axes that no grid has.
    int size(Axes axes) const;
    int coordinate(int rank, Axes axes) const;
    // The ranks that differ from `rank` along these axes only, including `rank`, ascending.
    std::vector<int> group(int rank, Axes axes) const;

  private:
    const std::vector<AxisSize>& grid_of(Axes axes) const;
    std::vector<AxisSize> axes_, second_;
    int size_ = 1;
};

// A dim is cut into as many contiguous parts as the axes have ranks.
struct Shard {
    Axes axes;
    int dim = 0;
    int64_t grain = 1;  // indices that stay together: head_dim for a dim of heads
    int sections = 1;   // > 1, for dim 0: a concatenation of equal sections (q | k | v), each of which is cut
    // For dim 0: parts may be unequal. The memory of all parts, even a single one, has equal size in whole grains; the
    // rest is padding.
    bool padded = false;
};
// Other axes replicate. At most one Shard for a dim.
using Placement = std::vector<Shard>;

// The part of a tensor of shape `global` on `rank`. UsageError, naming the tensor, when a dim cannot be cut this way.
Part part_of(const Mesh& mesh, int rank, const Shape& global, const Placement& placement, std::string_view name);

}  // namespace tutti::mesh
