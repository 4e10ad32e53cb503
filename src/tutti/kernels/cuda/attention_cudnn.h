// kernels/cuda/attention_cudnn.h: attention by NVIDIA's cuDNN, one of the kernels that attention.cu chooses from: bf16;
// any strides with unit inner stride; causal from the first key (query_offset 0) or to the last one (Tk - Tq), with or
// without a window. The backward is the deterministic one.
#pragma once

#include <string>

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

// Why cuDNN does not compute a request; "": it does. Builds the graph for it, once.
std::string cudnn_refusal(const Stream& stream, const AttentionForward& request);
std::string cudnn_refusal(const Stream& stream, const AttentionBackward& request);

// Error for a request that is refused.
void cudnn_forward(const Stream& stream, const AttentionForward& request);
void cudnn_backward(const Stream& stream, const AttentionBackward& request);

}  // namespace tutti::kernels::cuda
