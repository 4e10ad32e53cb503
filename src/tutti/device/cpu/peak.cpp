// device/cpu/peak.cpp: the peak is measured by one loop per instruction, compiled for the instruction by function
// attributes and chosen by CPUID. Each loop has enough independent accumulators to cover latency times throughput (4 to
// 5 cycles, two a cycle: 10; tiles: 52 cycles, one in 16: 4).
#include "tutti/device/cpu/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/device/cpu/parallel.h"
#include "tutti/device/cpu/tiles.h"

namespace tutti {

namespace {

constexpr int kAccumulators = 12;  // and two operands: 14 of the 16 registers of AVX2

struct Loop {
    const char* instruction;
    double flops;                              // of one round
    void (*run)(int64_t rounds, float* sink);  // the sink keeps the compiler from removing the loop
};

[[gnu::target("avx2,fma")]] void fma_ymm(int64_t rounds, float* sink) {
    __m256 sum[kAccumulators], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    for (__m256& s : sum) s = b;
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);  // tends to 2
    }
    for (const __m256& s : sum) *sink += s[0];
}

[[gnu::target("avx512f")]] void fma_zmm(int64_t rounds, float* sink) {
    __m512 sum[kAccumulators], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    for (__m512& s : sum) s = b;
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_fmadd_ps(sum[j], a, b);
    }
    for (const __m512& s : sum) *sink += s[0];
}

[[gnu::target("avx512f,avx512bf16")]] void dot_zmm(int64_t rounds, float* sink) {
    const __m512 small = _mm512_set1_ps(1e-3f);
    __m512bh a = _mm512_cvtne2ps_pbh(small, small), b = a;
    __m512 sum[kAccumulators];
    for (__m512& s : sum) s = small;
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
    }
    for (const __m512& s : sum) *sink += s[0];
}

// Four accumulator tiles (0-3), two of A (4, 5) and of B (6, 7), all 16 rows of 64 bytes; their values are zero, which
// the unit does not multiply faster.
[[gnu::target("amx-tile,amx-bf16")]] void dot_tiles(int64_t rounds, float*) {
    struct alignas(64) TileConfig {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    static_assert(sizeof(TileConfig) == 64);
    // gcc 12 believes that _tile_loadconfig reads 8 bytes and may drop the stores to the rest.
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

Loop best_loop(DType compute) {
    if (compute == DType::bf16) {
        if (tiles_available()) return {"tdpbf16ps tiles", 4.0 * 2 * 16 * 16 * 32, dot_tiles};
        if (__builtin_cpu_supports("avx512bf16")) return {"vdpbf16ps zmm", kAccumulators * 2.0 * 32, dot_zmm};
    }
    if (__builtin_cpu_supports("avx512f")) return {"vfmadd zmm", kAccumulators * 2.0 * 16, fma_zmm};
    return {"vfmadd ymm", kAccumulators * 2.0 * 8, fma_ymm};
}

}  // namespace

ArithmeticPeak measure_register_peak(const Stream& stream, DType compute, double seconds) {
    const Loop loop = best_loop(compute);
    constexpr int64_t kRounds = 200'000;  // milliseconds: the start of the threads is negligible
    struct alignas(64) Sink {
        float value = 0;
    };
    std::vector<Sink> sinks(to_size(stream.threads));
    double best = 0;
    const double begin = seconds_now();
    for (int i = 0; i < 5 || seconds_now() - begin < seconds; ++i) {
        const double start = seconds_now();
        parallel_for(stream, stream.threads, 1,
                     [&](int64_t thread, int64_t) { loop.run(kRounds, &sinks[to_size(thread)].value); });
        const double flops = loop.flops * static_cast<double>(kRounds) * stream.threads;
        best = std::max(best, flops / (seconds_now() - start));
    }
    return {best, concat(loop.instruction, " on registers")};
}

}  // namespace tutti
