// kernels/cpu/isa/tiles_amx.h: the eight tile registers of AMX, 16 rows of 64 bytes each, and their product of bf16
// pairs. Included by cpu/isa.h only, for the ISA `amx`. With TUTTI_AMX_EMULATED the same functions work on arrays: the
// ISA `amx_emulated`, which exists for tests on machines without AMX (cmake/kernels.cmake).
//
// Inline assembly rather than intrinsics: gcc 12's are macros that want the number of a tile as a literal, and its
// _tile_loadconfig claims to read 8 of the 64 bytes only.
#pragma once

#include "tutti/kernels/cpu/isa/pairs_avx512.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileWords = 16;  // of a row: floats, or pairs of bf16

#if defined(TUTTI_AMX_EMULATED)

inline thread_local float emulated_tiles[8][kTileRows][kTileWords];
inline thread_local bool emulated_tiles_on = false;

// While it lives, the calling thread may use tiles. Taking them costs some 20 ns.
class TileScope {
  public:
    TileScope() {
        if (emulated_tiles_on) __builtin_trap();  // the hardware would lose what the outer scope has loaded
        emulated_tiles_on = true;
        __builtin_memset(emulated_tiles, 0xff, sizeof emulated_tiles);  // NaN: no tile is zero by luck
    }
    ~TileScope() { emulated_tiles_on = false; }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

inline float (&emulated_tile(int t))[kTileRows][kTileWords] {
    if (!emulated_tiles_on) __builtin_trap();  // the hardware: illegal instruction
    return emulated_tiles[t];
}

template <int t>
void tile_zero() {
    __builtin_memset(emulated_tile(t), 0, sizeof emulated_tiles[t]);
}
template <int t>
void tile_load(const void* rows, int64_t row_bytes) {
    for (int64_t r = 0; r < kTileRows; ++r)
        __builtin_memcpy(emulated_tile(t)[r], static_cast<const char*>(rows) + r * row_bytes, 64);
}
template <int t>
void tile_store(void* rows, int64_t row_bytes) {
    for (int64_t r = 0; r < kTileRows; ++r)
        __builtin_memcpy(static_cast<char*>(rows) + r * row_bytes, emulated_tile(t)[r], 64);
}
template <int c, int a, int b>
void tile_dot() {
    for (int64_t r = 0; r < kTileRows; ++r) {
        Vec sum = load(emulated_tile(c)[r], Full{});
        for (int64_t k = 0; k < kTileWords; ++k) {
            Pair left;
            __builtin_memcpy(&left, &emulated_tile(a)[r][k], sizeof left);
            sum = dot_pairs(broadcast(left), load(emulated_tile(b)[k], Full{}), sum);
        }
        store(sum, emulated_tile(c)[r], Full{});
    }
}

#else

class TileScope {
  public:
    TileScope() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        static_assert(sizeof config == 64);
        asm volatile("ldtilecfg %0" ::"m"(config));
    }
    ~TileScope() { asm volatile("tilerelease"); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

template <int t>
[[gnu::always_inline]] inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
}
// 16 rows of 64 bytes, `row_bytes` apart.
template <int t>
[[gnu::always_inline]] inline void tile_load(const void* rows, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(row_bytes), "i"(t) : "memory");
}
template <int t>
[[gnu::always_inline]] inline void tile_store(void* rows, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(row_bytes), "i"(t) : "memory");
}
// c (16, 16) f32 += a (16, 16 pairs) b (16 pairs, 16): row k of b holds the pairs 2k, 2k + 1 of every column.
template <int c, int a, int b>
[[gnu::always_inline]] inline void tile_dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

#endif

}  // namespace tutti::kernels::TUTTI_ISA
