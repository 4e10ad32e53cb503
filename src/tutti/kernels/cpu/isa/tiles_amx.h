// kernels/cpu/isa/tiles_amx.h: the eight tile registers of AMX, 16 rows of 64 bytes each, and products of bf16 pairs by
// tiles: tile_product() of the instruction set `amx`. Included by cpu/isa.h only. With TUTTI_AMX_EMULATED the same
// functions work on arrays: the instruction set `amx_emulated`, for tests on machines without AMX
// (cmake/kernels.cmake).
//
// Inline assembly rather than intrinsics: the intrinsics of gcc 12 are macros that need the number of a tile as a
// literal, and its _tile_loadconfig declares to read 8 of the 64 bytes only.
#pragma once

#include "tutti/kernels/cpu/isa/vec_avx512.h"

namespace tutti::kernels::TUTTI_ISA {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileWords = 16;  // of a row: floats, or pairs of bf16

#if defined(TUTTI_AMX_EMULATED)

inline thread_local float emulated_tiles[8][kTileRows][kTileWords];
inline thread_local bool emulated_tiles_on = false;

// While a TileScope lives, the calling thread may use tiles. Its constructor costs some 20 ns.
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
void tile_stream(const void* rows, int64_t row_bytes) {
    tile_load<t>(rows, row_bytes);
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
// The same for rows that are read once: they leave the L1 to data that is read again.
template <int t>
[[gnu::always_inline]] inline void tile_stream(const void* rows, int64_t row_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(row_bytes), "i"(t) : "memory");
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

// Sums of pieces (32, 32), one piece after another, in tiles 0 to 3. A piece is stored between the first products of
// the next one, which then need not wait for the last products of the piece.
class TilePieces {
  public:
    // c (32, 32) [+]= a (32, K) b (K, 32); K is a multiple of 16. Rows of a are a_bytes apart and read once; b stays in
    // the L1. c is written by the next call. Meanwhile ahead_bytes at `ahead` are fetched into the L2,
    // which takes lines in pairs: one prefetch for 128 bytes.
    void multiply(const Pair* a, int64_t a_bytes, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t K,
                  bool add, const char* ahead, int64_t ahead_bytes) {
        const int64_t b_bytes = b_row * 4;
        const int64_t steps = K / kTileWords - 1, ahead_of_step = steps > 0 ? (ahead_bytes + steps - 1) / steps : 0;
        const Pair* lower = a + kTileRows * a_bytes / static_cast<int64_t>(sizeof(Pair));
        const Piece next = {c, c_row};
        tile_stream<4>(a, a_bytes);
        tile_load<6>(b, b_bytes);
        replace<0>(next, add);
        tile_dot<0, 4, 6>();
        tile_load<7>(b + kTileWords, b_bytes);
        replace<1>(next, add);
        tile_dot<1, 4, 7>();
        tile_stream<5>(lower, a_bytes);
        replace<2>(next, add);
        tile_dot<2, 5, 6>();
        replace<3>(next, add);
        tile_dot<3, 5, 7>();
        in_tiles_ = next;
        for (int64_t k = kTileWords; k < K; k += kTileWords) {
            b += kTileRows * b_row;
            for (int64_t i = 0; i < ahead_of_step; i += 128) __builtin_prefetch(ahead + i, 0, 2);
            ahead += ahead_of_step;
            tile_stream<4>(a + k, a_bytes);
            tile_load<6>(b, b_bytes);
            tile_dot<0, 4, 6>();
            tile_load<7>(b + kTileWords, b_bytes);
            tile_dot<1, 4, 7>();
            tile_stream<5>(lower + k, a_bytes);
            tile_dot<2, 5, 6>();
            tile_dot<3, 5, 7>();
        }
    }
    // Writes the last piece.
    void finish() {
        if (in_tiles_.c == nullptr) return;
        in_tiles_.store<0>();
        in_tiles_.store<1>();
        in_tiles_.store<2>();
        in_tiles_.store<3>();
        in_tiles_ = {};
    }

  private:
    struct Piece {
        float* c = nullptr;
        int64_t row = 0;

        float* at(int tile) const { return c + tile / 2 * kTileRows * row + tile % 2 * kTileWords; }
        template <int tile>
        void store() const {
            tile_store<tile>(at(tile), row * 4);
        }
    };
    template <int tile>
    [[gnu::always_inline]] void replace(const Piece& next, bool add) {
        if (in_tiles_.c != nullptr) in_tiles_.store<tile>();
        if (add)
            tile_load<tile>(next.at(tile), next.row * 4);
        else
            tile_zero<tile>();
    }

    Piece in_tiles_;
};

// R x V tiles of sums, at most 2 x 2, so that a tile of either operand is loaded once for two products. a_bytes is the
// distance between rows of a, not always whole words; b_row and c_row are in words.
template <int R, int V>
void tile_block(const Pair* a, int64_t a_bytes, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t K,
                bool add) {
    const int64_t b_bytes = b_row * 4, c_bytes = c_row * 4;
    float* const lower = c + kTileRows * c_row;
    if (add) {
        tile_load<0>(c, c_bytes);
        if constexpr (V == 2) tile_load<1>(c + kTileWords, c_bytes);
        if constexpr (R == 2) tile_load<2>(lower, c_bytes);
        if constexpr (R == 2 && V == 2) tile_load<3>(lower + kTileWords, c_bytes);
    } else {
        tile_zero<0>();
        if constexpr (V == 2) tile_zero<1>();
        if constexpr (R == 2) tile_zero<2>();
        if constexpr (R == 2 && V == 2) tile_zero<3>();
    }
    for (int64_t k = 0; k < K; k += kTileWords, a += kTileWords, b += kTileRows * b_row) {
        tile_load<4>(a, a_bytes);
        tile_load<6>(b, b_bytes);
        tile_dot<0, 4, 6>();
        if constexpr (V == 2) {
            tile_load<7>(b + kTileWords, b_bytes);
            tile_dot<1, 4, 7>();
        }
        if constexpr (R == 2) {
            tile_load<5>(reinterpret_cast<const char*>(a) + kTileRows * a_bytes, a_bytes);
            tile_dot<2, 5, 6>();
        }
        if constexpr (R == 2 && V == 2) tile_dot<3, 5, 7>();
    }
    tile_store<0>(c, c_bytes);
    if constexpr (V == 2) tile_store<1>(c + kTileWords, c_bytes);
    if constexpr (R == 2) tile_store<2>(lower, c_bytes);
    if constexpr (R == 2 && V == 2) tile_store<3>(lower + kTileWords, c_bytes);
}

template <int V>
void tile_rows(const Pair* a, int64_t a_row, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t M,
               int64_t K, bool add) {
    int64_t m = 0;
    for (; m + 2 * kTileRows <= M; m += 2 * kTileRows)
        tile_block<2, V>(a + m * a_row, a_row * 4, b, b_row, c + m * c_row, c_row, K, add);
    if (m < M) tile_block<1, V>(a + m * a_row, a_row * 4, b, b_row, c + m * c_row, c_row, K, add);
}

// c (M, N) f32 [+]= a (M, K) b (K, N); M, N and K are multiples of 16. A row of b holds the pairs of two rows.
inline void pair_product(const Pair* a, int64_t a_row, const Pair* b, int64_t b_row, float* c, int64_t c_row, int64_t M,
                         int64_t N, int64_t K, bool add) {
    int64_t n = 0;
    for (; n + 2 * kTileWords <= N; n += 2 * kTileWords) tile_rows<2>(a, a_row, b + n, b_row, c + n, c_row, M, K, add);
    if (n < N) tile_rows<1>(a, a_row, b + n, b_row, c + n, c_row, M, K, add);
}

}  // namespace tutti::kernels::TUTTI_ISA
