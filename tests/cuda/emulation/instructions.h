// tests/cuda/emulation/instructions.h: the functions of kernels/cuda that are one instruction of a GPU (documented in
// element.h, tensor_core.h, hopper.h and wgmma.h), in C++ for the emulation, which compiles them instead.
#pragma once

#include <cmath>
#include <cstring>

#include "tests/cuda/emulation/hopper.h"
#include "tutti/base/dtype.h"

namespace tutti::kernels::cuda {

using emulation::Place;  // of the caller, where an instruction waits or orders

// element.h
inline uint16_t to_bf16_bits(float x) { return bf16_bits(x); }
inline uint32_t to_bf16_pair(float low, float high) {
    return bf16_bits(low) | static_cast<uint32_t>(bf16_bits(high)) << 16;
}
inline uint16_t to_f16_bits(float x) { return f16_bits(x); }
inline uint32_t to_f16_pair(float low, float high) {
    return f16_bits(low) | static_cast<uint32_t>(f16_bits(high)) << 16;
}
inline float from_f16_bits(uint16_t bits) { return f16_value(bits); }
inline float fast_reciprocal(float x) { return 1 / x; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline void store_16_bytes(const uint4& word, void* to) { *static_cast<uint4*>(to) = word; }

// tensor_core.h
namespace twin {

struct MmaSlot {
    uint32_t a[4];
    uint32_t b[2];
    float c[4];
};

template <class T>
float element(const uint32_t* registers, int r, int half) {
    T value;
    value.bits = static_cast<uint16_t>(registers[r] >> (16 * half));
    return static_cast<float>(value);
}

// By the places of each lane's registers in the matrices: PTX ISA, figures of mma.m16n8k16.
template <class T>
void multiply(emulation::WarpSlots& slots) {
    MmaSlot lanes[warpSize];
    float a[16][16], b[16][8];
    for (int l = 0; l < warpSize; ++l) {
        std::memcpy(&lanes[l], &slots[static_cast<size_t>(l)], sizeof lanes[l]);
        const int row = l / 4, column = 2 * (l % 4);
        for (int r = 0; r < 4; ++r)
            for (int half = 0; half < 2; ++half)
                a[row + 8 * (r % 2)][column + 8 * (r / 2) + half] = element<T>(lanes[l].a, r, half);
        for (int r = 0; r < 2; ++r)
            for (int half = 0; half < 2; ++half) b[column + 8 * r + half][row] = element<T>(lanes[l].b, r, half);
    }
    float product[16][8] = {};
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) product[row][column] += a[row][k] * b[k][column];
    for (int l = 0; l < warpSize; ++l) {
        for (int i = 0; i < 4; ++i) lanes[l].c[i] += product[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
        std::memcpy(&slots[static_cast<size_t>(l)], &lanes[l], sizeof lanes[l]);
    }
}

inline void load_matrices(uint32_t (&to)[4], const void* row, bool transposed) {
    const emulation::WarpSlots& slots =
        emulation::warp_meet(&row, sizeof row, nullptr, 0xffffffffu, emulation::Place::current());
    const int lane = emulation::lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
        uint16_t pair[2];
        for (int half = 0; half < 2; ++half) {
            const int fast = 2 * (lane % 4) + half, slow = lane / 4;
            const uint16_t* source;
            std::memcpy(&source, &slots[static_cast<size_t>(8 * matrix + (transposed ? fast : slow))], sizeof source);
            pair[half] = source[transposed ? slow : fast];
        }
        to[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
}

}  // namespace twin

template <class T>
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    twin::MmaSlot mine;
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    std::memcpy(mine.c, c, sizeof mine.c);
    const auto& slots =
        emulation::warp_meet(&mine, sizeof mine, twin::multiply<T>, 0xffffffffu, emulation::Place::current());
    std::memcpy(&mine, &slots[static_cast<size_t>(emulation::lane())], sizeof mine);
    std::memcpy(c, mine.c, sizeof mine.c);
}
inline void load_matrices(uint32_t (&to)[4], const void* row) { twin::load_matrices(to, row, false); }
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) { twin::load_matrices(to, row, true); }
inline void copy_async(void* shared, const void* global, bool exists) {
    emulation::copy_async(shared, exists ? global : nullptr);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int pending>
void wait_for_copies(Place place = Place::current()) {
    emulation::wait_for_copies(pending, place);
}

// hopper.h
inline uint32_t shared_address(const void* shared) { return emulation::shared_address(shared); }
inline void init_barrier(uint64_t& barrier, int arrivals) {
    emulation::barrier_init(&barrier, static_cast<uint32_t>(arrivals));
}
inline void publish_barriers(Place place = Place::current()) { emulation::publish_barriers(place); }
inline void arrive(uint64_t& barrier, Place place = Place::current()) { emulation::barrier_arrive(&barrier, 0, place); }
inline void arrive_expecting(uint64_t& barrier, uint32_t bytes, Place place = Place::current()) {
    emulation::barrier_arrive(&barrier, bytes, place);
}
inline void wait(uint64_t& barrier, uint32_t parity, Place place = Place::current()) {
    emulation::barrier_wait(&barrier, parity, place);
}
inline void named_barrier_sync(int id, int threads, Place place = Place::current()) {
    emulation::named_barrier_sync(id, threads, place);
}
inline void named_barrier_arrive(int id, int threads, Place place = Place::current()) {
    emulation::named_barrier_arrive(id, threads, place);
}
inline void load_box(void* shared, const CUtensorMap& map, uint64_t& barrier, int column, int row, int head, int b) {
    emulation::check_of_device(map);
    emulation::load_box(shared, &map, &barrier, {column, row, head, b});
}
inline void store_matrices(void* row, const uint32_t (&a)[4]) {
    emulation::store_matrices(row, a, emulation::Place::current());
}
inline void store_word(float4& to, const float4& word) { emulation::store_word(to, word); }
inline void publish_shared(Place place = Place::current()) { emulation::publish_shared(place); }
inline void copy_out(float* to, const void* shared, uint32_t bytes, bool add) {
    emulation::check_of_device(to);
    emulation::copy_out(to, shared, bytes, add);
}
inline void wait_until_read(Place place = Place::current()) { emulation::wait_until_read(place); }
inline void wait_until_written(Place place = Place::current()) { emulation::wait_until_written(place); }
inline void wait_for_turn(const int32_t* turns, int mine, Place place = Place::current()) {
    emulation::wait_for_turn(turns, mine, place);
}
inline void pass_turn(int32_t* turns, int next, Place place = Place::current()) {
    emulation::pass_turn(turns, next, place);
}
template <int registers>
void give_registers() {}
template <int registers>
void take_registers() {}

// wgmma.h
template <int kBlocks>
void wgmma(float (&c)[kBlocks][4], uint64_t a, uint64_t b, bool accumulate) {
    emulation::warp_group_multiply({c[0], 8 * kBlocks, nullptr, a, b, false, false, accumulate},
                                   emulation::Place::current());
}
template <int kBlocks>
void wgmma(float (&c)[kBlocks][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    emulation::warp_group_multiply({c[0], 8 * kBlocks, a, 0, b, false, true, accumulate}, emulation::Place::current());
}
template <int kBlocks>
void wgmma_transposed(float (&c)[kBlocks][4], uint64_t a, uint64_t b, bool accumulate) {
    emulation::warp_group_multiply({c[0], 8 * kBlocks, nullptr, a, b, true, true, accumulate},
                                   emulation::Place::current());
}
template <class Registers>
void pin(Registers&) {}
inline void fence_registers() {}
inline void commit_products() { emulation::commit_products(); }
template <int pending, int kBlocks>
void wait_for_products(float (&)[kBlocks][4], Place place = Place::current()) {
    emulation::wait_for_products(pending, place);
}

}  // namespace tutti::kernels::cuda
