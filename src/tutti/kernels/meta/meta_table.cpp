#include "tutti/kernels/meta/meta_table.h"

#include <algorithm>
#include <cstddef>

#include "tutti/device/meta/meta_device.h"

namespace tutti::kernels {

namespace {

// A string that can be a template argument: a kernel is a plain function pointer, and captures nothing.
template <size_t N>
struct Name {
    char text[N];
    constexpr Name(const char (&from)[N]) { std::copy_n(from, N, text); }
};

template <Name name, class... Args>
void silence(void (*&entry)(const Stream&, Args...)) {
    static constexpr Name kName = name;
    if (entry != nullptr)
        entry = [](const Stream& stream, Args...) {
            static_cast<MetaStream*>(stream.native)->last_kernel = kName.text;
        };
}

}  // namespace

KernelTable meta_table(const KernelTable& target) {
    KernelTable table = target;
    silence<"fill">(table.fill);
    silence<"normal">(table.normal);
    silence<"cast">(table.cast);
    silence<"copy">(table.copy);
    silence<"add">(table.add);
    silence<"accumulate">(table.accumulate);
    silence<"scale">(table.scale);
    silence<"amax">(table.amax);
    silence<"quantize">(table.quantize);
    silence<"amax_of_run">(table.amax_of_run);
    silence<"quantize_run">(table.quantize_run);
    silence<"dequantize">(table.dequantize);
    silence<"relu_forward">(table.relu_forward);
    silence<"relu_backward">(table.relu_backward);
    silence<"gelu_forward">(table.gelu_forward);
    silence<"gelu_backward">(table.gelu_backward);
    silence<"swiglu_forward">(table.swiglu_forward);
    silence<"swiglu_backward">(table.swiglu_backward);
    silence<"soft_cap">(table.soft_cap);
    silence<"dropout">(table.dropout);
    silence<"sums_of_squares">(table.sums_of_squares);
    silence<"exact_sum">(table.exact_sum);
    silence<"gemm">(table.gemm);
    silence<"bias_backward">(table.bias_backward);
    silence<"embedding_forward">(table.embedding_forward);
    silence<"embedding_backward">(table.embedding_backward);
    silence<"norm_forward">(table.norm_forward);
    silence<"norm_backward_input">(table.norm_backward_input);
    silence<"norm_backward_weight">(table.norm_backward_weight);
    silence<"short_convolution_forward">(table.short_convolution_forward);
    silence<"short_convolution_backward_input">(table.short_convolution_backward_input);
    silence<"short_convolution_backward_before">(table.short_convolution_backward_before);
    silence<"short_convolution_backward_weight">(table.short_convolution_backward_weight);
    silence<"short_convolution_state">(table.short_convolution_state);
    silence<"decay_forward">(table.decay_forward);
    silence<"decay_backward_input">(table.decay_backward_input);
    silence<"decay_backward_weight">(table.decay_backward_weight);
    silence<"delta_rule_forward">(table.delta_rule_forward);
    silence<"delta_rule_backward">(table.delta_rule_backward);
    silence<"delta_rule_backward_skip">(table.delta_rule_backward_skip);
    silence<"rope_table">(table.rope_table);
    silence<"rope">(table.rope);
    silence<"sum_heads">(table.sum_heads);
    silence<"attention_forward">(table.attention_forward);
    silence<"attention_backward">(table.attention_backward);
    silence<"attention_merge">(table.attention_merge);
    silence<"attention_sinks">(table.attention_sinks);
    silence<"attention_sinks_backward">(table.attention_sinks_backward);
    silence<"cross_entropy">(table.cross_entropy);
    silence<"cross_entropy_partial">(table.cross_entropy_partial);
    silence<"cross_entropy_finish">(table.cross_entropy_finish);
    silence<"squared_error">(table.squared_error);
    silence<"sample">(table.sample);
    silence<"route">(table.route);
    silence<"route_backward">(table.route_backward);
    silence<"gather_rows">(table.gather_rows);
    silence<"combine_rows">(table.combine_rows);
    silence<"combine_rows_backward">(table.combine_rows_backward);
    silence<"sort_choices">(table.sort_choices);
    silence<"accept_choices">(table.accept_choices);
    silence<"order_arrivals">(table.order_arrivals);
    silence<"grouped_gemm">(table.grouped_gemm);
    silence<"balance">(table.balance);
    silence<"adamw">(table.adamw);
    silence<"sgd">(table.sgd);
    silence<"lion">(table.lion);
    silence<"muon_momentum">(table.muon_momentum);
    silence<"muon_descent">(table.muon_descent);
    return table;
}

}  // namespace tutti::kernels
