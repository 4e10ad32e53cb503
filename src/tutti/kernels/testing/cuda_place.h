// kernels/testing/cuda_place.h: the device of the tests of the CUDA table: a GPU, or the emulation. Each test program
// links one of the two definitions (tests/cuda).
#pragma once

#include <string>

#include "tutti/kernels/attention_choice.h"
#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

// A stream with the workspace of a device, the device's arrays, and pinned memory; lives as long as the program. With
// the environment variable TUTTI_TEST_WITHOUT_GUARDS arrays have no guard bytes, and compute-sanitizer detects accesses
// beyond them.
const Place& cuda_place();

// cuda_place() with attention by the kernels of this name.
struct PlaceOfAttention {
    explicit PlaceOfAttention(const std::string& kernels)
        : choice{.kernels = kernels, .tuning = nullptr, .others = {}}, place(cuda_place()) {
        place.stream.attention = &choice;
    }
    PlaceOfAttention(const PlaceOfAttention&) = delete;
    PlaceOfAttention& operator=(const PlaceOfAttention&) = delete;

    bool had_others() const { return !choice.others.empty(); }  // other kernels computed what these do not take

    AttentionChoice choice;
    Place place;
};

// In later launches blocks, warps and lanes run last to first, or in an order drawn by a seed; run_backwards(false)
// ends both. A GPU ignores the calls.
void run_backwards(bool backwards);
void run_at_random(uint64_t seed);

}  // namespace tutti::kernels
