// device/cuda/architectures.h: which GPUs the kernels of a build run on.
#pragma once

#include <string_view>

namespace tutti::cuda {

// The architectures of this build, as CMAKE_CUDA_ARCHITECTURES with commas: "80-real,90a-real".
std::string_view compiled_architectures();

// Whether code for one of `architectures` runs on compute capability major.minor. Machine code ("90-real") runs on its
// major version from its minor one on, PTX ("90-virtual") from there on, "90" is both; with "a" they run on that one
// capability only, with "f" on its major version (CUDA C++ programming guide, "compute capabilities"). True for words
// without a number ("native", "all"), which CMake expands.
bool runs_on(std::string_view architectures, int major, int minor);

}  // namespace tutti::cuda
