// kernels/reference/table.cpp: fills the reference table. Below: the other files of this folder.
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels {

const KernelTable& reference_table() {
    static const KernelTable table = {
        .name = "reference",
        .gemm_engines = [] { return "reference"; },
        .fill = reference::fill,
        .normal = reference::normal,
        .cast = reference::cast,
        .copy = reference::copy,
        .add = reference::add,
        .accumulate = reference::accumulate,
        .scale = reference::scale,
        .relu_forward = reference::relu_forward,
        .relu_backward = reference::relu_backward,
        .gelu_forward = reference::gelu_forward,
        .gelu_backward = reference::gelu_backward,
        .swiglu_forward = reference::swiglu_forward,
        .swiglu_backward = reference::swiglu_backward,
        .dropout = reference::dropout,
        .sums_of_squares = reference::sums_of_squares,
        .exact_sum = reference::exact_sum,
        .gemm = reference::gemm,
        .gemm_workspace = [](const Stream&, const Gemm&) -> int64_t { return 0; },
        .gemm_by_rows = true,
        .gemm_engine = [](const Stream&, const Gemm&) { return "reference"; },
        .bias_backward = reference::bias_backward,
        .embedding_forward = reference::embedding_forward,
        .embedding_backward = reference::embedding_backward,
        .norm_forward = reference::norm_forward,
        .norm_backward_input = reference::norm_backward_input,
        .norm_backward_weight = reference::norm_backward_weight,
        .short_convolution_forward = reference::short_convolution_forward,
        .short_convolution_backward_input = reference::short_convolution_backward_input,
        .short_convolution_backward_before = reference::short_convolution_backward_before,
        .short_convolution_backward_weight = reference::short_convolution_backward_weight,
        .short_convolution_state = reference::short_convolution_state,
        .rope = reference::rope,
        .rope_table = reference::rope_table,
        .attention_workspace = reference::attention_workspace,
        .attention_forward = reference::attention_forward,
        .attention_backward = reference::attention_backward,
        .attention_merge = reference::attention_merge,
        .cross_entropy = reference::cross_entropy,
        .cross_entropy_partial = reference::cross_entropy_partial,
        .cross_entropy_finish = reference::cross_entropy_finish,
        .squared_error = reference::squared_error,
        .sample = reference::sample,
        .adamw = reference::adamw,
        .sgd = reference::sgd,
    };
    return table;
}

}  // namespace tutti::kernels
