// kernels/cpu/isa/embedding.cpp: token embedding: rows of a table by token number, and their gradients; rotary position
// embedding (Su et al. 2021). x of rope may be strided (heads inside a fused projection); the innermost dim is
// contiguous.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

void embedding_forward(const Stream& stream, View tokens, View weight, int64_t first_row, View y) {
    const int64_t height = size(weight, 0), width = columns(weight);
    with_type(weight.dtype, [&](auto weight_type) {
        with_type(y.dtype, [&](auto y_type) {
            const auto* table = weight.as<typename decltype(weight_type)::type>();
            auto* out = y.as<typename decltype(y_type)::type>();
            parallel_for(stream, numel(tokens), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const int64_t row = index_at(tokens, n) - first_row;
                    auto* to = out + n * width;
                    if (row < 0 || row >= height) {
                        for_vectors(0, width, [=](int64_t c, auto part) { store(zero(), to + c, part); });
                        continue;
                    }
                    const auto* from = table + row * width;
                    for_vectors(0, width, [=](int64_t c, auto part) { store(load(from + c, part), to + c, part); });
                }
            });
        });
    });
}

// The columns are divided over threads: each adds all rows in the order of n, and no two write the same place.
void embedding_backward(const Stream& stream, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t height = size(dweight, 0), width = columns(dweight), count = numel(tokens);
    float* table = dweight.as<float>();
    with_type(dy.dtype, [&](auto type) {
        const auto* gradients = dy.as<typename decltype(type)::type>();
        const int64_t vectors = (width + kLanes - 1) / kLanes;
        parallel_for(stream, vectors, row_grain(count * kLanes), [&](int64_t begin, int64_t end) {
            const int64_t first = begin * kLanes, last = smaller(width, end * kLanes);
            for (int64_t n = 0; n < count; ++n) {
                const int64_t row = index_at(tokens, n) - first_row;
                if (row < 0 || row >= height) continue;
                const auto* from = gradients + n * width;
                float* to = table + row * width;
                for_vectors(first, last, [=](int64_t c, auto part) {
                    store(load(to + c, part) + load(from + c, part), to + c, part);
                });
            }
        });
    });
}

// Rotates the pairs (k, k + half) of a head, or the adjacent pairs (2k, 2k + 1).
template <class T>
void rotate_halves(T* x, const float* cosine, const float* sine, int64_t half, float direction) {
    const Vec sign = broadcast(direction);
    for_vectors(0, half, [=](int64_t k, auto part) {
        const Vec c = load(cosine + k, part), s = load(sine + k, part) * sign;
        const Vec first = load(x + k, part), second = load(x + half + k, part);
        store(fma_negative(second, s, first * c), x + k, part);
        store(fma(first, s, second * c), x + half + k, part);
    });
}
template <class T>
void rotate_adjacent(T* x, const float* cosine, const float* sine, int64_t half, float direction) {
    for (int64_t k = 0; k < half; ++k) {
        const auto first = static_cast<float>(x[2 * k]), second = static_cast<float>(x[2 * k + 1]);
        const float c = cosine[k], s = sine[k] * direction;
        x[2 * k] = T(first * c - second * s);
        x[2 * k + 1] = T(second * c + first * s);
    }
}

void rope(const Stream& stream, View x, View positions, View cosines, View sines, bool inverse, bool adjacent) {
    const int64_t heads = size(x, 1), half = size(cosines, 1);
    const float direction = inverse ? -1.0f : 1.0f;
    with_type(x.dtype, [&]<class T>(Type<T>) {
        parallel_for(stream, size(x, 0), row_grain(heads * half * 2), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int64_t position = index_at(positions, n);
                const float* cosine = cosines.as<float>() + position * stride(cosines, 0);
                const float* sine = sines.as<float>() + position * stride(sines, 0);
                for (int64_t h = 0; h < heads; ++h) {
                    T* head = x.as<T>() + n * stride(x, 0) + h * stride(x, 1);
                    (adjacent ? rotate_adjacent<T> : rotate_halves<T>)(head, cosine, sine, half, direction);
                }
            }
        });
    });
}

template <class T>
void sum_heads_of(const Stream& stream, View x, View y) {
    const int64_t H = size(x, 1), D = size(x, 2);
    parallel_for(stream, size(x, 0), row_grain(H * D), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
            const T* in = x.as<T>() + n * stride(x, 0);
            T* out = y.as<T>() + n * D;
            for_vectors(0, D, [&](int64_t d, auto part) {
                Vec sum = load(in + d, part);
                for (int64_t h = 1; h < H; ++h) sum = sum + load(in + h * stride(x, 1) + d, part);
                store(sum, out + d, part);
            });
        }
    });
}
void sum_heads(const Stream& stream, View x, View y) {
    with_type(x.dtype, [&]<class T>(Type<T>) { sum_heads_of<T>(stream, x, y); });
}

}  // namespace

void fill_embedding(KernelTable& table) {
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
    table.rope = rope;
    table.sum_heads = sum_heads;
}

}  // namespace tutti::kernels::TUTTI_ISA
