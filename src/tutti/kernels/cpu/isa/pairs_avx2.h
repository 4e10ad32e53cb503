// kernels/cpu/isa/pairs_avx2.h: the functions of pairs_avx512.h in plain AVX2, so that one text compiles for both.
// Slower than f32 here, hence kFastPairs. Included by cpu/isa.h only.
#pragma once

#include "tutti/kernels/cpu/isa/vec_avx2.h"

namespace tutti::kernels::avx2 {

struct Pair {
    uint32_t bits;
};

inline constexpr bool kFastPairs = false;

inline Vec broadcast(Pair x) { return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(x.bits)))}; }
inline Vec load(const Pair* p, Full) {
    return {_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec low_of(Vec pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.v), 16))}; }
inline Vec high_of(Vec pairs) {
    return {_mm256_and_ps(pairs.v, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline Vec dot_pairs(Vec a, Vec b, Vec sum) { return fma(high_of(a), high_of(b), fma(low_of(a), low_of(b), sum)); }
inline void store_pairs(Vec low, Vec high, Pair* p) {
    const __m256i l = _mm256_cvtepu16_epi32(to_bf16(low)), h = _mm256_cvtepu16_epi32(to_bf16(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(l, _mm256_slli_epi32(h, 16)));
}
inline void store_rounded(Vec x, bf16* p) { store(x, p, Full{}); }
inline void interleave(const bf16* low, const bf16* high, Pair* p) {
    const __m256i l = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
    const __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(l, _mm256_slli_epi32(h, 16)));
}

}  // namespace tutti::kernels::avx2
