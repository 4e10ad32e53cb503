// kernels/cuda/cross_entropy.cu: loss and gradient of a row by one block: maximum and sum in one pass (Milakov and
// Gimelshein 2018), the gradient in a second one over what is still in the cache.
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

using Row = Team<16>;

struct CrossEntropyShape {
    int64_t width, stride, vocab;  // of a row: elements, distance to the next, elements that count
    float grad_scale;
    bool gradient;
};

template <int W, class T>
__global__ void __launch_bounds__(Row::kBlockThreads)
    cross_entropy_kernel(CrossEntropyShape s, T* logits, const int32_t* targets, float* losses) {
    const int64_t n = Row::row();
    const int32_t target = targets[n];
    T* const row = logits + n * s.stride;
    // Element v + k of a pack; -infinity in the padding, which adds nothing to the sum.
    const auto load_row = [&](int64_t v, float(&x)[W]) {
        load<W>(row + v, x);
#pragma unroll
        for (int k = 0; k < W; ++k)
            if (v + k >= s.vocab) x[k] = -INFINITY;
    };
    if (target < 0) {
        if (Row::rank() == 0) losses[n] = 0;
        const float zeros[W] = {};
        if (s.gradient) for_columns<Row, W>(s.width, [&](int64_t v) { store<W>(zeros, row + v); });
        return;
    }
    // m = max x, sum = sum exp(x - m) of what this thread has seen; -1e38 stands for nothing yet.
    float m = -1e38f, sum = 0;
    for_columns<Row, W>(s.vocab, [&](int64_t v) {
        float x[W], largest = m;
        load_row(v, x);
#pragma unroll
        for (int k = 0; k < W; ++k) largest = fmaxf(largest, x[k]);
        if (largest > m) {
            sum *= expf(m - largest);
            m = largest;
        }
#pragma unroll
        for (int k = 0; k < W; ++k) sum += expf(x[k] - m);
    });
    const float largest = Row::max(m);
    const float lse = largest + logf(Row::sum(sum * expf(m - largest)));
    if (Row::rank() == 0) losses[n] = lse - load_one(row + target);
    if (!s.gradient) return;
    __syncthreads();  // the target's logit has been read
    for_columns<Row, W>(s.width, [&](int64_t v) {
        float x[W];
        load_row(v, x);
#pragma unroll
        for (int k = 0; k < W; ++k) x[k] = s.grad_scale * (expf(x[k] - lse) - (v + k == target ? 1.0f : 0.0f));
        store<W>(x, row + v);
    });
}

void cross_entropy(const Stream& stream, const CrossEntropy& c) {
    const int64_t N = c.logits.shape[0];
    if (N == 0) return;
    check(c.targets.dtype == DType::i32, "cross_entropy: targets must be i32, got ", c.targets.dtype);
    const CrossEntropyShape shape{.width = c.logits.shape[1],
                                  .stride = c.logits.stride(0),
                                  .vocab = c.vocab,
                                  .grad_scale = c.grad_scale,
                                  .gradient = c.gradient};
    with_activation(c.logits.dtype, [&](auto type) {
        using T = decltype(type);
        const bool wide = rows_aligned<T>(shape.width, c.logits.data) && shape.stride % kPack<T> == 0;
        launch(wide ? cross_entropy_kernel<kPack<T>, T> : cross_entropy_kernel<1, T>, grid_of_rows<Row>(N), stream,
               shape, c.logits.as<T>(), c.targets.as<const int32_t>(), c.losses.as<float>());
    });
}

}  // namespace

void fill_cross_entropy(KernelTable& table) { table.cross_entropy = cross_entropy; }

}  // namespace tutti::kernels::cuda
