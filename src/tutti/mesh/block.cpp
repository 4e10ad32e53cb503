#include "tutti/mesh/block.h"

#include <algorithm>

namespace tutti::mesh {

namespace {

Shape zeros(int dims) {
    Shape shape;
    for (int i = 0; i < dims; ++i) shape.push_back(0);
    return shape;
}

int64_t flat(const Shape& shape, const Shape& index) {
    int64_t position = 0;
    for (int i = 0; i < shape.rank(); ++i) position = position * shape[i] + index[i];
    return position;
}

// Cuts ranges of one tensor into blocks, dim by dim.
class RangeCutter {
  public:
    explicit RangeCutter(const Shape& shape) : shape_(shape) {}

    // [begin, end) counts from the first element of the subtensor at `at`, whose dims from `dim` on are free.
    void cut(int dim, Block at, int64_t begin, int64_t end) {
        if (begin == end) return;
        if (dim == shape_.rank()) return blocks.push_back(at);
        int64_t row = 1;  // elements
        for (int i = dim + 1; i < shape_.rank(); ++i) row *= shape_[i];
        at.sizes[dim] = 1;
        int64_t first = begin / row;
        const int64_t last = end / row;
        const auto part_of_row = [&](int64_t index, int64_t from, int64_t to) {
            Block inside = at;
            inside.offset[dim] += index;
            cut(dim + 1, inside, from, to);
        };
        if (begin % row != 0) {
            const bool ends_here = first == last;
            part_of_row(first, begin % row, ends_here ? end % row : row);
            if (ends_here) return;
            ++first;
        }
        if (first < last) {
            Block rows = at;
            rows.offset[dim] += first;
            rows.sizes[dim] = last - first;
            blocks.push_back(rows);
        }
        if (end % row != 0) part_of_row(last, 0, end % row);
    }

    std::vector<Block> blocks;

  private:
    const Shape& shape_;
};

// The position of the first element of `part` in the values of `block`.
int64_t position_in(const Block& block, const Block& part) {
    int64_t position = 0;
    for (int i = 0; i < part.offset.rank(); ++i)
        position = position * block.sizes[i] + part.offset[i] - block.offset[i];
    return position;
}

}  // namespace

Block whole_block(const Shape& shape) { return {zeros(shape.rank()), shape}; }

std::vector<Block> blocks_of_range(const Shape& shape, int64_t begin, int64_t end) {
    check(begin >= 0 && begin <= end && end <= shape.numel(), "elements [", begin, ", ", end, ") of a tensor of shape ",
          shape, ", which has ", shape.numel());
    if (shape.numel() == 0) return {whole_block(shape)};
    RangeCutter cutter(shape);
    cutter.cut(0, whole_block(shape), begin, end);
    return std::move(cutter.blocks);
}

Part whole_part(const Shape& shape) { return {shape, {{whole_block(shape), 0}}}; }

std::vector<HeldBlock> blocks_of_range(const Part& part, int64_t begin, int64_t end) {
    check(begin >= 0 && begin <= end && end <= part.shape.numel(), "elements [", begin, ", ", end,
          ") of a part of shape ", part.shape, ", which has ", part.shape.numel());
    std::vector<HeldBlock> held;
    for (const HeldBlock& whole : part.blocks) {
        const auto inside = [&](int64_t at) { return std::clamp<int64_t>(at - whole.begin, 0, whole.block.numel()); };
        int64_t at = std::max(begin, whole.begin) - begin;
        for (Block& block : blocks_of_range(whole.block.sizes, inside(begin), inside(end))) {
            for (int i = 0; i < block.offset.rank(); ++i) block.offset[i] += whole.block.offset[i];
            held.push_back({block, at});
            at += block.numel();
        }
    }
    return held;
}

Block intersection(const Block& a, const Block& b) {
    Block both = a;
    for (int i = 0; i < a.offset.rank(); ++i) {
        both.offset[i] = std::max(a.offset[i], b.offset[i]);
        const int64_t end = std::min(a.offset[i] + a.sizes[i], b.offset[i] + b.sizes[i]);
        both.sizes[i] = std::max<int64_t>(0, end - both.offset[i]);
    }
    return both;
}

void for_each_run(const Block& part, const Block& a, const Block& b,
                  const std::function<void(int64_t, int64_t, int64_t)>& run) {
    int dim = part.sizes.rank();  // the dims from here on are one run
    int64_t length = 1;
    bool whole = true;
    while (dim > 0 && whole) {
        --dim;
        length *= part.sizes[dim];
        whole = part.sizes[dim] == a.sizes[dim] && part.sizes[dim] == b.sizes[dim];
    }
    Block row = part;
    int64_t rows = 1;
    for (int i = 0; i < dim; ++i) rows *= part.sizes[i];
    for (int64_t index = 0; index < rows; ++index) {
        int64_t rest = index;
        for (int i = dim - 1; i >= 0; rest /= part.sizes[i], --i) row.offset[i] = part.offset[i] + rest % part.sizes[i];
        run(position_in(a, row), position_in(b, row), length);
    }
}

int64_t flat_begin(const Shape& shape, const Block& block) { return flat(shape, block.offset); }

int64_t flat_end(const Shape& shape, const Block& block) {
    Shape last = block.offset;
    for (int i = 0; i < last.rank(); ++i) last[i] += block.sizes[i] - 1;
    return flat(shape, last) + 1;
}

bool lies_in(const Shape& shape, const Block& block) {
    if (block.offset.rank() != shape.rank() || block.sizes.rank() != shape.rank()) return false;
    for (int i = 0; i < shape.rank(); ++i) {
        const int64_t offset = block.offset[i], size = block.sizes[i];
        if (offset < 0 || size < 0 || offset > shape[i] || size > shape[i] - offset) return false;
    }
    return true;
}

std::string tiling_problem(const Shape& shape, const std::vector<Block>& blocks) {
    std::vector<const Block*> sorted;
    int64_t held = 0;
    for (const Block& block : blocks) {
        if (block.numel() == 0) continue;
        sorted.push_back(&block);
        held += block.numel();
    }
    std::sort(sorted.begin(), sorted.end(),
              [&](const Block* a, const Block* b) { return flat_begin(shape, *a) < flat_begin(shape, *b); });
    // Ranges of the flattened tensor overlap only with the next range; parts of columns alternate row by row.
    for (size_t i = 0; i < sorted.size(); ++i)
        for (size_t j = i + 1; j < sorted.size(); ++j) {
            if (flat_begin(shape, *sorted[j]) >= flat_end(shape, *sorted[i])) break;
            const Block both = intersection(*sorted[i], *sorted[j]);
            if (both.numel() > 0)
                return concat("the blocks ", sorted[i]->sizes, " at ", sorted[i]->offset, " and ", sorted[j]->sizes,
                              " at ", sorted[j]->offset, " overlap");
        }
    if (held != shape.numel()) return concat("its blocks hold ", held, " of its ", shape.numel(), " elements");
    return "";
}

}  // namespace tutti::mesh
