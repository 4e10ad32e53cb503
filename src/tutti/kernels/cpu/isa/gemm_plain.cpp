// kernels/cpu/isa/gemm_plain.cpp: the matrix product without oneDNN, in f32 whatever the inputs are. Used for bf16 on
// machines without AVX-512 and by builds with TUTTI_ONEDNN=OFF. Below: tile_product.h. Called by: cpu/gemm*.cpp.
//
// One task makes one tile of c, over all of K, in blocks of kDepth that are packed as floats: a by rows as it is
// stored, b in panels of one block's width. The tile leaves once, through bias, old c and rounding. Tiles are cut by M,
// N and the threads, but the sum of an element is taken in the same order for any cut: bits do not depend on threads.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/tile_product.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

// a, b and c tiles (192 + 256 + 192 KB, on the stack) stay in an L2 of 1 MB.
constexpr int64_t kRows = 192, kWidth = 256, kDepth = 256;
constexpr int64_t kPanel = kVectors * kLanes;

struct Tiles {
    alignas(64) float a[kRows * kDepth];
    alignas(64) float b[kDepth * kWidth];
    alignas(64) float c[kRows * kWidth];
    alignas(64) float rows[kPanel * kDepth];  // of a transposed b, widened, before they are turned
};

struct Range {
    int64_t begin, size;
};

template <class T>
void copy_row(const T* x, int64_t n, float* y) {
    for_vectors(0, n, [&](int64_t i, auto part) { store(load(x + i, part), y + i, part); });
}

// (rows, depth) of op(a), stored as a is: (row, k) or (k, row).
template <class T>
Left<float> pack_a(const Gemm& g, Range m, Range k, float* y) {
    const T* a = g.a.as<const T>();
    const int64_t stride = g.a.strides[0];
    if (g.transpose_a) {
        for (int64_t i = 0; i < k.size; ++i) copy_row(a + (k.begin + i) * stride + m.begin, m.size, y + i * kRows);
        return {y, 1, kRows};
    }
    for (int64_t i = 0; i < m.size; ++i) copy_row(a + (m.begin + i) * stride + k.begin, k.size, y + i * kDepth);
    return {y, kDepth, 1};
}

// (depth, width) of op(b) as panels (depth, kPanel), the last one filled up with zeros.
template <class T>
void pack_b(const Gemm& g, Range k, Range n, Tiles& tiles) {
    const T* b = g.b.as<const T>();
    const int64_t stride = g.b.strides[0];
    for (int64_t column = 0; column < n.size; column += kPanel) {
        const int64_t width = smaller(kPanel, n.size - column);
        float* panel = tiles.b + column * k.size;
        if (width < kPanel) __builtin_memset(panel, 0, static_cast<size_t>(k.size * kPanel) * sizeof(float));
        if (g.transpose_b) {
            for (int64_t i = 0; i < width; ++i)
                copy_row(b + (n.begin + column + i) * stride + k.begin, k.size, tiles.rows + i * kDepth);
            transpose_words(reinterpret_cast<const uint32_t*>(tiles.rows), kDepth, width, k.size,
                            reinterpret_cast<uint32_t*>(panel), kPanel);
        } else {
            for (int64_t i = 0; i < k.size; ++i)
                copy_row(b + (k.begin + i) * stride + n.begin + column, width, panel + i * kPanel);
        }
    }
}

template <class To, class Bias>
void write_tile(const Gemm& g, Range m, Range n, const float* tile) {
    const Bias* bias = g.bias.as<const Bias>();
    for (int64_t i = 0; i < m.size; ++i) {
        To* c = g.c.as<To>() + (m.begin + i) * g.c.strides[0] + n.begin;
        for_vectors(0, n.size, [&](int64_t j, auto part) {
            Vec sum = load(tile + i * kWidth + j, part);
            if (bias != nullptr) sum = sum + load(bias + n.begin + j, part);
            if (g.accumulate) sum = sum + load(c + j, part);
            store(sum, c + j, part);
        });
    }
}

template <class T>
void make_tile(const Gemm& g, int64_t K, Range m, Range n) {
    Tiles tiles;
    if (K == 0) __builtin_memset(tiles.c, 0, sizeof tiles.c);
    for (int64_t k = 0; k < K; k += kDepth) {
        const Range depth = {k, smaller(kDepth, K - k)};
        const Left<float> a = pack_a<T>(g, m, depth, tiles.a);
        pack_b<T>(g, depth, n, tiles);
        for (int64_t column = 0; column < n.size; column += kPanel)
            tile_product(a, Right<float>{tiles.b + column * depth.size, kPanel}, Product{tiles.c + column, kWidth},
                         m.size, kPanel, depth.size, k > 0);
    }
    const auto write = [&](auto to) {
        with_type(g.bias.dtype, [&](auto bias) {
            write_tile<typename decltype(to)::type, typename decltype(bias)::type>(g, m, n, tiles.c);
        });
    };
    with_type(g.c.dtype, write);
}

}  // namespace

void gemm(const Stream& stream, const Gemm& g) {
    const int64_t M = size(g.c, 0), N = size(g.c, 1), K = g.transpose_a ? size(g.a, 0) : size(g.a, 1);
    if (M == 0 || N == 0) return;
    const int64_t across = (N + kWidth - 1) / kWidth;
    int64_t down = (M + kRows - 1) / kRows;
    while (across * down < stream.threads && M / (down + 1) >= 32) ++down;
    const int64_t rows_of_tile = (M + down - 1) / down;
    parallel_tasks(stream, across * down, [&](int64_t task) {
        const int64_t m = task / across * rows_of_tile, n = task % across * kWidth;
        const Range height = {m, smaller(rows_of_tile, M - m)}, width = {n, smaller(kWidth, N - n)};
        if (height.size <= 0) return;
        with_type(g.a.dtype, [&](auto type) { make_tile<typename decltype(type)::type>(g, K, height, width); });
    });
}

}  // namespace tutti::kernels::TUTTI_ISA
