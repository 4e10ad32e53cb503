// kernels/cuda/normal.cu: standard normal numbers by index, the bits of base/philox.h. Compiled without fusing
// multiply-adds (cmake/cuda.cmake), which is what makes the bits.
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
    launch(normal_kernel,
           {.blocks = dim3(static_cast<unsigned>(ceil_div(block.rows * block.draws, kThreads))),
            .threads = dim3(kThreads)},
           stream, d.y.as<float>(), block, d.key, d.std);
}

}  // namespace

void fill_normal(KernelTable& table) { table.normal = normal; }

}  // namespace tutti::kernels::cuda
