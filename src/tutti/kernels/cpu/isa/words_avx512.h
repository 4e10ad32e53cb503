// kernels/cpu/isa/words_avx512.h: sixteen unsigned 32-bit words, with the same names as words_avx2.h: what the Philox
// of dropout.cpp needs of them. Included by cpu/isa.h only.
#pragma once

#include "tutti/kernels/cpu/isa/vec_avx512.h"

namespace tutti::kernels::TUTTI_ISA {

struct Words {
    __m512i v;
};

inline Words broadcast_word(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline Words load_words(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_words(Words x, uint32_t* p) { _mm512_storeu_si512(p, x.v); }
inline Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Words one_where_less(Words a, Words b) {
    return {_mm512_maskz_set1_epi32(_mm512_cmplt_epu32_mask(a.v, b.v), 1)};
}
inline Words exclusive_or(Words a, Words b, Words c) { return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x96)}; }
// 64-bit products of the even lanes; the odd lanes may hold anything.
inline Words multiply_even(Words a, Words b) { return {_mm512_mul_epu32(a.v, b.v)}; }
inline Words odd_to_even(Words a) { return {_mm512_srli_epi64(a.v, 32)}; }
// The even lanes of `even`, and the even lanes of `odd` in the odd lanes.
inline Words interleave_even(Words even, Words odd) {
    return {_mm512_mask_blend_epi32(0xaaaa, even.v, _mm512_slli_epi64(odd.v, 32))};
}
// (x >> 8) 2^-24, exact: the uniform of base/philox.h.
inline Vec to_uniform(Words x) {
    return {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(x.v, 8)), _mm512_set1_ps(0x1p-24f))};
}
inline Vec load_uniform(const uint32_t* p, Full) { return to_uniform(load_words(p)); }
inline Vec load_uniform(const uint32_t* p, Tail t) { return to_uniform({_mm512_maskz_loadu_epi32(t.mask(), p)}); }
// Transposes 4x4 words in every group of four lanes.
inline void transpose_groups(Words (&w)[4]) {
    const __m512i t0 = _mm512_unpacklo_epi32(w[0].v, w[1].v), t1 = _mm512_unpackhi_epi32(w[0].v, w[1].v);
    const __m512i t2 = _mm512_unpacklo_epi32(w[2].v, w[3].v), t3 = _mm512_unpackhi_epi32(w[2].v, w[3].v);
    w[0].v = _mm512_unpacklo_epi64(t0, t2);
    w[1].v = _mm512_unpackhi_epi64(t0, t2);
    w[2].v = _mm512_unpacklo_epi64(t1, t3);
    w[3].v = _mm512_unpackhi_epi64(t1, t3);
}
// Transposes kLanes x kLanes words: 4x4 in all groups, then the groups.
[[gnu::always_inline]] inline void transpose_square(Words (&w)[kLanes]) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
        Words four[4] = {w[4 * g], w[4 * g + 1], w[4 * g + 2], w[4 * g + 3]};
        transpose_groups(four);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[4 * g + i] = four[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512i low01 = _mm512_shuffle_i32x4(w[i].v, w[4 + i].v, 0x44);
        const __m512i high01 = _mm512_shuffle_i32x4(w[i].v, w[4 + i].v, 0xee);
        const __m512i low23 = _mm512_shuffle_i32x4(w[8 + i].v, w[12 + i].v, 0x44);
        const __m512i high23 = _mm512_shuffle_i32x4(w[8 + i].v, w[12 + i].v, 0xee);
        w[i].v = _mm512_shuffle_i32x4(low01, low23, 0x88);
        w[4 + i].v = _mm512_shuffle_i32x4(low01, low23, 0xdd);
        w[8 + i].v = _mm512_shuffle_i32x4(high01, high23, 0x88);
        w[12 + i].v = _mm512_shuffle_i32x4(high01, high23, 0xdd);
    }
}

}  // namespace tutti::kernels::TUTTI_ISA
