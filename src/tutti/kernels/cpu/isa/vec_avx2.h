// kernels/cpu/isa/vec_avx2.h: vectors of eight floats, of as many 32-bit words, and of pairs of bf16, with the same
// names as vec_avx512.h. Included by cpu/isa.h only. `Full` and `Tail` say how many lanes are in memory; lanes beyond a
// tail are loaded as 0 and not stored.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "tutti/base/dtype.h"

namespace tutti::kernels::avx2 {

inline constexpr int64_t kLanes = 8;

struct Full {};
struct Tail {
    int64_t count;
    __m256i mask() const {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
};

struct Vec {
    __m256 v;
};
struct Mask {
    __m256 m;
};

inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }            // a b + c
inline Vec fma_negative(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
// 1 / a for normal a, to 2^-22 (the instruction's 2^-11 and a Newton step); and 1 / a for any a, correctly rounded.
inline Vec rough_reciprocal(Vec a) {
    const Vec y = {_mm256_rcp_ps(a.v)};
    return fma(fma_negative(a, y, broadcast(1.0f)), y, y);
}
inline Vec reciprocal(Vec a) { return broadcast(1.0f) / a; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
// If one argument is NaN, both return the second argument: pass the value that may be NaN second to keep it.
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec minus_abs(Vec a) { return {_mm256_or_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Mask operator>(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask operator<(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator>=(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
// Also true where either is NaN.
inline Mask not_less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NLT_UQ)}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }
inline Vec zero_unless(Mask m, Vec x) { return {_mm256_and_ps(m.m, x.v)}; }
// x 2^n where m, else 0, for whole n in [-252, 254]; overflows to infinity. Uses two factors: f32 may lack 2^n.
inline Vec times_power_of_two(Mask m, Vec x, Vec n) {
    const __m256i exponent = _mm256_cvtps_epi32(n.v);
    const __m256i first = _mm256_srai_epi32(exponent, 1), second = _mm256_sub_epi32(exponent, first);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
    return {_mm256_and_ps(m.m, _mm256_mul_ps(_mm256_mul_ps(x.v, a), b))};
}

// x 2^n for whole n in [-126, 127].
inline Vec times_power_of_two(Vec x, Vec n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(x.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}

inline Vec keep(Vec x, Full) { return x; }
inline Vec keep(Vec x, Tail t) { return {_mm256_and_ps(_mm256_castsi256_ps(t.mask()), x.v)}; }

inline float reduce_add(Vec a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_max(Vec a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The bits of bf16_bits().
inline __m128i to_bf16(Vec x) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline Vec from_bf16(__m128i bits) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))}; }
inline Vec from_f16(__m128i bits) { return {_mm256_cvtph_ps(bits)}; }
inline __m128i to_f16(Vec x) { return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// AVX2 has no masked load of 16-bit values: the tail goes through the stack.
inline __m128i load_16_bit(const void* p, Tail t) {
    alignas(16) uint16_t lanes[kLanes] = {};
    __builtin_memcpy(lanes, p, static_cast<size_t>(t.count) * sizeof(uint16_t));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
}
inline void store_16_bit(__m128i x, void* p, Tail t) {
    alignas(16) uint16_t lanes[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), x);
    __builtin_memcpy(p, lanes, static_cast<size_t>(t.count) * sizeof(uint16_t));
}

inline Vec load(const float* p, Full) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const float* p, Tail t) { return {_mm256_maskload_ps(p, t.mask())}; }
inline Vec load(const bf16* p, Full) { return from_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load(const bf16* p, Tail t) { return from_bf16(load_16_bit(p, t)); }
inline Vec load(const f16* p, Full) { return from_f16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load(const f16* p, Tail t) { return from_f16(load_16_bit(p, t)); }

inline float value_of(float x) { return x; }
inline float value_of(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline float value_of(f16 x) { return _mm256_cvtss_f32(from_f16(_mm_cvtsi32_si128(x.bits)).v); }

inline void store(Vec x, float* p, Full) { _mm256_storeu_ps(p, x.v); }
inline void store(Vec x, float* p, Tail t) { _mm256_maskstore_ps(p, t.mask(), x.v); }
inline void store(Vec x, bf16* p, Full) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(x)); }
inline void store(Vec x, bf16* p, Tail t) { store_16_bit(to_bf16(x), p, t); }
// The same where subnormals of 16 bits may become 0, which is cheaper in vec_avx512.h.
inline void store_flushed(Vec x, auto* p, auto part) { store(x, p, part); }
inline void store(Vec x, f16* p, Full) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16(x)); }
inline void store(Vec x, f16* p, Tail t) { store_16_bit(to_f16(x), p, t); }

// Sums in double: each float lane has its own double lane.
struct Doubles {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();

    void add_square(Vec x) {
        low = _mm256_fmadd_pd(low_half(x), low_half(x), low);
        high = _mm256_fmadd_pd(high_half(x), high_half(x), high);
    }
    double total() const {
        const __m256d four = _mm256_add_pd(low, high);
        const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
    }

  private:
    static __m256d low_half(Vec x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x.v)); }
    static __m256d high_half(Vec x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1)); }
};

// Unsigned 32-bit words: the operations that Philox (random.cpp) and transposition need.
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

// Pairs as in vec_avx512.h, in plain AVX2: slower than f32, hence kFastPairs.
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
