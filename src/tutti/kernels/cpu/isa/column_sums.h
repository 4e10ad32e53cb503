// kernels/cpu/isa/column_sums.h: sums over the rows of a matrix into f32 gradients of parameters: biases and norm
// weights. The columns are divided over the threads, so the order of each sum depends on the number of rows only.
#pragma once

#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

// The sum of column c belongs to p[k][c * step].
template <int K>
struct Targets {
    float* p[K];
    int64_t step = 1;
};

template <int K>
[[gnu::always_inline]] inline void add_to(const Targets<K>& targets, int k, int64_t c, const float* sums, auto part) {
    if (targets.step == 1) {
        float* target = targets.p[k] + c;
        return store(load(target, part) + load(sums, Full{}), target, part);
    }
    for (int64_t i = 0; i < lanes_of(part); ++i) targets.p[k][(c + i) * targets.step] += sums[i];
}

// targets[k][c] += sum over rows n of value(n, c, part).v[k]
//
// Eight rows at a time, added as a tree: an eighth of the loads and stores of the sums, eight streams for the
// prefetcher, and an eighth of the rounding errors. Blocks of 256 rows are summed before they are added to the target,
// again to reduce rounding errors.
template <int K, class Value>
void add_column_sums(const Stream& stream, int64_t row_count, int64_t column_count, Targets<K> targets, Value value) {
    // K tiles of sums are 8 to 16 KB: L1 holds them; 512 was 25 % slower.
    constexpr int64_t kTile = K <= 2 ? 2048 : 1024, kBlock = 256;
    const int64_t vectors = (column_count + kLanes - 1) / kLanes;
    const int64_t grain = kGrain / larger(row_count * kLanes, 1) + 1;
    parallel_for(stream, vectors, grain, [&](int64_t begin, int64_t end) {
        const int64_t last = smaller(column_count, end * kLanes);
        alignas(64) float sums[K][kTile];
        for (int64_t tile = begin * kLanes; tile < last; tile += kTile) {
            const int64_t width = smaller(kTile, last - tile);
            for (int64_t block = 0; block < row_count; block += kBlock) {
                const int64_t block_end = smaller(row_count, block + kBlock);
                const auto add_rows = [&](auto group_sum) {
                    for_vectors(0, width, [&](int64_t c, auto part) {
                        const Vecs<K> group = group_sum(tile + c, part);
                        for (int k = 0; k < K; ++k) store(load(&sums[k][c], Full{}) + group.v[k], &sums[k][c], Full{});
                    });
                };
                for (int k = 0; k < K; ++k)
                    for (int64_t c = 0; c < width; c += kLanes) store(zero(), &sums[k][c], Full{});
                int64_t n = block;
                for (; n + 8 <= block_end; n += 8)
                    add_rows([&](int64_t c, auto part) {
                        return ((value(n, c, part) + value(n + 1, c, part)) +
                                (value(n + 2, c, part) + value(n + 3, c, part))) +
                               ((value(n + 4, c, part) + value(n + 5, c, part)) +
                                (value(n + 6, c, part) + value(n + 7, c, part)));
                    });
                for (; n < block_end; ++n) add_rows([&](int64_t c, auto part) { return value(n, c, part); });
                for_vectors(0, width, [&](int64_t c, auto part) {
                    for (int k = 0; k < K; ++k) add_to(targets, k, tile + c, &sums[k][c], part);
                });
            }
        }
    });
}

}  // namespace tutti::kernels::TUTTI_ISA
