// kernels/cuda/optimizer.cu: one update of all parameters in one launch, at the speed of memory. Formulas as in
// kernels/kernel_table.h.
#include <algorithm>
#include <initializer_list>

#include "tutti/base/dynamic_map.h"
#include "tutti/base/stochastic.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;
// A 16-byte word of 16-bit values stands beside two of each f32 array. The words of a warp are a block of the state.
constexpr int kWide = kPack<bf16>;
constexpr int64_t kBlockElements = kThreads * kWide;
static_assert(kWide * kWarp == kStateBlock);

// The parameters that one launch updates, as an argument of the kernel: 32764 bytes at most from sm_70 on.
template <class Part, int capacity>
struct Parts {
    static constexpr int kCapacity = capacity;
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
        for (const Part& part : std::span(at, static_cast<size_t>(count))) part.for_pointers(f);
    }
};

// All in f32, but for the copy of the master.
struct Part {
    float* master;
    const float* gradient;
    void* value;  // of value_type; or nullptr
    float *m, *v;
    int64_t n;
    float weight_decay;
    DType value_type;
    unsigned first_block;  // of the launch: where this part's blocks begin

    explicit Part(const OptimizerPiece& piece)
        : master(piece.master.as<float>()),
          gradient(piece.gradient.as<const float>()),
          value(piece.value.data),
          m(piece.m.values.as<float>()),
          v(piece.v.values.as<float>()),
          n(piece.master.numel()),
          weight_decay(piece.weight_decay),
          value_type(piece.value.dtype) {}
    Part() = default;

    __device__ bool is_wide() const {
        return is_aligned(master) && is_aligned(gradient) && is_aligned(value) && is_aligned(m) && is_aligned(v);
    }
    template <class F>
    void for_pointers(F f) const {
        for (const void* data : std::initializer_list<const void*>{master, gradient, value, m, v}) f(data);
    }
};

// --- values of any type that a moment or a master may have ---

struct StoredMoment {
    void* values = nullptr;
    float* largest = nullptr;
    RandomKey key = 0;
    DType dtype = DType::f32;

    StoredMoment() = default;
    explicit StoredMoment(const Moment& moment)
        : values(moment.values.data),
          largest(moment.largest.as<float>()),
          key(moment.key),
          dtype(moment.values.defined() ? moment.values.dtype : DType::f32) {}
};

// A part with a value that is not f32.
struct StoredPart {
    void *master, *update;
    const void* gradient;
    void* value;
    StoredMoment m, v;
    RandomKey master_key;
    GlobalElements elements;
    int64_t n;
    float weight_decay, update_scale;
    DType master_type, gradient_type, value_type, update_type;
    unsigned first_block;

    explicit StoredPart(const OptimizerPiece& piece)
        : master(piece.master.data),
          update(piece.update.data),
          gradient(piece.gradient.data),
          value(piece.value.data),
          m(piece.m),
          v(piece.v),
          master_key(piece.master_key),
          elements(piece.elements),
          n((piece.master.defined() ? piece.master : piece.update).numel()),
          weight_decay(piece.weight_decay),
          update_scale(piece.update_scale),
          master_type(piece.master.dtype),
          gradient_type(piece.gradient.dtype),
          value_type(piece.value.dtype),
          update_type(piece.update.dtype) {}
    StoredPart() = default;

    template <class F>
    void for_pointers(F f) const {
        for (const void* data : std::initializer_list<const void*>{master, update, gradient, value, m.values, m.largest,
                                                                   v.values, v.largest})
            f(data);
    }
};

// Elements [i, i + count) of an array, count at most kWide: whole words where they fit.
template <class T>
__device__ __forceinline__ void read(const T* from, int64_t i, int count, float (&to)[kWide]) {
    if (count == kWide && is_aligned(from + i)) return load<kWide>(from + i, to);
#pragma unroll
    for (int k = 0; k < kWide; ++k)
        if (k < count) to[k] = load_one(from + i + k);
}
__device__ __forceinline__ void read(const void* from, DType type, int64_t i, int count, float (&to)[kWide]) {
    if (type == DType::bf16) return read(static_cast<const bf16*>(from), i, count, to);
    read(static_cast<const float*>(from), i, count, to);
}
template <class T>
__device__ __forceinline__ void write(const float (&from)[kWide], T* to, int64_t i, int count) {
    if (count == kWide && is_aligned(to + i)) return store<kWide>(from, to + i);
#pragma unroll
    for (int k = 0; k < kWide; ++k)
        if (k < count) store_one(from[k], to + i + k);
}
__device__ __forceinline__ void write(const float (&from)[kWide], void* to, DType type, RandomKey key,
                                      const GlobalElements& elements, int64_t i, int count) {
    if (type == DType::f32) return write(from, static_cast<float*>(to), i, count);
    if (type == DType::f16) return write(from, static_cast<f16*>(to), i, count);
    if (key == 0) return write(from, static_cast<bf16*>(to), i, count);
    auto* bits = static_cast<uint16_t*>(to) + i;
    int64_t drawn = -1;
    std::array<uint32_t, 4> words{};
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
        if (k >= count) break;
        const int64_t at = i + k, e = elements.first + at / elements.width * elements.stride + at % elements.width;
        if (e / 8 != drawn) {
            drawn = e / 8;
            words = philox(key, static_cast<uint64_t>(drawn));
        }
        const auto half = static_cast<int>(e % 8);  // an index would put the words into memory
        const uint32_t word = half < 2 ? words[0] : half < 4 ? words[1] : half < 6 ? words[2] : words[3];
        bits[k] = stochastic_bf16_bits(from[k], word >> (half % 2 * 16) & 0xffffu);
    }
}

template <bool kSign>
__device__ __forceinline__ const DynamicMap& dynamic_map() {
    static constexpr DynamicMap kMap{kSign};
    return kMap;
}

template <bool kSign>
__device__ __forceinline__ void read(const StoredMoment& moment, int64_t i, int count, float (&to)[kWide]) {
    if (moment.dtype != DType::u8) return read(moment.values, moment.dtype, i, count, to);
    const float largest = moment.largest[i / kStateBlock];
#pragma unroll
    for (int k = 0; k < kWide; ++k)
        if (k < count) to[k] = dynamic_map<kSign>().values[static_cast<const uint8_t*>(moment.values)[i + k]] * largest;
}

// Every lane of the warp calls, also those without elements.
template <bool kSign>
__device__ __forceinline__ void write(const float (&from)[kWide], const StoredMoment& moment,
                                      const GlobalElements& elements, int64_t i, int count) {
    if (moment.dtype != DType::u8) return write(from, moment.values, moment.dtype, moment.key, elements, i, count);
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kWide; ++k)
        if (k < count) largest = fmaxf(largest, fabsf(from[k]));
    largest = warp_max(largest);
    if (count > 0 && i % kStateBlock == 0) moment.largest[i / kStateBlock] = largest;
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
        if (k >= count) break;
        const float share = largest > 0 ? from[k] / largest : 0;
        int code = 0;  // how many midpoints are below, by bisection
#pragma unroll
        for (int step = 128; step > 0; step /= 2)
            if (share > dynamic_map<kSign>().midpoints[code + step - 1]) code += step;
        if (!kSign && code == 0 && from[k] > 0) code = 1;
        static_cast<uint8_t*>(moment.values)[i + k] = static_cast<uint8_t>(code);
    }
}

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

struct LionRule {
    static constexpr bool kHasSecond = false;
    float lr, beta1, beta2, grad_scale;

    __device__ __forceinline__ void operator()(float& p, float g, float& m, float&, float decay) const {
        g *= grad_scale;
        const float mixed = beta1 * m + (1 - beta1) * g, u = mixed > 0 ? 1.0f : mixed < 0 ? -1.0f : 0.0f;
        m = beta2 * m + (1 - beta2) * g;
        p -= lr * (u + decay * p);
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
    if (part.value == nullptr) return;
    if (part.value_type == DType::bf16)
        store<N>(p, static_cast<bf16*>(part.value) + i);
    else
        store<N>(p, static_cast<f16*>(part.value) + i);
}

template <class Rule>
__global__ void __launch_bounds__(kThreads) update_kernel(const Parts<Part, 480> __grid_constant__ parts, Rule rule) {
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

using StoredParts = Parts<StoredPart, 128>;

// body(part, first element, elements of this thread): kWide consecutive ones, or those that are left.
template <class Body>
__device__ __forceinline__ void with_elements(const StoredParts& parts, Body body) {
    const StoredPart& part = parts.of_block(blockIdx.x);
    const int64_t i = (blockIdx.x - part.first_block) * kBlockElements + static_cast<int64_t>(threadIdx.x) * kWide;
    body(part, i, static_cast<int>(part.n - i < kWide ? (part.n > i ? part.n - i : 0) : kWide));
}

template <class Rule>
__global__ void __launch_bounds__(kThreads) update_stored_kernel(const StoredParts __grid_constant__ parts, Rule rule) {
    with_elements(parts, [&](const StoredPart& part, int64_t i, int count) {
        float p[kWide] = {}, g[kWide] = {}, m[kWide] = {}, v[kWide] = {};
        read(part.master, part.master_type, i, count, p);
        read(part.gradient, part.gradient_type, i, count, g);
        read<true>(part.m, i, count, m);
        if constexpr (Rule::kHasSecond) read<false>(part.v, i, count, v);
#pragma unroll
        for (int k = 0; k < kWide; ++k) rule(p[k], g[k], m[k], v[k], part.weight_decay);
        write<true>(m, part.m, part.elements, i, count);
        if constexpr (Rule::kHasSecond) write<false>(v, part.v, part.elements, i, count);
        write(p, part.master, part.master_type, part.master_key, part.elements, i, count);
        if (part.value != nullptr) write(p, part.value, part.value_type, 0, part.elements, i, count);
    });
}

__global__ void __launch_bounds__(kThreads)
    muon_momentum_kernel(const StoredParts __grid_constant__ parts, float momentum, float grad_scale) {
    with_elements(parts, [&](const StoredPart& part, int64_t i, int count) {
        float g[kWide] = {}, m[kWide] = {};
        read(part.gradient, part.gradient_type, i, count, g);
        read<true>(part.m, i, count, m);
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
            m[k] = momentum * m[k] + grad_scale * g[k];
            g[k] = grad_scale * g[k] + momentum * m[k];
        }
        write<true>(m, part.m, part.elements, i, count);
        write(g, part.update, part.update_type, 0, part.elements, i, count);
    });
}

__global__ void __launch_bounds__(kThreads) muon_descent_kernel(const StoredParts __grid_constant__ parts, float lr) {
    with_elements(parts, [&](const StoredPart& part, int64_t i, int count) {
        float p[kWide] = {}, x[kWide] = {};
        read(part.master, part.master_type, i, count, p);
        read(part.update, part.update_type, i, count, x);
#pragma unroll
        for (int k = 0; k < kWide; ++k) p[k] -= lr * (part.update_scale * x[k] + part.weight_decay * p[k]);
        write(p, part.master, part.master_type, part.master_key, part.elements, i, count);
        if (part.value != nullptr) write(p, part.value, part.value_type, 0, part.elements, i, count);
    });
}

// Launches `kernel` for the pieces that `chosen` chooses, as many in a launch as its argument holds.
template <class Part, int capacity, class... Numbers>
void launch_parts(const Stream& stream, std::span<const OptimizerPiece> pieces, bool (*chosen)(const OptimizerPiece&),
                  void (*kernel)(GridConstant<Parts<Part, capacity>>, Numbers...),
                  const std::type_identity_t<Numbers>&... numbers) {
    static_assert(sizeof(Parts<Part, capacity>) + (sizeof(Numbers) + ... + 0) <= 32764);
    Parts<Part, capacity> parts;
    int64_t blocks = 0;
    const auto flush = [&] {
        if (blocks == 0) return;
        launch(kernel, {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads)}, stream, parts,
               numbers...);
        parts.count = 0;
        blocks = 0;
    };
    for (const OptimizerPiece& piece : pieces) {
        Part part(piece);
        if (part.n == 0 || !chosen(piece)) continue;
        if (parts.count == capacity) flush();
        part.first_block = static_cast<unsigned>(blocks);
        parts.at[parts.count++] = part;
        blocks += ceil_div(part.n, kBlockElements);
    }
    flush();
}

bool is_f32(const OptimizerPiece& piece) {
    const View* const views[] = {&piece.master, &piece.gradient, &piece.m.values, &piece.v.values};
    return std::all_of(std::begin(views), std::end(views),
                       [](const View* x) { return !x->defined() || x->dtype == DType::f32; });
}
bool is_stored(const OptimizerPiece& piece) { return !is_f32(piece); }
bool any(const OptimizerPiece&) { return true; }

template <class Rule>
void update(const Stream& stream, std::span<const OptimizerPiece> pieces, const Rule& rule) {
    launch_parts(stream, pieces, is_f32, update_kernel<Rule>, rule);
    launch_parts(stream, pieces, is_stored, update_stored_kernel<Rule>, rule);
}

void adamw(const Stream& stream, const AdamW& a) {
    update(stream, a.pieces, AdamWRule{a.lr, a.beta1, a.beta2, a.eps, a.correction1, a.correction2, a.grad_scale});
}

void sgd(const Stream& stream, const Sgd& s) { update(stream, s.pieces, SgdRule{s.lr, s.momentum, s.grad_scale}); }

void lion(const Stream& stream, const Lion& l) {
    update(stream, l.pieces, LionRule{l.lr, l.beta1, l.beta2, l.grad_scale});
}

void muon_momentum(const Stream& stream, const MuonMomentum& a) {
    launch_parts(stream, a.pieces, any, muon_momentum_kernel, a.momentum, a.grad_scale);
}

void muon_descent(const Stream& stream, const MuonDescent& a) {
    launch_parts(stream, a.pieces, any, muon_descent_kernel, a.lr);
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
    table.lion = lion;
    table.muon_momentum = muon_momentum;
    table.muon_descent = muon_descent;
}

}  // namespace tutti::kernels::cuda
