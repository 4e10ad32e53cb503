// mesh/block.h: rectangles of a global tensor, and their places in a rank's memory. Parts of dims (tensor parallelism),
// ranges of flattened tensors (ZeRO) and ranges of parts are all lists of rectangles, so that one description covers
// initial values, optimizer state, checkpoints and files of any layout, and any layout can be read under any other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/base/shape.h"

namespace tutti::mesh {

struct Block {
    Shape offset, sizes;  // equally many dims

    int64_t numel() const { return sizes.numel(); }
    bool operator==(const Block&) const = default;
};

Block whole_block(const Shape& shape);

// A rectangle in a rank's memory, where its elements are contiguous from element `begin` on.
struct HeldBlock {
    Block block;
    int64_t begin = 0;

    bool operator==(const HeldBlock&) const = default;
};

// A rank's part of a global tensor: memory of this shape, row after row, and the rectangles in the memory. Other
// elements are padding.
struct Part {
    Shape shape;
    std::vector<HeldBlock> blocks;
};
Part whole_part(const Shape& shape);
// The blocks in elements [begin, end) of the part's flattened memory; positions count from `begin`.
std::vector<HeldBlock> blocks_of_range(const Part& part, int64_t begin, int64_t end);

// Elements [begin, end) of the flattened tensor as blocks, in the order of the elements; each block is contiguous in
// the flattened tensor. At most 2 N - 1 blocks for N dims: rows cut at either end of every dim but the last, and the
// whole rows between. A tensor without elements is one block, so that the tensor is not lost.
std::vector<Block> blocks_of_range(const Shape& shape, int64_t begin, int64_t end);

Block intersection(const Block& a, const Block& b);  // numel() 0 for disjoint blocks

// Calls run(position in a, position in b, elements) for each stretch of `part` that is contiguous in the values of both
// blocks, in ascending order. `part` lies in both.
void for_each_run(const Block& part, const Block& a, const Block& b,
                  const std::function<void(int64_t, int64_t, int64_t)>& run);

// Position of the block's first element in the flattened tensor, and of its last element plus 1. For nonempty blocks.
int64_t flat_begin(const Shape& shape, const Block& block);
int64_t flat_end(const Shape& shape, const Block& block);

// Whether the block lies in the tensor, for any values in `block`.
bool lies_in(const Shape& shape, const Block& block);

// Why these blocks, which lie in the tensor, do not cover each element exactly once; "" when they do.
std::string tiling_problem(const Shape& shape, const std::vector<Block>& blocks);

}  // namespace tutti::mesh
