// kernels/cpu/isa/rope.cpp: rotary position embedding (Su et al. 2021), pairs (k, k + D/2). x and y may be strided
// (heads inside a fused projection) and may be the same; the innermost dim is contiguous.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

void rope(const Stream& stream, View x, View positions, View cosines, View sines, bool inverse, View y) {
    const int64_t heads = size(x, 1), half = size(x, 2) / 2;
    const Vec sign = broadcast(inverse ? -1.0f : 1.0f);
    with_type(x.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        parallel_for(stream, size(x, 0), row_grain(heads * half * 2), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                const int64_t position = index_at(positions, n);
                const float* cosine = cosines.as<float>() + position * stride(cosines, 0);
                const float* sine = sines.as<float>() + position * stride(sines, 0);
                for (int64_t h = 0; h < heads; ++h) {
                    const T* in = x.as<T>() + n * stride(x, 0) + h * stride(x, 1);
                    T* out = y.as<T>() + n * stride(y, 0) + h * stride(y, 1);
                    for_vectors(0, half, [=](int64_t k, auto part) {
                        const Vec c = load(cosine + k, part), s = load(sine + k, part) * sign;
                        const Vec first = load(in + k, part), second = load(in + half + k, part);
                        store(fma_negative(second, s, first * c), out + k, part);
                        store(fma(first, s, second * c), out + half + k, part);
                    });
                }
            }
        });
    });
}

}  // namespace

void fill_rope(KernelTable& table) { table.rope = rope; }

}  // namespace tutti::kernels::TUTTI_ISA
