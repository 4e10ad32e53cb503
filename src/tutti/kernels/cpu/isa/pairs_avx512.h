// kernels/cpu/isa/pairs_avx512.h: products of bf16 pairs: with AVX512_BF16 one instruction does two multiply-adds per
// lane, twice the rate of f32. Without it the same functions exist, slower than f32, for the emulated tiles. A Pair is
// one 32-bit word, two neighbours along the summed dim, the first in the low half. Included by cpu/isa.h only.
#pragma once

#include "tutti/kernels/cpu/isa/vec_avx512.h"

namespace tutti::kernels::TUTTI_ISA {

struct Pair {
    uint32_t bits;
};

// Products of bf16 go through pairs; without the instruction it is faster to widen the operands once.
#if defined(__AVX512BF16__) || defined(TUTTI_AMX_EMULATED)
inline constexpr bool kFastPairs = true;
#else
inline constexpr bool kFastPairs = false;
#endif

inline Vec broadcast(Pair x) { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x.bits)))}; }
inline Vec load(const Pair* p, Full) { return {_mm512_castsi512_ps(_mm512_loadu_si512(p))}; }

#if defined(__AVX512BF16__)
// sum + a.low b.low + a.high b.high, subnormals taken as 0.
inline Vec dot_pairs(Vec a, Vec b, Vec sum) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
// Lane i: (low_i, high_i), rounded to nearest even.
inline void store_pairs(Vec low, Vec high, Pair* p) {
    const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v));
    const __m512i low_index =
        _mm512_cvtepu16_epi32(_mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i index =
        _mm512_or_si512(low_index, _mm512_slli_epi32(_mm512_add_epi32(low_index, _mm512_set1_epi32(16)), 16));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(index, halves));
}
#else
inline Vec low_of(Vec pairs) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))}; }
inline Vec high_of(Vec pairs) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs.v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline Vec dot_pairs(Vec a, Vec b, Vec sum) { return fma(high_of(a), high_of(b), fma(low_of(a), low_of(b), sum)); }
inline void store_pairs(Vec low, Vec high, Pair* p) {
    const __m512i l = _mm512_cvtepu16_epi32(to_bf16(low)), h = _mm512_cvtepu16_epi32(to_bf16(high));
    _mm512_storeu_si512(p, _mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
}
#endif
// bf16(x); with BF16 a subnormal result is 0.
inline void store_rounded(Vec x, bf16* p) { store_flushed(x, p, Full{}); }
// Two rows of bf16, neighbours along the summed dim, as pairs.
inline void interleave(const bf16* low, const bf16* high, Pair* p) {
    const __m512i l = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
    const __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
    _mm512_storeu_si512(p, _mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
}

}  // namespace tutti::kernels::TUTTI_ISA
