// kernels/cuda/cross_entropy.cu: loss and gradient of a row by one block: maximum and sum in one pass (Milakov and
// Gimelshein 2018), the gradient in a second pass over cached values: the first ones in shared memory, the rest in the
// L2 cache, which holds the rows of all blocks that run at a time. With a vocabulary in shards, each pass is a kernel.
// Exponentials are powers of two: the instruction takes half the time of expf, and each element needs two.
#include <algorithm>

#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

using Row = Team<16>;
constexpr int kBlocks = 2;  // on a multiprocessor at a time: twice kCacheBytes are in Hopper's 228 KB of shared memory
constexpr int64_t kCacheBytes = 96 << 10;  // of a block, at most: 49152 words in bf16, GPT-2's vocabulary but 1152

enum class Part : uint8_t { whole, partial, finish };

struct CrossEntropyShape {
    int64_t rows, shards;
    int64_t width, stride, words;  // of a row: elements, distance to the next, elements that count
    int64_t cached = 0;            // elements of a row that stay in shared memory, whole packs
    int64_t first_word, vocab;
    float grad_scale;
    float inverse_cap;  // 0: none
    bool gradient;
};

// Statistics of one row over the words of one shard, or over all words.
struct Partial {
    float maximum;
    float sum;     // of exp(x - maximum)
    float target;  // the target's logit
};

// The sums of row n, from partials (shards, 3, rows). The same instructions for shards of every width, and so the same
// bits.
__device__ Partial sum_of_partials(const CrossEntropyShape& s, const float* partials, int64_t n) {
    const auto value = [&](int64_t p, int i) { return partials[(3 * p + i) * s.rows + n]; };
    Partial all{-INFINITY, 0, 0};
    for (int64_t p = 0; p < s.shards; ++p) all.maximum = fmaxf(all.maximum, value(p, 0));
    for (int64_t p = 0; p < s.shards; ++p) {
        all.sum = fmaf(value(p, 1), expf(value(p, 0) - all.maximum), all.sum);
        all.target += value(p, 2);
    }
    return all;
}

template <Part part, int W, class T>
__global__ void __launch_bounds__(Row::kBlockThreads, kBlocks)
    cross_entropy_kernel(CrossEntropyShape s, T* logits, const int32_t* targets, float* partials, float* losses) {
    const int64_t n = Row::row(), target = targets[n], column = target - s.first_word;
    T* const row = logits + n * s.stride;
    // Element v + k of a pack; -infinity in the padding, which adds nothing to the sum.
    const auto hide_padding = [&](int64_t v, float(&x)[W]) {
#pragma unroll
        for (int k = 0; k < W; ++k)
            if (v + k >= s.words) x[k] = -INFINITY;
    };
    // A thread reads only its own writes from shared memory.
    T* const cache = reinterpret_cast<T*>(dynamic_shared());
    const auto write_partial = [&](const Partial& p) {
        if (Row::rank() != 0) return;
        partials[n] = p.maximum;
        partials[s.rows + n] = p.sum;
        partials[2 * s.rows + n] = p.target;
    };
    if (target < 0 || target >= s.vocab) {
        if constexpr (part == Part::partial) return write_partial({-INFINITY, 0, 0});
        if (Row::rank() == 0) losses[n] = target < 0 ? 0 : NAN;  // no such word: a loss that stops the run
        const float zeros[W] = {};
        if (s.gradient) for_columns<Row, W>(s.width, [&](int64_t v) { store<W>(zeros, row + v); });
        return;
    }
    Partial total;
    if constexpr (part == Part::finish) {
        total = sum_of_partials(s, partials, n);
    } else {
        // Read before the barriers of the sums, since the gradient replaces it.
        total.target = column >= 0 && column < s.words ? load_one(row + column) : 0;
        // m = max x, sum = sum exp(x - m) of what this thread has seen; -1e37 stands for nothing yet.
        float m = -1e37f, sum = 0;
        for_columns<Row, W>(s.words, [&](int64_t v) {
            float x[W], largest = m;
            load<W>(row + v, x);
            if (v < s.cached) copy_pack<W>(row + v, cache + v);
            hide_padding(v, x);
#pragma unroll
            for (int k = 0; k < W; ++k) largest = fmaxf(largest, x[k]);
            if (largest > m) {
                sum *= fast_exp2((m - largest) * kLog2e);
                m = largest;
            }
#pragma unroll
            for (int k = 0; k < W; ++k) sum += fast_exp2((x[k] - m) * kLog2e);
        });
        total.maximum = Row::max(m);
        total.sum = Row::sum(sum * fast_exp2((m - total.maximum) * kLog2e));
    }
    if constexpr (part == Part::partial) {
        if (total.sum == 0) total.maximum = -INFINITY;  // no words
        return write_partial(total);
    }
    const float lse = total.maximum + logf(total.sum);
    if (Row::rank() == 0) losses[n] = lse - total.target;
    if (!s.gradient) return;
    for_columns<Row, W>(s.width, [&](int64_t v) {
        float x[W];
        load<W>(part == Part::whole && v < s.cached ? cache + v : row + v, x);
        hide_padding(v, x);
#pragma unroll
        for (int k = 0; k < W; ++k) {
            const float share = v + k < s.words ? x[k] * s.inverse_cap : 0;
            x[k] = s.grad_scale * (fast_exp2((x[k] - lse) * kLog2e) - (v + k == column ? 1.0f : 0.0f)) *
                   (1 - share * share);
        }
        store<W>(x, row + v);
    });
}

template <Part part>
void cross_entropy(const Stream& stream, const CrossEntropy& c) {
    const int64_t N = c.logits.shape[0];
    if (N == 0) return;
    check(c.targets.dtype == DType::i32, "cross_entropy: targets must be i32, got ", c.targets.dtype);
    CrossEntropyShape shape{.rows = N,
                            .shards = part == Part::finish ? c.partials.shape[0] : 1,
                            .width = c.logits.shape[1],
                            .stride = c.logits.stride(0),
                            .words = std::min(c.logits.shape[1], c.vocab - c.first_word),
                            .first_word = c.first_word,
                            .vocab = c.vocab,
                            .grad_scale = c.grad_scale,
                            .inverse_cap = c.cap > 0 ? 1 / c.cap : 0,
                            .gradient = c.gradient};
    with_type(c.logits.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(shape.width, c.logits.data) && shape.stride % kPack<T> == 0;
        Grid grid = grid_of_rows<Row>(N);
        if (part == Part::whole && wide && c.gradient) {
            shape.cached = std::min<int64_t>(kCacheBytes / sizeof(T), shape.words / kPack<T> * kPack<T>);
            grid.shared_bytes = static_cast<size_t>(shape.cached) * sizeof(T);
        }
        launch(wide ? cross_entropy_kernel<part, kPack<T>, T> : cross_entropy_kernel<part, 1, T>, grid, stream, shape,
               c.logits.as<T>(), c.targets.as<const int32_t>(), c.partials.as<float>(), c.losses.as<float>());
    });
}

}  // namespace

void fill_cross_entropy(KernelTable& table) {
    table.cross_entropy = cross_entropy<Part::whole>;
    table.cross_entropy_partial = cross_entropy<Part::partial>;
    table.cross_entropy_finish = cross_entropy<Part::finish>;
}

}  // namespace tutti::kernels::cuda
