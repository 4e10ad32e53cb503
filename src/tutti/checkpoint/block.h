// checkpoint/block.h: the unit of every checkpoint: a rectangle of a global tensor. Ranks hold ranges of flattened
// tensors or parts of some dims; both are lists of rectangles, so any layout can be read under any other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/shape.h"

namespace tutti::checkpoint {

struct Block {
    Shape offset, sizes;  // equally many dims

    int64_t numel() const { return sizes.numel(); }
    bool operator==(const Block&) const = default;
};

Block whole_block(const Shape& shape);

// Elements [begin, end) of the flattened tensor as blocks, in the order of the elements; each block's own elements lie
// side by side in the flattened tensor. At most 2 N - 1 of them for N dims: rows cut at either end of every dim but
// the last, and the whole rows between. A tensor without elements is one block, so that it is not lost.
std::vector<Block> blocks_of_range(const Shape& shape, int64_t begin, int64_t end);

Block intersection(const Block& a, const Block& b);  // numel() 0 where they do not meet

// Position of the block's first element in the flattened tensor, and of its last one, plus 1. For blocks with elements.
int64_t flat_begin(const Shape& shape, const Block& block);
int64_t flat_end(const Shape& shape, const Block& block);

// Whether the block lies in the tensor. Its numbers may be anything.
bool lies_in(const Shape& shape, const Block& block);

// Why these blocks, which lie in the tensor, do not hold each of its elements exactly once; "" when they do.
std::string tiling_problem(const Shape& shape, const std::vector<Block>& blocks);

// The name of a block in a file: "wte.weight" for all of the tensor, else "wte.weight@12,0", with its offset. No tensor
// has kBlockSeparator in its name.
constexpr char kBlockSeparator = '@';
std::string entry_name(std::string_view tensor, const Shape& shape, const Block& block);

std::string comma_separated(const Shape& numbers);  // "12,0"

}  // namespace tutti::checkpoint
