// kernels/testing/cuda_place.h: where the tests of the CUDA table run: on a GPU, or emulated. Each test program links
// one of the two definitions (tests/cuda).
#pragma once

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

// A stream and pinned memory, which kernels reach under the host's addresses. Lives as long as the program.
const Place& cuda_place();

// From now on blocks, warps and lanes run last to first. A GPU chooses for itself.
void run_backwards(bool backwards);

}  // namespace tutti::kernels
