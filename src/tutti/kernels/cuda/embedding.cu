// kernels/cuda/embedding.cu: token embedding: rows of a table by token number, and their gradient without atomics (the
// first place of a token in the batch adds the rows of all its places, in order); rotary position embedding of the
// pairs (k, k + D/2), formula as in kernels/reference/attention.cpp.
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

// Stores the places n in [begin, begin + kScan) with tokens[n] = token in places.found, in order, and returns their
// number.
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
    with_type(weight.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(C, weight.data, y.data);
        launch(wide ? embedding_kernel<kPack<T>, T> : embedding_kernel<1, T>,
               grid_of_tasks(ceil_div(n, wide ? kPack<T> : 1), kThreads), stream, n, C,
               HeldRows{first_row, weight.shape[0]}, tokens.as<const int32_t>(), weight.as<const T>(), y.as<T>());
    });
}

void embedding_backward(const Stream& stream, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t N = tokens.numel(), C = dweight.columns();
    if (N == 0 || C == 0) return;
    check_tokens(tokens);
    with_type(dy.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(C, dy.data, dweight.data);
        launch(wide ? embedding_backward_kernel<kPack<T>, T> : embedding_backward_kernel<1, T>,
               {.blocks =
                    dim3(static_cast<unsigned>(N), static_cast<unsigned>(ceil_div(C, (wide ? kPack<T> : 1) * kScan))),
                .threads = dim3(kScan)},
               stream, N, C, HeldRows{first_row, dweight.shape[0]}, tokens.as<const int32_t>(), dy.as<const T>(),
               dweight.as<float>());
    });
}

struct RopeShape {
    int64_t N, H, half;     // half of the channels that are rotated
    int64_t x_row, x_head;  // strides
    int64_t step, second;   // pair k is the channels k step and k step + second
    int64_t cosine_row, sine_row;
    float direction;  // -1: inverse
};

// A thread rotates W pairs of one head in place; W > 1 with step 1.
template <int W, class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopeShape s, T* x, const int32_t* positions, const float* cosines, const float* sines) {
    const int64_t task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, words = s.half / W;
    const int64_t k = task % words * W, head = task / words % s.H, n = task / words / s.H;
    if (n >= s.N) return;
    T* const to = x + n * s.x_row + head * s.x_head + k * s.step;
    const int64_t position = positions[n];
    float first[W], second[W], cosine[W], sine[W];
    load<W>(to, first);
    load<W>(to + s.second, second);
    load<W>(cosines + position * s.cosine_row + k, cosine);
    load<W>(sines + position * s.sine_row + k, sine);
#pragma unroll
    for (int i = 0; i < W; ++i) {
        const float a = first[i], b = second[i], turn = sine[i] * s.direction;
        first[i] = a * cosine[i] - b * turn;
        second[i] = b * cosine[i] + a * turn;
    }
    store_whole<W>(first, to);
    store_whole<W>(second, to + s.second);
}

void rope(const Stream& stream, View x, View positions, View cosines, View sines, bool inverse, bool adjacent) {
    const RopeShape s{.N = x.shape[0],
                      .H = x.shape[1],
                      .half = cosines.shape[1],
                      .x_row = x.stride(0),
                      .x_head = x.stride(1),
                      .step = adjacent ? 2 : 1,
                      .second = adjacent ? 1 : cosines.shape[1],
                      .cosine_row = cosines.stride(0),
                      .sine_row = sines.stride(0),
                      .direction = inverse ? -1.0f : 1.0f};
    if (s.N * s.H * s.half == 0) return;
    check(positions.dtype == DType::i32, "rope: positions must be i32, got ", positions.dtype);
    with_type(x.dtype, [&]<class T>(T) {
        bool wide = s.half % kPack<T> == 0 && !adjacent;
        for (const View* v : {&x, &cosines, &sines}) wide = wide && is_aligned(v->data) && v->stride(0) % kPack<T> == 0;
        wide = wide && s.x_head % kPack<T> == 0;
        launch(wide ? rope_kernel<kPack<T>, T> : rope_kernel<1, T>,
               grid_of_tasks(s.N * s.H * (s.half / (wide ? kPack<T> : 1)), kThreads), stream, s, x.as<T>(),
               positions.as<const int32_t>(), cosines.as<const float>(), sines.as<const float>());
    });
}

// A thread sums the heads of one channel.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_heads_kernel(int64_t N, int64_t H, int64_t D, int64_t x_row, int64_t x_head, const T* x, T* y) {
    const int64_t task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (task >= N * D) return;
    const T* from = x + task / D * x_row + task % D;
    float sum = 0;
    for (int64_t h = 0; h < H; ++h) sum += load_one(from + h * x_head);
    store_one(sum, y + task);
}

void sum_heads(const Stream& stream, View x, View y) {
    const int64_t N = x.shape[0], H = x.shape[1], D = x.shape[2];
    if (N * D == 0) return;
    with_type(x.dtype, [&]<class T>(T) {
        launch(sum_heads_kernel<T>, grid_of_tasks(N * D, kThreads), stream, N, H, D, x.stride(0), x.stride(1),
               x.as<const T>(), y.as<T>());
    });
}

struct TableShape {
    int64_t P, half, cosine_row, sine_row;
};

// A thread makes one angle. Once per model: in double, which a GPU may be slow at.
__global__ void __launch_bounds__(kThreads)
    table_kernel(TableShape s, const double* frequencies, double amplitude, float* cosines, float* sines) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= s.P * s.half) return;
    const int64_t p = i / s.half, k = i % s.half;
    const double angle = static_cast<double>(p) * frequencies[k];
    cosines[p * s.cosine_row + k] = static_cast<float>(amplitude * cos(angle));
    sines[p * s.sine_row + k] = static_cast<float>(amplitude * sin(angle));
}

void rope_table(const Stream& stream, View frequencies, double amplitude, View cosines, View sines) {
    const TableShape s{
        .P = cosines.shape[0], .half = cosines.shape[1], .cosine_row = cosines.stride(0), .sine_row = sines.stride(0)};
    if (s.P * s.half == 0) return;
    check(frequencies.dtype == DType::f64, "rope_table: frequencies must be f64, got ", frequencies.dtype);
    launch(table_kernel, grid_of_tasks(s.P * s.half, kThreads), stream, s, frequencies.as<const double>(), amplitude,
           cosines.as<float>(), sines.as<float>());
}

}  // namespace

void fill_embedding(KernelTable& table) {
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
    table.rope = rope;
    table.sum_heads = sum_heads;
    table.rope_table = rope_table;
}

}  // namespace tutti::kernels::cuda
