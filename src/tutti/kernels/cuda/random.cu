// kernels/cuda/random.cu: standard normal numbers and the mask of dropout, by global index: the bits of base/philox.h.
// Compiled without fusing multiply-adds (cmake/cuda.cmake), which would change the bits of the normal numbers.
#include "tutti/base/philox.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

struct Block {
    int64_t rows, columns, stride;  // of y
    int64_t first, row_step;        // indices
    int64_t draws;                  // Philox blocks that a row may touch
};

// A thread draws one Philox block, four indices, and writes those that lie in its row.
__global__ void __launch_bounds__(kThreads) normal_kernel(float* y, Block block, RandomKey key, float std) {
    const int64_t task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t row = task / block.draws;
    if (row >= block.rows) return;
    const int64_t first = block.first + row * block.row_step;
    const int64_t draw = first / 4 + task % block.draws;
    const auto words = philox(key, static_cast<uint64_t>(draw));
    float normals[4];
    box_muller(words[0], words[1], normals[0], normals[1]);
    box_muller(words[2], words[3], normals[2], normals[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int64_t column = draw * 4 + i - first;
        if (column >= 0 && column < block.columns) y[row * block.stride + column] = std * normals[i];
    }
}

void normal(const Stream& stream, const Normal& d) {
    const Block block{.rows = d.y.shape[0],
                      .columns = d.y.shape[1],
                      .stride = d.y.stride(0),
                      .first = d.first,
                      .row_step = d.row_step,
                      .draws = d.y.shape[1] / 4 + 2};
    if (block.rows * block.columns == 0) return;
    launch(normal_kernel, grid_of_tasks(block.rows * block.draws, kThreads), stream, d.y.as<float>(), block, d.key,
           d.std);
}

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
    with_type(x.dtype, [&]<class T>(T) {
        const bool wide = columns % kPack<T> == 0 && is_aligned(x.data) && is_aligned(y.data);
        launch(wide ? dropout_kernel<kPack<T>, T> : dropout_kernel<1, T>,
               grid_of_tasks(ceil_div(n, wide ? kPack<T> : 1), kThreads), stream, n, columns, x.as<const T>(),
               d.row_index.as<const int64_t>(), mask, y.as<T>());
    });
}

}  // namespace

void fill_random(KernelTable& table) {
    table.normal = normal;
    table.dropout = dropout;
}

}  // namespace tutti::kernels::cuda
