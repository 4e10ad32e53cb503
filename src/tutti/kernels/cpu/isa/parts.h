// kernels/cpu/isa/parts.h: what the files of this folder define for each other and for isa/table.cpp, in the namespace
// of the instruction set that they are compiled for. Each fill_ sets its own entries of the table and no other.
#pragma once

#include "tutti/kernels/cpu/isa.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::TUTTI_ISA {

void fill_elementwise(KernelTable& table);  // fill, cast, add, accumulate, scale
void fill_activation(KernelTable& table);   // relu, gelu, swiglu
void fill_normal(KernelTable& table);
void fill_dropout(KernelTable& table);
void fill_reduction(KernelTable& table);  // sums_of_squares, bias_backward, squared_error
void fill_embedding(KernelTable& table);
void fill_layer_norm(KernelTable& table);
void fill_rms_norm(KernelTable& table);
void fill_rope(KernelTable& table);
void fill_optimizer(KernelTable& table);  // adamw, sgd
void fill_attention(KernelTable& table);
void fill_cross_entropy(KernelTable& table);

// The product without oneDNN (gemm_blocked.cpp), of which cpu/gemm*.cpp makes the entries.
void gemm(const Stream& stream, const Gemm& gemm);

}  // namespace tutti::kernels::TUTTI_ISA
