// kernels/cuda/embedding.cu: rows of a table by token number, and their gradient without atomics: the first place of a
// token in the batch adds the rows of all its places, in order.
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// The rows of the whole table that the matrix holds.
struct HeldRows {
    int64_t first, count;
    __device__ bool contain(int64_t row) const { return row >= first && row < first + count; }
};

// y[n] = weight[tokens[n] - held.first], or zeros; a thread copies W elements.
template <int W, class T>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(int64_t n, int64_t columns, HeldRows held, const int32_t* tokens, const T* weight, T* y) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
    if (i >= n) return;
    const int64_t row = i / columns, token = tokens[row];
    float values[W] = {};
    if (held.contain(token)) load<W>(weight + (token - held.first) * columns + (i - row * columns), values);
    store<W>(values, y + i);
}

constexpr int kScan = 256;  // threads of a block of the gradient, and tokens that it looks at together
constexpr int kScanWarps = kScan / kWarp;

struct Places {
    int count[kScanWarps];
    int64_t found[kScan];
};

// Places n in [begin, begin + kScan) with tokens[n] = token, in order, in places.found. Returns how many.
__device__ int find_places(Places& places, const int32_t* tokens, int64_t begin, int64_t end, int32_t token) {
    const int64_t n = begin + threadIdx.x;
    const bool hit = n < end && tokens[n] == token;
    const unsigned votes = __ballot_sync(kAllLanes, hit);
    const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    __syncthreads();  // the places found before have been used
    if (lane == 0) places.count[warp] = __popc(votes);
    __syncthreads();
    int before = 0, total = 0;
    for (unsigned w = 0; w < kScanWarps; ++w) {
        if (w < warp) before += places.count[w];
        total += places.count[w];
    }
    if (hit) places.found[before + __popc(votes & ((1u << lane) - 1))] = n;
    __syncthreads();
    return total;
}

// Block (n, strip): W columns per thread. Nothing to do when the row is not held, or the token stands earlier in the
// batch.
template <int W, class T>
__global__ void __launch_bounds__(kScan) embedding_backward_kernel(int64_t rows, int64_t columns, HeldRows held,
                                                                   const int32_t* tokens, const T* dy, float* dweight) {
    Places& places = block_shared<Places>();
    const int64_t first = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kScan + threadIdx.x) * W;
    const int32_t token = tokens[first];
    if (!held.contain(token)) return;
    for (int64_t begin = 0; begin < first; begin += kScan)
        if (find_places(places, tokens, begin, first, token) > 0) return;
    float sums[W] = {};
    float* const target = dweight + (token - held.first) * columns + c;
    if (c < columns) load<W>(target, sums);
    for (int64_t begin = first; begin < rows; begin += kScan) {
        const int count = find_places(places, tokens, begin, rows, token);
        if (c >= columns) continue;
        for (int i = 0; i < count; ++i) {
            float row[W];
            load<W>(dy + places.found[i] * columns + c, row);
#pragma unroll
            for (int k = 0; k < W; ++k) sums[k] += row[k];
        }
    }
    if (c < columns) store_whole<W>(sums, target);
}

void check_tokens(const View& tokens) {
    check(tokens.dtype == DType::i32, "embedding: tokens must be i32, got ", tokens.dtype);
}

void embedding_forward(const Stream& stream, View tokens, View weight, int64_t first_row, View y) {
    const int64_t C = weight.columns(), n = tokens.numel() * C;
    if (n == 0) return;
    check_tokens(tokens);
    with_activation(weight.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, weight.data, y.data);
        launch(wide ? embedding_kernel<kPack<T>, T> : embedding_kernel<1, T>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(n, (wide ? kPack<T> : 1) * kThreads))),
                .threads = dim3(kThreads)},
               stream, n, C, HeldRows{first_row, weight.shape[0]}, tokens.as<const int32_t>(), weight.as<const T>(),
               y.as<T>());
    });
}

void embedding_backward(const Stream& stream, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t N = tokens.numel(), C = dweight.columns();
    if (N == 0 || C == 0) return;
    check_tokens(tokens);
    with_activation(dy.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(C, dy.data, dweight.data);
        launch(wide ? embedding_backward_kernel<kPack<T>, T> : embedding_backward_kernel<1, T>,
               {.blocks =
                    dim3(static_cast<unsigned>(N), static_cast<unsigned>(ceil_div(C, (wide ? kPack<T> : 1) * kScan))),
                .threads = dim3(kScan)},
               stream, N, C, HeldRows{first_row, dweight.shape[0]}, tokens.as<const int32_t>(), dy.as<const T>(),
               dweight.as<float>());
    });
}

}  // namespace

void fill_embedding(KernelTable& table) {
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
}

}  // namespace tutti::kernels::cuda
