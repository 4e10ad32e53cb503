// kernels/cuda/fill.h: the parts that table.cpp puts together. Each part sets its own entries of the table and no
// other.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

void fill_elementwise(KernelTable& table);  // fill, cast, add, accumulate, scale
void fill_activation(KernelTable& table);   // relu, gelu, swiglu

}  // namespace tutti::kernels::cuda
