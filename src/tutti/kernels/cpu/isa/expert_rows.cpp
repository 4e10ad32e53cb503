// kernels/cpu/isa/expert_rows.cpp: permutation of rows to experts and back, at the speed of memory.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

void gather_rows(const Stream& stream, View x, View rows, View y) {
    const int64_t width = columns(y), bytes = width * size_of(y.dtype);
    const char* const from = x.as<const char>();
    char* const to = y.as<char>();
    parallel_for(stream, numel(rows), row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
            const int64_t row = rows.as<const int32_t>()[m];
            if (row < 0)
                __builtin_memset(to + m * bytes, 0, static_cast<size_t>(bytes));
            else
                __builtin_memcpy(to + m * bytes, from + row * bytes, static_cast<size_t>(bytes));
        }
    });
}

// Vectors [c, c + V kLanes) of a row of y, or a part of one vector.
template <int V, class T>
[[gnu::always_inline]] inline void combine(const T* x, int64_t width, const int32_t* rows, const float* weights,
                                           int64_t k, int64_t c, T* y, auto part) {
    Vec sums[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[v] = zero();
    for (int64_t j = 0; j < k; ++j) {
        if (rows[j] < 0) continue;
        const Vec weight = broadcast(weights == nullptr ? 1.0f : weights[j]);
        const T* from = x + rows[j] * width + c;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[v] = fma(weight, load(from + v * kLanes, part), sums[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store_flushed(sums[v], y + c + v * kLanes, part);
}

void combine_rows(const Stream& stream, View x, View rows, View weights, View y) {
    constexpr int kWide = 8;
    const int64_t N = size(rows, 0), k = size(rows, 1), width = columns(y);
    with_type(y.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, N, row_grain(k * width), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int32_t* from = rows.as<const int32_t>() + n * k;
                const float* w = weights.data == nullptr ? nullptr : weights.as<const float>() + n * k;
                T* to = y.as<T>() + n * width;
                int64_t c = 0;
                for (; c + kWide * kLanes <= width; c += kWide * kLanes)
                    combine<kWide>(x.as<const T>(), width, from, w, k, c, to, Full{});
                for_vectors(c, width,
                            [&](int64_t i, auto part) { combine<1>(x.as<const T>(), width, from, w, k, i, to, part); });
            }
        });
    });
}

// Sets dx to zero, unless `rows` names every row of dx.
void clear_unnamed(const Stream& stream, const View& rows, const View& dx) {
    const int64_t count = numel(rows), width = columns(dx), height = size(dx, 0);
    int64_t named = 0;
    for (int64_t i = 0; i < count; ++i) named += rows.as<const int32_t>()[i] >= 0;
    if (named == height) return;
    const int64_t bytes = width * size_of(dx.dtype);
    parallel_for(stream, height, row_grain(width), [&](int64_t begin, int64_t end) {
        __builtin_memset(dx.as<char>() + begin * bytes, 0, static_cast<size_t>((end - begin) * bytes));
    });
}

void combine_rows_backward(const Stream& stream, View dy, View x, View rows, View weights, View dx, View dweights) {
    const int64_t N = size(rows, 0), k = size(rows, 1), width = columns(dx);
    clear_unnamed(stream, rows, dx);
    with_type(dx.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, N * k, row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t row = rows.as<const int32_t>()[i];
                float product = 0;
                if (row >= 0) {
                    const Vec weight = broadcast(weights.data == nullptr ? 1.0f : weights.as<const float>()[i]);
                    const T *d = dy.as<const T>() + i / k * width, *value = x.as<const T>() + row * width;
                    T* to = dx.as<T>() + row * width;
                    const auto scaled = [&](int64_t c, auto part) {
                        const Vec gradient = load(d + c, part);
                        store_flushed(weight * gradient, to + c, part);
                        return gradient;
                    };
                    if (dweights.data != nullptr)
                        product = row_sum(
                            width, [&](int64_t c, auto part) { return scaled(c, part) * load(value + c, part); });
                    else
                        for_vectors(0, width, scaled);
                }
                if (dweights.data != nullptr) dweights.as<float>()[i] = product;
            }
        });
    });
}

}  // namespace

void fill_expert_rows(KernelTable& table) {
    table.gather_rows = gather_rows;
    table.combine_rows = combine_rows;
    table.combine_rows_backward = combine_rows_backward;
}

}  // namespace tutti::kernels::TUTTI_ISA
