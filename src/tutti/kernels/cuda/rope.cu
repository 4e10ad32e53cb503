// kernels/cuda/rope.cu: rotary position embedding, pairs (k, k + D/2); formula as in kernels/reference/attention.cpp.
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;

struct RopeShape {
    int64_t N, H, half;                    // half = D / 2
    int64_t x_row, x_head, y_row, y_head;  // strides
    int64_t cosine_row, sine_row;
    float direction;  // -1: inverse
};

// A thread rotates W pairs of one head. y may be x: a thread writes what it alone reads.
template <int W, class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopeShape s, const T* x, const int32_t* positions, const float* cosines, const float* sines, T* y) {
    const int64_t task = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, words = s.half / W;
    const int64_t k = task % words * W, head = task / words % s.H, n = task / words / s.H;
    if (n >= s.N) return;
    const T* from = x + n * s.x_row + head * s.x_head + k;
    T* to = y + n * s.y_row + head * s.y_head + k;
    const int64_t position = positions[n];
    float first[W], second[W], cosine[W], sine[W];
    load<W>(from, first);
    load<W>(from + s.half, second);
    load<W>(cosines + position * s.cosine_row + k, cosine);
    load<W>(sines + position * s.sine_row + k, sine);
#pragma unroll
    for (int i = 0; i < W; ++i) {
        const float a = first[i], b = second[i], turn = sine[i] * s.direction;
        first[i] = a * cosine[i] - b * turn;
        second[i] = b * cosine[i] + a * turn;
    }
    store_whole<W>(first, to);
    store_whole<W>(second, to + s.half);
}

void rope(const Stream& stream, View x, View positions, View cosines, View sines, bool inverse, View y) {
    const RopeShape s{.N = x.shape[0],
                      .H = x.shape[1],
                      .half = x.shape[2] / 2,
                      .x_row = x.stride(0),
                      .x_head = x.stride(1),
                      .y_row = y.stride(0),
                      .y_head = y.stride(1),
                      .cosine_row = cosines.stride(0),
                      .sine_row = sines.stride(0),
                      .direction = inverse ? -1.0f : 1.0f};
    if (s.N * s.H * s.half == 0) return;
    check(positions.dtype == DType::i32, "rope: positions must be i32, got ", positions.dtype);
    with_activation(x.dtype, [&](auto type) {
        using T = decltype(type);
        bool wide = s.half % kPack<T> == 0;
        for (const View* v : {&x, &y, &cosines, &sines})
            wide = wide && is_aligned(v->data) && v->stride(0) % kPack<T> == 0;
        wide = wide && s.x_head % kPack<T> == 0 && s.y_head % kPack<T> == 0;
        launch(wide ? rope_kernel<kPack<T>, T> : rope_kernel<1, T>,
               {.blocks = dim3(static_cast<unsigned>(ceil_div(s.N * s.H * (s.half / (wide ? kPack<T> : 1)), kThreads))),
                .threads = dim3(kThreads)},
               stream, s, x.as<const T>(), positions.as<const int32_t>(), cosines.as<const float>(),
               sines.as<const float>(), y.as<T>());
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
    launch(table_kernel,
           {.blocks = dim3(static_cast<unsigned>(ceil_div(s.P * s.half, kThreads))), .threads = dim3(kThreads)}, stream,
           s, frequencies.as<const double>(), amplitude, cosines.as<float>(), sines.as<float>());
}

}  // namespace

void fill_rope(KernelTable& table) {
    table.rope = rope;
    table.rope_table = rope_table;
}

}  // namespace tutti::kernels::cuda
