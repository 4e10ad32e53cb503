// kernels/cpu/isa/table.cpp: fills all entries of an instruction set but the matrix products, which cpu/gemm*.cpp
// fills.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

void fill_table(KernelTable& table) {
    fill_elementwise(table);
    fill_random(table);
    fill_reduction(table);
    fill_embedding(table);
    fill_norm(table);
    fill_short_convolution(table);
    fill_delta_rule(table);
    fill_optimizer(table);
    fill_attention(table);
    fill_cross_entropy(table);
    fill_routing(table);
    fill_expert_rows(table);
}

}  // namespace tutti::kernels::TUTTI_ISA
