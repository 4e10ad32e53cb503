// kernels/reference/fill.h: the reference kernels, one per entry of kernel_table.h, which states shapes and formulas.
// The reference kernels define the correct result: plain loops, sums in double, each output rounded once, one thread,
// any float type. They may allocate a row of doubles to keep a formula readable; speed is not their purpose.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::reference {

// Each sets its own entries of the table and no other.
void fill_elementwise(KernelTable& table);  // fill to scale, activations, normal, dropout
void fill_float8(KernelTable& table);       // amax, quantize, dequantize
void fill_matrix(KernelTable& table);       // gemm, bias_backward, embedding, sums_of_squares, exact_sum
void fill_norm(KernelTable& table);
void fill_short_convolution(KernelTable& table);
void fill_delta_rule(KernelTable& table);  // and decay
void fill_attention(KernelTable& table);   // attention, rope, rope_table
void fill_loss(KernelTable& table);        // cross_entropy, squared_error, sample
void fill_experts(KernelTable& table);     // routing, rows of experts, grouped_gemm
void fill_optimizer(KernelTable& table);   // adamw, sgd

}  // namespace tutti::kernels::reference
