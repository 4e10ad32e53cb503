// nn/gathered_attention.h: causal attention over sequences that ranks share out, with the keys and values of all ranks
// gathered first (Grattafiori et al. 2024, The Llama 3 Herd of Models, 3.3.2). One all_gather for keys and values in
// the forward; in the backward another, so that they are not kept, and a reduce_scatter of their gradients in f32. Any
// mask; cheap with few key and value heads. Chunks, shapes and arguments as in ring_attention.h.
#pragma once

#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"

namespace tutti::nn {

ops::Attention gathered_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, int64_t window);
void gathered_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, int64_t window, const Tensor& dq,
                                 const Tensor& dk, const Tensor& dv);

}  // namespace tutti::nn
