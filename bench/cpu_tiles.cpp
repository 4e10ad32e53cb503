// bench/cpu_tiles.cpp: what the tiles of AMX cost: products on registers, loads from each cache, and pieces of sums, in
// cycles of the tile unit (a product of two tiles takes 16). For bench/results/gemm_cpu_emerald.md. Not part of the
// build:
//   g++ -std=c++20 -O2 -Isrc bench/cpu_tiles.cpp build/release/libtutti_{device,base}.a -lfmt -fopenmp && ./a.out
// One thread, timed by its own CPU time; best of 15, beside the peak of the same seconds.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tutti/device/cpu/tiles.h"

namespace {

double seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

enum class Load { normal, past_l1 };

template <int tile, Load how = Load::normal>
void load(const char* rows, int64_t row_bytes) {
    if constexpr (how == Load::normal)
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(row_bytes), "i"(tile) : "memory");
    else
        asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(row_bytes), "i"(tile) : "memory");
}
template <int tile>
void store(char* rows, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(row_bytes), "i"(tile) : "memory");
}
template <int c, int a, int b>
void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}
void dots() {
    dot<0, 4, 6>();
    dot<1, 4, 7>();
    dot<2, 5, 6>();
    dot<3, 5, 7>();
}

// Cycles of the tile unit that a call of `run` takes.
template <class Run>
double cycles(int64_t calls, Run&& run) {
    constexpr int64_t kDots = 4000;
    double best = 1e9, peak = 1e9;
    for (int i = 0; i < 15; ++i) {
        const double start = seconds();
        for (int64_t k = 0; k < kDots; ++k) dots();
        const double middle = seconds();
        for (int64_t k = 0; k < calls; ++k) run(k);
        peak = std::min(peak, middle - start);
        best = std::min(best, seconds() - middle);
    }
    return 64 * (best / static_cast<double>(calls)) / (peak / static_cast<double>(kDots));
}

// One step of a piece: 32 rows of a, 16 pairs deep, by 32 columns of b.
template <Load how>
void step(const char* a, int64_t a_bytes, const char* b) {
    load<4, how>(a, a_bytes);
    load<6>(b, 128);
    dot<0, 4, 6>();
    load<7>(b + 64, 128);
    dot<1, 4, 7>();
    load<5, how>(a + 16 * a_bytes, a_bytes);
    dot<2, 5, 6>();
    dot<3, 5, 7>();
}
template <Load how>
void steps(const char* a, int64_t a_bytes, const char* b, int64_t words) {
    for (int64_t k = 0; k < words; k += 16) step<how>(a + k * 4, a_bytes, b + k * 128);
}
void load_sums(const char* c) {
    load<0>(c, 128);
    load<1>(c + 64, 128);
    load<2>(c + 2048, 128);
    load<3>(c + 2112, 128);
}
void store_sums(char* c) {
    store<0>(c, 128);
    store<1>(c + 64, 128);
    store<2>(c + 2048, 128);
    store<3>(c + 2112, 128);
}
void exchange_sums(char* before, const char* next) {
    store<0>(before, 128), load<0>(next, 128);
    store<1>(before + 64, 128), load<1>(next + 64, 128);
    store<2>(before + 2048, 128), load<2>(next + 2048, 128);
    store<3>(before + 2112, 128), load<3>(next + 2112, 128);
}

char* memory(size_t bytes) {
    void* p = std::aligned_alloc(4096, bytes);
    std::memset(p, 0, bytes);
    return static_cast<char*>(p);
}

}  // namespace

int main() {
    if (!tutti::tiles_available()) return std::fprintf(stderr, "cpu_tiles: this machine has no AMX\n"), 2;
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));
    char *const a = memory(8 << 20), *const b = memory(4 << 20), *const c = memory(1 << 20);
    std::printf("cycles to load a tile of 1 KB, of which a product takes 16:\n");
    for (const int64_t kb : {16, 32, 64, 1024, 4096})
        std::printf("  from %4ld KB: %.0f\n", kb,
                    cycles(20000, [&](int64_t i) { load<4>(a + i * 1024 % (kb << 10), 64); }));
    std::printf("cycles a step (64 for its products) of pieces (32, 32), a from the L2, b one panel:\n");
    std::printf("%6s %14s %14s %14s %14s %14s\n", "words", "no sums", "past the L1", "sums of L2", "past the L1",
                "stored late");
    for (const int64_t words : {128, 192, 256, 384}) {
        const int64_t row = words * 4 + 64, count = words / 16, calls = 20000 / count;
        const auto rows = [&](int64_t i) { return a + i % 8 * 32 * row; };
        const auto sums = [&](int64_t i) { return c + i % 64 * 4096; };
        const auto print = [&](auto&& run) { std::printf(" %14.1f", cycles(calls, run) / static_cast<double>(count)); };
        std::printf("%6ld", words);
        print([&](int64_t i) { steps<Load::normal>(rows(i), row, b, words); });
        print([&](int64_t i) { steps<Load::past_l1>(rows(i), row, b, words); });
        print([&](int64_t i) {
            load_sums(sums(i));
            steps<Load::normal>(rows(i), row, b, words);
            store_sums(sums(i));
        });
        print([&](int64_t i) {
            load_sums(sums(i));
            steps<Load::past_l1>(rows(i), row, b, words);
            store_sums(sums(i));
        });
        print([&](int64_t i) {
            exchange_sums(sums(i + 63), sums(i));
            steps<Load::past_l1>(rows(i), row, b, words);
        });
        std::printf("\n");
    }
    asm volatile("tilerelease");
}
