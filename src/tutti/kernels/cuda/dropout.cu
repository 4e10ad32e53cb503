// kernels/cuda/dropout.cu: the mask of base/philox.h by global index; forward and backward alike.
#include "tutti/base/philox.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

struct Mask {
    RandomKey key;
    float probability, factor;  // factor: 1 / (1 - probability)
    int64_t column_offset, columns_total;
};

// A thread takes N elements of one row and draws a Philox block for every four indices.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(int64_t n, int64_t columns, const T* x, const int64_t* row_index, Mask mask, T* y) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i >= n) return;
    const int64_t row = i / columns;
    const auto first =
        static_cast<uint64_t>(row_index[row] * mask.columns_total + mask.column_offset + (i - row * columns));
    float values[N];
    load<N>(x + i, values);
    auto words = philox(mask.key, first / 4);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const uint64_t index = first + k;
        if (k > 0 && index % 4 == 0) words = philox(mask.key, index / 4);
        const uint64_t at = index % 4;
        const uint32_t word = at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
        const float uniform = static_cast<float>(word >> 8) * 0x1p-24f;
        values[k] = uniform >= mask.probability ? values[k] * mask.factor : 0;
    }
    store<N>(values, y + i);
}

void dropout(const Stream& stream, View x, const Dropout& d, View y) {
    const int64_t n = x.numel(), columns = x.columns();
    if (n == 0) return;
    check(d.row_index.dtype == DType::i64, "dropout: row_index must be i64, got ", d.row_index.dtype);
    const Mask mask{.key = d.key,
                    .probability = d.probability,
                    .factor = static_cast<float>(1 / (1 - static_cast<double>(d.probability))),
                    .column_offset = d.column_offset,
                    .columns_total = d.columns_total};
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = columns % kPack<T> == 0 && is_aligned(x.data) && is_aligned(y.data);
        launch(wide ? dropout_kernel<kPack<T>, T> : dropout_kernel<1, T>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(n, (wide ? kPack<T> : 1) * kThreads))),
                .threads = dim3(kThreads)},
               stream, n, columns, x.as<const T>(), d.row_index.as<const int64_t>(), mask, y.as<T>());
    });
}

}  // namespace

void fill_dropout(KernelTable& table) { table.dropout = dropout; }

}  // namespace tutti::kernels::cuda
