// kernels/cpu/isa/random.cpp: standard normal numbers and the mask of dropout, by global index.
#include "tutti/base/philox.h"
#include "tutti/kernels/cpu/isa/parts.h"
#include "tutti/kernels/cpu/isa/random_words.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// y[j] = std * normal(key, first + j). Flattened: box_muller must not remain as a function of this instruction set.
[[gnu::flatten]] void draw_row(RandomKey key, float std, uint64_t first, float* y, int64_t n) {
    alignas(64) uint32_t words[kWordsMade];
    alignas(64) float normals[kWordsMade];
    int64_t done = 0;
    while (done < n) {
        const uint64_t index = first + static_cast<uint64_t>(done);
        const int64_t offset = static_cast<int64_t>(index % 4);  // within a block; 0 after the first chunk
        const int64_t count = smaller(n - done, kWordsMade - offset);
        philox_words(key, index / 4, offset + count, words);
        // Whole batches: a loop of constant length, which the compiler turns into vectors.
        for (int64_t batch = 0; batch < offset + count; batch += kWordBatch)
            for (int64_t i = batch; i < batch + kWordBatch; i += 2)
                box_muller(words[i], words[i + 1], normals[i], normals[i + 1]);
        const Vec factor = broadcast(std);
        for_vectors(0, count, [&](int64_t i, auto part) {
            store(load(normals + offset + i, part) * factor, y + done + i, part);
        });
        done += count;
    }
}

void normal(const Stream& stream, const Normal& d) {
    const int64_t width = columns(d.y);
    parallel_for(stream, rows(d.y), row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            draw_row(d.key, d.std, static_cast<uint64_t>(d.first + r * d.row_step),
                     d.y.as<float>() + r * stride(d.y, 0), width);
    });
}

// y = x / (1 - probability) where kept, else 0.
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
    with_type(x.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int64_t first = index_at(d.row_index, n) * d.columns_total + d.column_offset;
                drop_row(d, static_cast<uint64_t>(first), x.as<T>() + n * width, y.as<T>() + n * width, width);
            }
        });
    });
}

}  // namespace

void fill_random(KernelTable& table) {
    table.normal = normal;
    table.dropout = dropout;
}

}  // namespace tutti::kernels::TUTTI_ISA
