// kernels/cpu/isa/vec_avx512.h: sixteen floats, with the same names as vec_avx2.h. Included by cpu/isa.h only.
// `Full` and `Tail` say how many lanes are in memory; lanes beyond a tail are loaded as 0 and not stored.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "tutti/base/dtype.h"

namespace tutti::kernels::avx512 {

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

inline Vec broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
inline Vec zero() {
    return {_mm512_setzero_ps()};
}
inline Vec operator+(Vec a, Vec b) {
    return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
    return {_mm512_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}  // a b + c
inline Vec fma_negative(Vec a, Vec b, Vec c) {
    return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}  // c - a b
inline Vec sqrt(Vec a) {
    return {_mm512_sqrt_ps(a.v)};
}
// Of a NaN and a number both return the second argument: put the value that may be NaN there to keep it.
inline Vec min(Vec a, Vec b) {
    return {_mm512_min_ps(a.v, b.v)};
}
inline Vec max(Vec a, Vec b) {
    return {_mm512_max_ps(a.v, b.v)};
}
inline Vec abs(Vec a) {
    return {_mm512_abs_ps(a.v)};
}
inline Vec round(Vec a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x 2^n for whole n in [-252, 254]; overflows to infinity.
inline Vec times_power_of_two(Vec x, Vec n) {
    return {_mm512_scalef_ps(x.v, n.v)};
}

inline Mask operator>(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)};
}
inline Mask operator<(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
inline Mask operator>=(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)};
}
inline Vec select(Mask m, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(m.m, no.v, yes.v)};
}
inline Vec zero_unless(Mask m, Vec x) {
    return {_mm512_maskz_mov_ps(m.m, x.v)};
}

inline Vec keep(Vec x, Full) {
    return x;
}
inline Vec keep(Vec x, Tail t) {
    return {_mm512_maskz_mov_ps(t.mask(), x.v)};
}

inline float reduce_add(Vec a) {
    return _mm512_reduce_add_ps(a.v);
}
inline float reduce_max(Vec a) {
    return _mm512_reduce_max_ps(a.v);
}

// The bits of bf16_bits(): vcvtneps2bf16 would flush subnormals, and kernels that call this wait for memory anyway.
inline __m256i to_bf16(Vec x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
inline Vec from_bf16(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline __m256i to_f16(Vec x) {
    return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Vec load(const float* p, Full) {
    return {_mm512_loadu_ps(p)};
}
inline Vec load(const float* p, Tail t) {
    return {_mm512_maskz_loadu_ps(t.mask(), p)};
}
inline Vec load(const bf16* p, Full) {
    return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const bf16* p, Tail t) {
    return from_bf16(_mm256_maskz_loadu_epi16(t.mask(), p));
}
inline Vec load(const f16* p, Full) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load(const f16* p, Tail t) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(t.mask(), p))};
}

inline void store(Vec x, float* p, Full) {
    _mm512_storeu_ps(p, x.v);
}
inline void store(Vec x, float* p, Tail t) {
    _mm512_mask_storeu_ps(p, t.mask(), x.v);
}
inline void store(Vec x, bf16* p, Full) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
}
inline void store(Vec x, bf16* p, Tail t) {
    _mm256_mask_storeu_epi16(p, t.mask(), to_bf16(x));
}
inline void store(Vec x, f16* p, Full) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(x));
}
inline void store(Vec x, f16* p, Tail t) {
    _mm256_mask_storeu_epi16(p, t.mask(), to_f16(x));
}

// Sums in double: each float lane has its own double lane.
struct Doubles {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

    void add(Vec x) {
        low = _mm512_add_pd(low, low_half(x));
        high = _mm512_add_pd(high, high_half(x));
    }
    void add_square(Vec x) {
        low = _mm512_fmadd_pd(low_half(x), low_half(x), low);
        high = _mm512_fmadd_pd(high_half(x), high_half(x), high);
    }
    double total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }

  private:
    static __m512d low_half(Vec x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)); }
    static __m512d high_half(Vec x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)); }
};

// Unsigned 32-bit words, what Philox needs of them.
struct Words {
    __m512i v;
};

inline Words broadcast_word(uint32_t x) {
    return {_mm512_set1_epi32(static_cast<int>(x))};
}
inline Words load_words(const uint32_t* p) {
    return {_mm512_loadu_si512(p)};
}
inline void store_words(Words x, uint32_t* p) {
    _mm512_storeu_si512(p, x.v);
}
inline Words operator+(Words a, Words b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
inline Words operator^(Words a, Words b) {
    return {_mm512_xor_si512(a.v, b.v)};
}
inline Words one_where_less(Words a, Words b) {
    return {_mm512_maskz_set1_epi32(_mm512_cmplt_epu32_mask(a.v, b.v), 1)};
}
// The 64-bit products a b, as high and low words.
inline void multiply_wide(Words a, Words b, Words& high, Words& low) {
    const __m512i even = _mm512_mul_epu32(a.v, b.v);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), b.v);
    high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
// (x >> 8) 2^-24, exact: the uniform of base/philox.h.
inline Vec to_uniform(Words x) {
    return {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(x.v, 8)), _mm512_set1_ps(0x1p-24f))};
}
inline Vec load_uniform(const uint32_t* p, Full) {
    return to_uniform(load_words(p));
}
inline Vec load_uniform(const uint32_t* p, Tail t) {
    return to_uniform({_mm512_maskz_loadu_epi32(t.mask(), p)});
}
// Transposes 4x4 words in every group of four lanes.
inline void transpose_groups(Words (&w)[4]) {
    const __m512i t0 = _mm512_unpacklo_epi32(w[0].v, w[1].v), t1 = _mm512_unpackhi_epi32(w[0].v, w[1].v);
    const __m512i t2 = _mm512_unpacklo_epi32(w[2].v, w[3].v), t3 = _mm512_unpackhi_epi32(w[2].v, w[3].v);
    w[0].v = _mm512_unpacklo_epi64(t0, t2);
    w[1].v = _mm512_unpackhi_epi64(t0, t2);
    w[2].v = _mm512_unpacklo_epi64(t1, t3);
    w[3].v = _mm512_unpackhi_epi64(t1, t3);
}

}  // namespace tutti::kernels::avx512
