// The kernels of kernels/cuda, emulated or on a GPU, add in another order than the CPU's.
#include "tests/cuda/training.h"

namespace tutti {

double kernel_tolerance() { return 1e-4; }

}  // namespace tutti
