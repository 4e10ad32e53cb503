// kernels/cuda/attention_cudnn.h: attention by NVIDIA's cuDNN, a peer to compare with. Chosen by name only:
// TUTTI_CUDA_ATTENTION=cudnn, or `tutti bench attention`, which times it beside our own. attention_cudnn.cpp implements
// it; a build without the headers of cudnn-frontend compiles attention_cudnn_absent.cpp instead.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

// Sets the entries of attention. bf16; any strides with unit inner stride; causal from the first key (query_offset 0)
// or to the last one (Tk - Tq), with or without a window. The backward is the deterministic one. Other requests, among
// them packed documents (first_key), f32 results and key_offset, throw UsageError when made. Throws UsageError, naming
// the remedy, where this build or this machine has no cuDNN.
void use_cudnn_attention(KernelTable& table);

}  // namespace tutti::kernels::cuda
