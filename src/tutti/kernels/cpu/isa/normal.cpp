// kernels/cpu/isa/normal.cpp: standard normal numbers by index, the bits of base/philox.h.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"
#include "tutti/kernels/cpu/isa/philox_words.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// y[j] = std * normal(key, first + j). Flat: box_muller must not stay behind as a function of this instruction set.
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

}  // namespace

void fill_normal(KernelTable& table) { table.normal = normal; }

}  // namespace tutti::kernels::TUTTI_ISA
