// The part of cuda_place.h for a GPU.
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

void run_backwards(bool) {}

}  // namespace tutti::kernels
