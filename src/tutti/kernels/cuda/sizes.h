// kernels/cuda/sizes.h: the sizes of the CUDA table, which a build without CUDA knows too: it plans runs on GPUs.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

// Each chunk reads and writes the f32 gradient of the head once: at Llama 3's 128256 words 2.1 GB, a millisecond.
inline constexpr int64_t kLossChunkBytes = 1 << 30;

// The backward keeps D_i of each query row.
inline int64_t attention_workspace(const Stream&, const Shape& q, const Shape&, bool backward) {
    return backward ? q[0] * q[1] * q[2] : 0;
}

}  // namespace tutti::kernels::cuda
