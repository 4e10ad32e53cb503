// kernels/cpu/isa/dropout.cpp: y = x / (1 - p) where kept, else 0, with the mask of base/philox.h bit for bit.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"
#include "tutti/kernels/cpu/isa/philox_words.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

template <class T>
void drop_row(const Dropout& d, uint64_t first_index, const T* x, T* y, int64_t n) {
    alignas(64) uint32_t words[kWordsMade];
    const Vec probability = broadcast(d.probability);
    const Vec factor = broadcast(static_cast<float>(1 / (1 - static_cast<double>(d.probability))));
    int64_t column = 0;
    while (column < n) {
        const uint64_t index = first_index + static_cast<uint64_t>(column);
        const int64_t offset = static_cast<int64_t>(index % 4);  // within a block; 0 after the first chunk
        const int64_t count = smaller(n - column, kWordsMade - offset);
        philox_words(d.key, index / 4, offset + count, words);
        const uint32_t* row_words = words + offset;
        for_vectors(0, count, [=](int64_t i, auto part) {
            const Vec chance = load_uniform(row_words + i, part);
            store(zero_unless(chance >= probability, load(x + column + i, part) * factor), y + column + i, part);
        });
        column += count;
    }
}

void dropout(const Stream& stream, View x, const Dropout& d, View y) {
    const int64_t width = columns(x);
    with_type(x.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int64_t first = index_at(d.row_index, n) * d.columns_total + d.column_offset;
                drop_row(d, static_cast<uint64_t>(first), x.as<T>() + n * width, y.as<T>() + n * width, width);
            }
        });
    });
}

}  // namespace

void fill_dropout(KernelTable& table) { table.dropout = dropout; }

}  // namespace tutti::kernels::TUTTI_ISA
