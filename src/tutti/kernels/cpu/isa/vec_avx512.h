// kernels/cpu/isa/vec_avx512.h: vectors of sixteen floats, of as many 32-bit words, and of pairs of bf16, with the same
// names as vec_avx2.h. Included by cpu/isa.h only. `Full` and `Tail` say how many lanes are in memory; lanes beyond a
// tail are loaded as 0 and not stored.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "tutti/base/dtype.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr int64_t kLanes = 16;

struct Full {};
struct Tail {
    int64_t count;
    __mmask16 mask() const { return static_cast<__mmask16>((1u << count) - 1u); }
};

struct Vec {
    __m512 v;
};
struct Mask {
    __mmask16 m;
};

inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }            // a b + c
inline Vec fma_negative(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
// 1 / a for normal a, to 2^-14; and 1 / a to 1 ulp, with a Newton step (a division takes three times as long).
inline Vec rough_reciprocal(Vec a) { return {_mm512_rcp14_ps(a.v)}; }
inline Vec reciprocal(Vec a) {
    const Vec y = rough_reciprocal(a);
    return fma(fma_negative(a, y, broadcast(1.0f)), y, y);
}
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
// If one argument is NaN, both return the second argument: pass the value that may be NaN second to keep it.
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec minus_abs(Vec a) { return {_mm512_or_ps(a.v, _mm512_set1_ps(-0.0f))}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline Mask operator>(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask operator<(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>=(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
// Also true where either is NaN.
inline Mask not_less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ)}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
inline Vec zero_unless(Mask m, Vec x) { return {_mm512_maskz_mov_ps(m.m, x.v)}; }
// x 2^n where m, else 0, for whole n in [-252, 254]; overflows to infinity.
inline Vec times_power_of_two(Mask m, Vec x, Vec n) { return {_mm512_maskz_scalef_ps(m.m, x.v, n.v)}; }

// x 2^n for whole n in [-126, 127].
inline Vec times_power_of_two(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }

inline Vec keep(Vec x, Full) { return x; }
inline Vec keep(Vec x, Tail t) { return {_mm512_maskz_mov_ps(t.mask(), x.v)}; }

inline float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }

// The bits of bf16_bits(), in integer arithmetic.
[[gnu::always_inline]] inline __m256i to_bf16_by_integers(Vec x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
#if defined(__AVX512BF16__)
// The same where subnormals may become 0: the instruction rounds as bf16_bits() does and keeps NaN.
inline __m256i to_bf16_flushed(Vec x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
// The bits of bf16_bits(). Subnormals (there are hardly ever any) take integer arithmetic. Inlined, because a call
// would spill all registers of the loops around it.
[[gnu::always_inline]] inline __m256i to_bf16(Vec x) {
    constexpr int kSubnormal = 0x20;
    const __mmask16 subnormal = _mm512_fpclass_ps_mask(x.v, kSubnormal);
    const __m256i rounded = to_bf16_flushed(x);
    if (subnormal == 0) [[likely]]
        return rounded;
    return _mm256_mask_mov_epi16(rounded, subnormal, to_bf16_by_integers(x));
}
#else
inline __m256i to_bf16_flushed(Vec x) { return to_bf16_by_integers(x); }
inline __m256i to_bf16(Vec x) { return to_bf16_by_integers(x); }
#endif
inline Vec from_bf16(__m256i bits) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))}; }
inline Vec from_f16(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }
inline __m256i to_f16(Vec x) { return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline Vec load(const float* p, Full) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const float* p, Tail t) { return {_mm512_maskz_loadu_ps(t.mask(), p)}; }
inline Vec load(const bf16* p, Full) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const bf16* p, Tail t) { return from_bf16(_mm256_maskz_loadu_epi16(t.mask(), p)); }
inline Vec load(const f16* p, Full) { return from_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const f16* p, Tail t) { return from_f16(_mm256_maskz_loadu_epi16(t.mask(), p)); }

inline float value_of(float x) { return x; }
inline float value_of(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline float value_of(f16 x) { return _mm512_cvtss_f32(from_f16(_mm256_castsi128_si256(_mm_cvtsi32_si128(x.bits))).v); }

inline void store(Vec x, float* p, Full) { _mm512_storeu_ps(p, x.v); }
inline void store(Vec x, float* p, Tail t) { _mm512_mask_storeu_ps(p, t.mask(), x.v); }
inline void store(Vec x, bf16* p, Full) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }
inline void store(Vec x, bf16* p, Tail t) { _mm256_mask_storeu_epi16(p, t.mask(), to_bf16(x)); }
// The same, but subnormals of bf16 may become 0, as they do in dot products: saves a test per vector with BF16.
inline void store_flushed(Vec x, float* p, auto part) { store(x, p, part); }
inline void store_flushed(Vec x, f16* p, auto part) { store(x, p, part); }
inline void store_flushed(Vec x, bf16* p, Full) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_flushed(x));
}
inline void store_flushed(Vec x, bf16* p, Tail t) { _mm256_mask_storeu_epi16(p, t.mask(), to_bf16_flushed(x)); }
inline void store(Vec x, f16* p, Full) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(x)); }
inline void store(Vec x, f16* p, Tail t) { _mm256_mask_storeu_epi16(p, t.mask(), to_f16(x)); }

// Sums in double: each float lane has its own double lane.
struct Doubles {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

    void add_square(Vec x) {
        low = _mm512_fmadd_pd(low_half(x), low_half(x), low);
        high = _mm512_fmadd_pd(high_half(x), high_half(x), high);
    }
    double total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }

  private:
    static __m512d low_half(Vec x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)); }
    static __m512d high_half(Vec x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)); }
};

// Unsigned 32-bit words: the operations that Philox (random.cpp) and transposition need.
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

// Products of bf16 pairs: with AVX512_BF16 one instruction does two multiply-adds per lane, twice the rate of f32.
// Without AVX512_BF16 the same functions are slower than f32; the emulated tiles use them. A Pair is one 32-bit word,
// two neighbours along the summed dim, the first in the low half.
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
// sum + a.low b.low + a.high b.high, subnormals treated as 0.
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
