// kernels/testing/cuda_place.h: the device of the tests of the CUDA table: a GPU, or the emulation. Each test program
// links one of the two definitions (tests/cuda).
#pragma once

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

// A stream with the workspace of a device, and managed memory; lives as long as the program. With the environment
// variable TUTTI_TEST_WITHOUT_GUARDS arrays have no guard bytes, and compute-sanitizer detects accesses beyond them.
const Place& cuda_place();

// Runs blocks, warps and lanes last to first in later launches. A GPU ignores the call.
void run_backwards(bool backwards);

}  // namespace tutti::kernels
