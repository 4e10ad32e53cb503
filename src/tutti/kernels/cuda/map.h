// kernels/cuda/map.h: elementwise kernels: y[i] = op(x1[i], x2[i], ...). Used by elementwise.cu, activation.cu.
#pragma once

#include <algorithm>

#include "tutti/kernels/cuda/element.h"

namespace tutti::kernels::cuda {

inline constexpr int kMapThreads = 256;

template <int N, class Op, class Y, class... X>
__device__ __forceinline__ void map_elements(int64_t i, Op op, Y* y, const X*... x) {
    // One array per input, loaded before the first use.
    [&]<size_t... I>(std::index_sequence<I...>) {
        float in[sizeof...(X) + 1][N], out[N];
        (load<N>(x + i, in[I]), ...);
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = op(in[I][k]...);
        store<N>(out, y + i);
    }
    (std::index_sequence_for<X...>{});
}

// A thread takes N elements, the last ones of the array one by one.
template <int N, class Op, class Y, class... X>
__global__ void __launch_bounds__(kMapThreads) map_kernel(int64_t n, Op op, Y* y, const X*... x) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * N;
    if (i + N <= n) return map_elements<N>(i, op, y, x...);
    for (; i < n; ++i) map_elements<1>(i, op, y, x...);
}

// y may be one of the inputs.
template <class Op, class Y, class... X>
void map(const Stream& stream, int64_t n, Op op, Y* y, const X*... x) {
    if (n == 0) return;
    constexpr int kWide = std::max({kPack<Y>, kPack<X>...});
    const auto run = [&]<int N>(std::integral_constant<int, N>) {
        launch(map_kernel<N, Op, Y, X...>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(n, N * kMapThreads))), .threads = dim3(kMapThreads)},
               stream, n, op, y, x...);
    };
    if (is_aligned(y) && (is_aligned(x) && ...))
        run(std::integral_constant<int, kWide>{});
    else
        run(std::integral_constant<int, 1>{});
}

}  // namespace tutti::kernels::cuda
