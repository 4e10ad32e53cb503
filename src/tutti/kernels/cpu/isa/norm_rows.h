// kernels/cpu/isa/norm_rows.h: what the two norms share. Below: loops.h. Called by: layer_norm.cpp, rms_norm.cpp.
#pragma once

#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

// The rows [n, n + count) that are normalised: of x, or of sum = x + residual, which is made here and is in L1 then.
template <class T>
[[gnu::always_inline]] inline const T* summed_rows(const View& x, const View& residual, const View& sum, int64_t n,
                                                   int64_t count) {
    const int64_t width = columns(x), begin = n * width;
    if (!residual.data) return x.as<T>() + begin;
    const T *left = x.as<T>(), *right = residual.as<T>();
    T* out = sum.as<T>();
    for_vectors(begin, begin + count * width, [=](int64_t i, auto part) {
        store_flushed(load(left + i, part) + load(right + i, part), out + i, part);
    });
    return out + begin;
}

// Row n of a view that may be undefined.
template <class T>
[[gnu::always_inline]] inline const T* row_or_null(const View& x, int64_t n) {
    return x.data ? x.as<T>() + n * columns(x) : nullptr;
}

}  // namespace tutti::kernels::TUTTI_ISA
