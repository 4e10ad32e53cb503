// kernels/cuda/embedding.cu: token embedding: rows of a table by token number, and their gradient without atomics
// (tokens are sorted, and the rows of one are added in their order); rotary position embedding of the pairs (k, k +
// D/2), formula as in kernels/reference/attention.cpp.
#include <algorithm>

#include "tutti/kernels/cuda/counting_sort.h"
#include "tutti/kernels/cuda/fill.h"

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

// --- gradient: the tokens are sorted, and a block adds the rows of one token in their order ---

constexpr int kDigit = 10;  // bits of a row's number that a pass sorts by
constexpr int64_t kDigits = int64_t{1} << kDigit;

// A digit of the row of the matrix for each place of the batch, in the order of the pass before; tokens without a row
// count as the row behind the last.
struct DigitOf {
    const int32_t* tokens;
    const int32_t* order;  // null: the order of the batch
    HeldRows held;
    int shift;
    __device__ int32_t operator()(int64_t i) const {
        const int64_t token = tokens[order == nullptr ? i : order[i]];
        const int64_t row = held.contain(token) ? token - held.first : held.count;
        return static_cast<int32_t>(row >> shift & (kDigits - 1));
    }
    template <class F>
    void for_pointers(F f) const {
        f(tokens);
        f(order);
    }
};

struct WriteOrder {
    const int32_t* before;  // as DigitOf::order
    int32_t* order;
    __device__ void operator()(int64_t i, int32_t bucket, int32_t place, const int32_t* first) const {
        order[first[bucket] + place] = before == nullptr ? static_cast<int32_t>(i) : before[i];
    }
    template <class F>
    void for_pointers(F f) const {
        f(before);
        f(order);
    }
};

constexpr int kGradientThreads = 256;
// Rows of one token whose loads are under way together: one after the other each takes some 1 us, and the most frequent
// token of a text is one in twenty.
constexpr int kRowsAhead = 8;

// Block (place, strip) in the order of tokens: W columns per thread. Nothing to do where the token is that of the place
// before, or its row is not held.
template <int W, class T>
__global__ void __launch_bounds__(kGradientThreads)
    embedding_backward_kernel(int64_t rows, int64_t columns, HeldRows held, const int32_t* tokens, const int32_t* order,
                              const T* dy, float* dweight) {
    const int64_t place = blockIdx.x, c = (static_cast<int64_t>(blockIdx.y) * kGradientThreads + threadIdx.x) * W;
    const int32_t token = tokens[order[place]];
    if (c >= columns || !held.contain(token) || (place > 0 && tokens[order[place - 1]] == token)) return;
    float* const target = dweight + (token - held.first) * columns + c;
    float sums[W];
    load<W>(target, sums);
    bool more = true;
    for (int64_t at = place; more; at += kRowsAhead) {
        int32_t row[kRowsAhead];
        float values[kRowsAhead][W];
        bool same[kRowsAhead];
#pragma unroll
        for (int j = 0; j < kRowsAhead; ++j) row[j] = at + j < rows ? order[at + j] : -1;
#pragma unroll
        for (int j = 0; j < kRowsAhead; ++j) same[j] = row[j] >= 0 && tokens[row[j]] == token;
#pragma unroll
        for (int j = 0; j < kRowsAhead; ++j)
            if (same[j]) load<W>(dy + row[j] * columns + c, values[j]);
#pragma unroll
        for (int j = 0; j < kRowsAhead; ++j)
            if (same[j])
#pragma unroll
                for (int k = 0; k < W; ++k) sums[k] += values[j][k];
        more = same[kRowsAhead - 1];
    }
    store_whole<W>(sums, target);
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

// The order of n tokens by their rows, in `orders`, two arrays of n that change places with each pass.
const int32_t* sort_tokens(const Stream& stream, const int32_t* tokens, int64_t n, HeldRows held, int32_t* orders,
                           void* workspace) {
    const int32_t* before = nullptr;
    for (int shift = 0; held.count >> shift > 0; shift += kDigit) {
        int32_t* const order = orders + (before == orders ? n : 0);
        const Sorting<DigitOf> sorting({tokens, before, held, shift}, n, kDigits, workspace);
        count(stream, sorting);
        scatter(stream, sorting, WriteOrder{before, order});
        before = order;
    }
    return before;
}

// As many tokens at a time as the stream's workspace holds: the sums go on where those of the tokens before ended.
void embedding_backward(const Stream& stream, View tokens, View dy, int64_t first_row, View dweight) {
    const int64_t N = tokens.numel(), C = dweight.columns();
    if (N == 0 || C == 0 || dweight.shape[0] == 0) return;
    check_tokens(tokens);
    constexpr int64_t kBytes = sizeof(int32_t), kOfBlock = kBytes * (2 * kSortThreads + kDigits);
    const int64_t most = (stream.workspace_bytes - kBytes * kDigits) / kOfBlock * kSortThreads;
    check(most > 0, "embedding_backward needs ", kOfBlock + kBytes * kDigits,
          " bytes of the stream's workspace, which has ", stream.workspace_bytes);
    const HeldRows held{first_row, dweight.shape[0]};
    with_type(dy.dtype, [&]<class T>(T) {
        const bool wide = rows_aligned<T>(C, dy.data, dweight.data);
        for (int64_t begin = 0; begin < N; begin += most) {
            const int64_t n = std::min(most, N - begin);
            const int32_t* const of = tokens.as<const int32_t>() + begin;
            auto* const orders = static_cast<int32_t*>(stream.workspace);
            const int32_t* const order = sort_tokens(stream, of, n, held, orders, orders + 2 * n);
            launch(wide ? embedding_backward_kernel<kPack<T>, T> : embedding_backward_kernel<1, T>,
                   {.blocks = dim3(static_cast<unsigned>(n),
                                   static_cast<unsigned>(ceil_div(C, (wide ? kPack<T> : 1) * kGradientThreads))),
                    .threads = dim3(kGradientThreads)},
                   stream, n, C, held, of, order, dy.as<const T>() + begin * C, dweight.as<float>());
        }
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
