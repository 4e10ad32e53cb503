// kernels/cuda/optimizer.cu: one update of all parameters in one launch, at the speed of memory. Formulas as in
// kernels/kernel_table.h.
#include <initializer_list>

#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;
// A 16-byte word of bf16 values stands beside two of each f32 array.
constexpr int kWide = kPack<bf16>;
constexpr int64_t kBlockElements = kThreads * kWide;

struct Part {
    float* master;
    const float* gradient;
    bf16* value;  // or nullptr
    float *m, *v;
    int64_t n;
    float weight_decay;
    unsigned first_block;  // of the launch: where this part's blocks begin

    __device__ bool is_wide() const {
        return is_aligned(master) && is_aligned(gradient) && is_aligned(value) && is_aligned(m) && is_aligned(v);
    }
};
// The parameters that one launch updates, as an argument of the kernel: 32764 bytes at most from sm_70 on.
struct Parts {
    static constexpr int kCapacity = 512;
    Part at[kCapacity];
    int count = 0;

    __device__ const Part& of_block(unsigned block) const {
        int low = 0, high = count;  // the last one that begins at `block` or before
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (at[middle].first_block <= block ? low : high) = middle;
        }
        return at[low];
    }
    template <class F>
    void for_pointers(F f) const {
        for (const Part& part : std::span(at, static_cast<size_t>(count)))
            for (const void* data :
                 std::initializer_list<const void*>{part.master, part.gradient, part.value, part.m, part.v})
                f(data);
    }
};

struct AdamWRule {
    static constexpr bool kHasSecond = true;
    float lr, beta1, beta2, eps, correction1, correction2, grad_scale;

    __device__ __forceinline__ void operator()(float& p, float g, float& m, float& v, float decay) const {
        g *= grad_scale;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const float direction = m / correction1 / (sqrtf(v / correction2) + eps);
        p -= lr * (direction + decay * p);
    }
};
struct SgdRule {
    static constexpr bool kHasSecond = false;
    float lr, momentum, grad_scale;

    __device__ __forceinline__ void operator()(float& p, float g, float& m, float&, float decay) const {
        m = momentum * m + (grad_scale * g + decay * p);
        p -= lr * m;
    }
};

template <int N, class Rule>
__device__ __forceinline__ void update_elements(const Part& part, int64_t i, const Rule& rule) {
    float p[N], g[N], m[N], v[N] = {};
    load<N>(part.gradient + i, g);
    load<N>(part.master + i, p);
    load<N>(part.m + i, m);
    if constexpr (Rule::kHasSecond) load<N>(part.v + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) rule(p[k], g[k], m[k], v[k], part.weight_decay);
    store<N>(m, part.m + i);
    if constexpr (Rule::kHasSecond) store<N>(v, part.v + i);
    store<N>(p, part.master + i);
    if (part.value != nullptr) store<N>(p, part.value + i);
}

template <class Rule>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ Parts parts, Rule rule) {
    const Part& part = parts.of_block(blockIdx.x);
    const int64_t begin = (blockIdx.x - part.first_block) * kBlockElements;
    const int64_t end = begin + kBlockElements < part.n ? begin + kBlockElements : part.n;
    if (part.is_wide()) {
        int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kWide;
        if (i + kWide <= end) return update_elements<kWide>(part, i, rule);
        for (; i < end; ++i) update_elements<1>(part, i, rule);
    } else {
        for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) update_elements<1>(part, i, rule);
    }
}

template <class Rule>
void update(const Stream& stream, std::span<const OptimizerPiece> pieces, const Rule& rule) {
    static_assert(sizeof(Parts) + sizeof(Rule) <= 32764);
    Parts parts;
    int64_t blocks = 0;
    const auto flush = [&] {
        if (blocks == 0) return;
        launch(update_kernel<Rule>, {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads)}, stream,
               parts, rule);
        parts.count = 0;
        blocks = 0;
    };
    for (const OptimizerPiece& piece : pieces) {
        const int64_t n = piece.master.numel();
        if (n == 0) continue;
        if (parts.count == Parts::kCapacity) flush();
        parts.at[parts.count++] = {.master = piece.master.as<float>(),
                                   .gradient = piece.gradient.as<const float>(),
                                   .value = piece.value.as<bf16>(),
                                   .m = piece.m.as<float>(),
                                   .v = piece.v.as<float>(),
                                   .n = n,
                                   .weight_decay = piece.weight_decay,
                                   .first_block = static_cast<unsigned>(blocks)};
        blocks += ceil_div(n, kBlockElements);
    }
    flush();
}

void adamw(const Stream& stream, const AdamW& a) {
    update(stream, a.pieces, AdamWRule{a.lr, a.beta1, a.beta2, a.eps, a.correction1, a.correction2, a.grad_scale});
}

void sgd(const Stream& stream, const Sgd& s) { update(stream, s.pieces, SgdRule{s.lr, s.momentum, s.grad_scale}); }

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
}

}  // namespace tutti::kernels::cuda
