// A CUDA table whose kernels are the CPU's, run while the emulated GPU's memory is open: a run on the GPU then equals
// the run on the CPU to the last bit, unless the engine forgets a copy, and an access to device memory outside of a
// kernel or copy ends the test. Linked by cuda_memory_tests in place of kernels/cuda.
#include <tuple>
#include <type_traits>

#include "tests/cuda/borrowed_products.h"
#include "tests/cuda/emulation/memory.h"
#include "tests/cuda/training.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti {

namespace kernels {

namespace {

// Arguments that refer to arrays of the host.
template <class T>
constexpr bool kHasSpan = std::is_same_v<T, GroupedGemm> || std::is_same_v<T, AdamW> || std::is_same_v<T, Sgd>;

template <auto Entry>
struct Borrowed;
template <class Result, class... Args, Result (*KernelTable::*Entry)(const Stream&, Args...)>
struct Borrowed<Entry> {
    static Result run(const Stream& stream, Args... args) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        check(cudaStreamIsCapturing(native(stream), &status) == cudaSuccess && status == cudaStreamCaptureStatusNone,
              "a borrowed kernel runs on the host: no graph can hold it");
        const auto run = [](const std::decay_t<Args>&... values) -> Result {
            const emulation::DeviceAccess access;
            return (cpu_table(best_isa()).*Entry)(Stream{}, values...);
        };
        if constexpr (!std::is_void_v<Result>) {  // depends on shapes only
            return run(args...);
        } else if constexpr ((kHasSpan<std::decay_t<Args>> || ...)) {  // the span may end with the call
            emulation::count_launch();
            check_cuda(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
            run(args...);
        } else {
            emulation::count_launch();
            emulation::enqueue(native(stream),
                               [run, values = std::tuple<std::decay_t<Args>...>(args...)] { std::apply(run, values); });
        }
    }
};

template <auto... Entries>
KernelTable borrow() {
    KernelTable table;
    table.name = "borrowed";
    table.gemm_implementations = gemm_implementations;
    table.attention_implementations = [] { return "borrowed"; };
    ((table.*Entries = Borrowed<Entries>::run), ...);
    replace_products(table);
    return table;
}

}  // namespace

const KernelTable& cuda_table() {
    using T = KernelTable;
    static const KernelTable table =
        borrow<&T::fill, &T::normal, &T::cast, &T::copy, &T::add, &T::accumulate, &T::scale, &T::amax, &T::quantize,
               &T::amax_of_run, &T::quantize_run, &T::dequantize, &T::relu_forward, &T::relu_backward, &T::gelu_forward,
               &T::gelu_backward, &T::swiglu_forward, &T::swiglu_backward, &T::dropout, &T::sums_of_squares,
               &T::exact_sum, &T::gemm, &T::gemm_workspace, &T::gemm_implementation, &T::bias_backward,
               &T::embedding_forward, &T::embedding_backward, &T::norm_forward, &T::norm_backward_input,
               &T::norm_backward_weight, &T::short_convolution_forward, &T::short_convolution_backward_input,
               &T::short_convolution_backward_before, &T::short_convolution_backward_weight,
               &T::short_convolution_state, &T::decay_forward, &T::decay_backward_input, &T::decay_backward_weight,
               &T::delta_rule_forward, &T::delta_rule_backward, &T::delta_rule_backward_skip, &T::delta_rule_workspace,
               &T::rope, &T::rope_table, &T::attention_implementation, &T::attention_workspace, &T::attention_forward,
               &T::attention_backward, &T::attention_merge, &T::attention_sinks, &T::attention_sinks_backward,
               &T::cross_entropy, &T::cross_entropy_partial, &T::cross_entropy_finish, &T::squared_error, &T::sample,
               &T::route, &T::route_backward, &T::gather_rows, &T::combine_rows, &T::combine_rows_backward,
               &T::sort_choices, &T::accept_choices, &T::order_arrivals, &T::grouped_gemm, &T::grouped_gemm_workspace,
               &T::balance, &T::adamw, &T::sgd>();
    return table;
}

const KernelTable& cuda_tf32_table() { return cuda_table(); }  // the CPU does not round factors

}  // namespace kernels

double kernel_tolerance() { return 0; }

}  // namespace tutti
