// kernels/cuda/tensor_map.h: descriptors of views for the tensor copies of Hopper. The driver's function is looked up
// at run time, so that the program starts on machines without a driver.
#pragma once

#include "tutti/device/cuda/runtime.h"
#include "tutti/tensor/view.h"

namespace tutti::kernels::cuda {

// Whether copies can take `x` (B, T, H, D) bf16: 16-byte aligned, with strides of whole 16 bytes, not empty.
bool suits_tensor_map(const View& x);
// Boxes of `rows` rows and 64 columns of one head, with the 128-byte swizzle. Error when the driver refuses.
CUtensorMap tensor_map(const View& x, int rows);

}  // namespace tutti::kernels::cuda
