// kernels/cuda/fill.h: the functions that fill the CUDA table. Each sets its own entries of the table and no other.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

void fill_elementwise(KernelTable& table);  // fill, cast, copy, add, accumulate, scale, relu, gelu, swiglu
void fill_random(KernelTable& table);       // normal, dropout
void fill_float8(KernelTable& table);       // amax, quantize, dequantize
void fill_reduction(KernelTable& table);    // sums_of_squares, exact_sum, bias_backward, squared_error
void fill_embedding(KernelTable& table);    // embedding, rope, rope_table
void fill_norm(KernelTable& table);
void fill_short_convolution(KernelTable& table);
void fill_delta_rule(KernelTable& table);  // and decay
void fill_optimizer(KernelTable& table);   // adamw, sgd, lion, muon
void fill_cross_entropy(KernelTable& table);
void fill_sampling(KernelTable& table);
void fill_routing(KernelTable& table);      // route, route_backward, balance
void fill_expert_rows(KernelTable& table);  // gather_rows, combine_rows, combine_rows_backward
void fill_choices(KernelTable& table);      // sort_choices, accept_choices, order_arrivals
void fill_attention(KernelTable& table);
// Our own product, without tensor cores: for tests, and chosen by name. With tf32, the factors of f32 products are
// rounded to TF32.
void fill_gemm_plain(KernelTable& table, bool tf32 = false);
// cuBLASLt, or our own product where cuBLASLt has no algorithm; our own in the emulation.
void fill_gemm(KernelTable& table, bool tf32 = false);
// What slower kernels than the fastest of this GPU have computed so far, unless a name chose them:
// KernelTable::slow_work.
std::vector<std::string> slow_products();
// The product of one group of rows, whose number changes from call to call: as fill_gemm()'s, chosen for rounded rows.
using GemmOfGroup = void (*)(const Stream&, const Gemm&);
GemmOfGroup gemm_of_group(bool tf32);
void fill_grouped_gemm(KernelTable& table, bool tf32 = false);  // one such product per group

}  // namespace tutti::kernels::cuda
