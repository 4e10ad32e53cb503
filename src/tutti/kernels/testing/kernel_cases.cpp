// kernels/testing/kernel_cases.cpp: the list of all cases of *_cases.cpp.
#include "tutti/kernels/testing/kernel_cases.h"

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels {

std::vector<Case> kernel_cases() {
    std::vector<Case> all;
    cases::add_elementwise(all);
    cases::add_reductions(all);
    cases::add_gemm(all);
    cases::add_embedding(all);
    cases::add_norms(all);
    cases::add_short_convolution(all);
    cases::add_delta_rule(all);
    cases::add_rope(all);
    cases::add_attention_forward(all);
    cases::add_attention_backward(all);
    cases::add_attention_merge(all);
    cases::add_attention_sinks(all);
    cases::add_losses(all);
    cases::add_sampling(all);
    cases::add_routing(all);
    cases::add_expert_rows(all);
    cases::add_choices(all);
    cases::add_grouped_gemm(all);
    cases::add_optimizers(all);
    cases::add_float8(all);
    return all;
}

}  // namespace tutti::kernels
