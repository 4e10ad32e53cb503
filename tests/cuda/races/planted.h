// tests/cuda/races/planted.h: kernels with defects, for the detector of races.
#pragma once

#include <array>
#include <cstddef>

namespace tutti::kernels {

// A barrier before shared memory is used again; lanes of a warp without __syncwarp; two blocks that write one word.
enum class Plant { nothing, barrier, syncwarp, blocks };
inline constexpr std::array kPlants = {Plant::nothing, Plant::barrier, Plant::syncwarp, Plant::blocks};
void run_planted(Plant plant);

// A product, or a copy to global memory, of words in shared memory that were stored without publish_shared().
void read_unpublished(bool by_product);

// A product whose registers are used before it is waited for.
enum class Registers { none, sums, operand };
void use_registers(Registers early);

// Loads 16 bytes at this offset, in bytes, of memory that is aligned.
void load_word(ptrdiff_t offset);

}  // namespace tutti::kernels
