// kernels/testing/cuda_place.h: the device of the tests of the CUDA table: a GPU, or the emulation. Each test program
// links one of the two definitions (tests/cuda).
#pragma once

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

// A stream with the workspace of a device, and managed memory. Lives as long as the program. With the environment
// variable TUTTI_TEST_WITHOUT_GUARDS arrays have no guard bytes, and compute-sanitizer detects accesses beyond them.
const Place& cuda_place();

// From now on blocks, warps and lanes run last to first. A GPU chooses for itself.
void run_backwards(bool backwards);

}  // namespace tutti::kernels
