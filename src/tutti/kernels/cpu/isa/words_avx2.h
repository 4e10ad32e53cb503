// kernels/cpu/isa/words_avx2.h: eight unsigned 32-bit words, with the same names as words_avx512.h: what the Philox of
// dropout.cpp needs of them. Included by cpu/isa.h only.
#pragma once

#include "tutti/kernels/cpu/isa/vec_avx2.h"

namespace tutti::kernels::avx2 {

struct Words {
    __m256i v;
};

inline Words broadcast_word(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
inline Words load_words(const uint32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline void store_words(Words x, uint32_t* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v); }
inline Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Words one_where_less(Words a, Words b) {
    const __m256i not_less = _mm256_cmpeq_epi32(_mm256_max_epu32(a.v, b.v), a.v);
    return {_mm256_andnot_si256(not_less, _mm256_set1_epi32(1))};
}
inline Words exclusive_or(Words a, Words b, Words c) { return {_mm256_xor_si256(_mm256_xor_si256(a.v, b.v), c.v)}; }
// 64-bit products of the even lanes; the odd lanes may hold anything.
inline Words multiply_even(Words a, Words b) { return {_mm256_mul_epu32(a.v, b.v)}; }
inline Words odd_to_even(Words a) { return {_mm256_srli_epi64(a.v, 32)}; }
// The even lanes of `even`, and the even lanes of `odd` in the odd lanes.
inline Words interleave_even(Words even, Words odd) {
    return {_mm256_blend_epi32(even.v, _mm256_slli_epi64(odd.v, 32), 0xaa)};
}
// (x >> 8) 2^-24, exact: the uniform of base/philox.h.
inline Vec to_uniform(Words x) {
    return {_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(x.v, 8)), _mm256_set1_ps(0x1p-24f))};
}
inline Vec load_uniform(const uint32_t* p, Full) { return to_uniform(load_words(p)); }
inline Vec load_uniform(const uint32_t* p, Tail t) {
    return to_uniform({_mm256_maskload_epi32(reinterpret_cast<const int*>(p), t.mask())});
}
// Transposes 4x4 words in every group of four lanes.
inline void transpose_groups(Words (&w)[4]) {
    const __m256i t0 = _mm256_unpacklo_epi32(w[0].v, w[1].v), t1 = _mm256_unpackhi_epi32(w[0].v, w[1].v);
    const __m256i t2 = _mm256_unpacklo_epi32(w[2].v, w[3].v), t3 = _mm256_unpackhi_epi32(w[2].v, w[3].v);
    w[0].v = _mm256_unpacklo_epi64(t0, t2);
    w[1].v = _mm256_unpackhi_epi64(t0, t2);
    w[2].v = _mm256_unpacklo_epi64(t1, t3);
    w[3].v = _mm256_unpackhi_epi64(t1, t3);
}
// Transposes kLanes x kLanes words: 4x4 in all groups, then the groups.
[[gnu::always_inline]] inline void transpose_square(Words (&w)[kLanes]) {
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        Words four[4] = {w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3]};
        transpose_groups(four);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[4 * g + i] = four[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m256i low = _mm256_permute2x128_si256(w[i].v, w[4 + i].v, 0x20);
        w[4 + i].v = _mm256_permute2x128_si256(w[i].v, w[4 + i].v, 0x31);
        w[i].v = low;
    }
}

}  // namespace tutti::kernels::avx2
