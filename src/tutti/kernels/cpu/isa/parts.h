// kernels/cpu/isa/parts.h: the functions that fill the table of one instruction set, in its namespace. Each sets its
// own entries of the table and no other. They run on every machine, so they are compiled without the instructions of
// the set (cpu/fill.h).
#pragma once

#include "tutti/kernels/cpu/isa.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::TUTTI_ISA {

// fill, cast, copy, add, accumulate, scale, relu, gelu, swiglu
[[gnu::target("general-regs-only")]] void fill_elementwise(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_random(KernelTable& table);  // normal, dropout
// sums_of_squares, bias_backward, squared_error
[[gnu::target("general-regs-only")]] void fill_reduction(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_embedding(KernelTable& table);  // embedding, rope
[[gnu::target("general-regs-only")]] void fill_norm(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_short_convolution(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_delta_rule(KernelTable& table);  // not decay
[[gnu::target("general-regs-only")]] void fill_optimizer(KernelTable& table);   // adamw, sgd, lion, muon
[[gnu::target("general-regs-only")]] void fill_attention(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_cross_entropy(KernelTable& table);
[[gnu::target("general-regs-only")]] void fill_routing(KernelTable& table);      // route, route_backward, balance
[[gnu::target("general-regs-only")]] void fill_expert_rows(KernelTable& table);  // gather_rows, combine_rows

// Our own matrix product (gemm_blocked.cpp); cpu/gemm*.cpp fills the entries.
void gemm(const Stream& stream, const Gemm& gemm);

}  // namespace tutti::kernels::TUTTI_ISA
