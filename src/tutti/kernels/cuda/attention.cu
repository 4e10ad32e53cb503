// kernels/cuda/attention.cu: chooses the attention kernels; D_i for the backward; attention_merge; sinks.
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/kernels/cuda/attention.h"
#include "tutti/kernels/cuda/attention_cudnn.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/sizes.h"
#include "tutti/kernels/cuda/team.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

using Views = std::initializer_list<View>;

int attribute_of_gpu(cudaDeviceAttr which) {
    int device = 0, value = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

// Whether q, the first, is bf16 or f16 and every row of 16-bit values of the views can be copied in words of 16 bytes:
// a requirement of cp.async and ldmatrix. f32 results are stored element by element. Above head dims of 128 the
// backward takes 128 KiB of shared memory, which compute capabilities 8.6, 8.9 and 12.0 lack.
bool suits_tensor_cores(const Views& views) {
    constexpr int kOfLargeHeads = 128 << 10;
    const int64_t D = views.begin()->shape[3];
    if (size_of(views.begin()->dtype) != 2 || D % kPack<bf16> != 0) return false;
    if (D > 128 && attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin) < kOfLargeHeads) return false;
    for (const View& x : views)
        if (size_of(x.dtype) == 2 && !Heads<bf16>(x).aligned()) return false;
    return true;
}

bool has_hopper() {
#ifdef TUTTI_CUDA_SM90A
    return attribute_of_gpu(cudaDevAttrComputeCapabilityMajor) == 9;
#else
    return false;
#endif
}

bool suits_hopper([[maybe_unused]] const Views& views) {
#ifdef TUTTI_CUDA_SM90A
    if (views.begin()->dtype != DType::bf16 || !suits_tensor_cores(views)) return false;
    for (const View& x : views)
        if (x.shape[3] > 128 || (x.dtype == DType::bf16 && !suits_tensor_map(x))) return false;
    return true;
#else
    return false;
#endif
}

// Fastest first. The first kernel that this GPU has and that suits a request computes it, unless TUTTI_CUDA_ATTENTION
// names one.
struct AttentionKernel {
    const char *name, *takes;
    bool caps;  // takes scores with a cap
    bool (*exists)();
    bool (*suits)(const Views& views);
    void (*forward)(const Stream&, const AttentionForward&);
    void (*backward)(const Stream&, const AttentionBackward&);
};
constexpr AttentionKernel kKernels[] = {
    {"hopper",
     "bf16 that \"tensor\" takes, not empty, with head dims up to 128, without a cap, on compute capability 9.0 in a "
     "build "
     "for 90a",
     false, has_hopper, suits_hopper, attention_forward_hopper, attention_backward_hopper},
    {"tensor",
     "bf16 or f16 with head dims and strides that are multiples of 8 and data aligned to 16 bytes, and with head dims "
     "above 128 "
     "where a block can have 128 KiB of shared memory",
     true, [] { return true; }, suits_tensor_cores, attention_forward_tensor, attention_backward_tensor},
    {"plain", "everything", true, [] { return true; }, [](const Views&) { return true; }, attention_forward_plain,
     attention_backward_plain},
};
constexpr int kAny = -1;

struct Choice {
    const AttentionKernel *kernel, *fastest;  // fastest: of this GPU
};

// `named`: of kKernels, or kAny.
Choice choice_of(int named, const View& q, float cap, const Views& views) {
    const AttentionKernel* fastest = nullptr;
    for (const AttentionKernel& kernel : kKernels) {
        if ((named != kAny && &kernel != &kKernels[named]) || !kernel.exists()) continue;
        if (fastest == nullptr) fastest = &kernel;
        if ((kernel.caps || cap == 0) && kernel.suits(views)) return {&kernel, fastest};
    }
    const AttentionKernel& kernel = kKernels[named];
    throw UsageError(concat("TUTTI_CUDA_ATTENTION=", kernel.name, " takes ", kernel.takes, "; got q (", q.shape[0],
                            ", ", q.shape[1], ", ", q.shape[2], ", ", q.shape[3], ") in ", q.dtype,
                            ". Without the variable the request chooses; TUTTI_CUDA_ATTENTION=plain takes all"));
}

// Requests that the fastest kernels of the GPU did not take, of all ranks of this process.
struct SlowRequests {
    std::mutex mutex;
    std::map<std::tuple<const AttentionKernel*, DType, int64_t>, std::string> texts;  // by kernel, type and head dim
};
SlowRequests& slow_requests() {
    static SlowRequests all;
    return all;
}

const AttentionKernel& kernel_for(int named, const View& q, float cap, const Views& views) {
    const auto [kernel, fastest] = choice_of(named, q, cap, views);
    if (kernel != fastest) {
        const std::lock_guard lock(slow_requests().mutex);
        std::string& text = slow_requests().texts[{kernel, q.dtype, q.shape[3]}];
        if (text.empty())
            text = concat("attention of q (", q.shape[0], ", ", q.shape[1], ", ", q.shape[2], ", ", q.shape[3], ") in ",
                          q.dtype, " is computed by the kernels \"", kernel->name, "\"; the faster \"", fastest->name,
                          "\" take ", fastest->takes);
    }
    return *kernel;
}

constexpr int kDeltaThreads = 128;

// D_i = dO_i.O_i of rows (b, h, i): each by `lanes` adjacent lanes of a warp, a power of two, W elements at a time.
template <int W, class T, class Output>
__global__ void __launch_bounds__(kDeltaThreads)
    delta_kernel(AttentionShape s, int lanes, Heads<const T> dy, Heads<const Output> o, float* delta) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x, row = thread / lanes;
    const int lane = static_cast<int>(thread % lanes);
    const bool is_row = row < static_cast<int64_t>(s.B) * s.H * s.Tq;
    float sum = 0;
    if (is_row) {
        const int i = static_cast<int>(row % s.Tq), h = static_cast<int>(row / s.Tq % s.H);
        const int b = static_cast<int>(row / s.Tq / s.H);
        const T* left = dy.at(b, i, h);
        const Output* right = o.at(b, i, h);
        for (int d = lane * W; d < s.D; d += lanes * W) {
            float x[W], y[W];
            load<W>(left + d, x);
            load<W>(right + d, y);
#pragma unroll
            for (int k = 0; k < W; ++k) sum += x[k] * y[k];
        }
    }
    for (int step = 1; step < lanes; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (is_row && lane == 0) delta[row] = sum;
}

template <class T, class Output>
void write_delta(const Stream& stream, const AttentionShape& s, const AttentionBackward& a) {
    constexpr int kWide = kPack < T >> kPack<Output> ? kPack<T> : kPack<Output>;
    const Heads<const T> dy(a.dy);
    const Heads<const Output> o(a.o);
    const bool wide = s.D % kWide == 0 && dy.aligned() && o.aligned();
    const int width = wide ? kWide : 1;
    int lanes = 1;
    while (lanes < kWarp && lanes * width < s.D) lanes *= 2;
    launch(wide ? delta_kernel<kWide, T, Output> : delta_kernel<1, T, Output>,
           grid_of_tasks(int64_t{s.B} * s.H * s.Tq * lanes, kDeltaThreads), stream, s, lanes, dy, o,
           a.workspace.as<float>());
}

template <int named>
void attention_forward(const Stream& stream, const AttentionForward& a) {
    if (a.q.numel() == 0) return;
    kernel_for(named, a.q, a.cap, {a.q, a.k, a.v, a.o}).forward(stream, a);
}

template <int named>
void attention_backward(const Stream& stream, const AttentionBackward& a) {
    const AttentionKernel& kernel = kernel_for(named, a.q, a.cap, {a.q, a.k, a.v, a.dy, a.dq, a.dk, a.dv});
    const AttentionShape s(a);
    if (a.q.numel() > 0)
        with_type(a.q.dtype, [&](auto type) {
            with_type(a.o.dtype,
                      [&](auto type_of_o) { write_delta<decltype(type), decltype(type_of_o)>(stream, s, a); });
        });
    kernel.backward(stream, a);
}

// A warp per row (b, i, h). lse and lse_part are read as Heads with (b, h, i) in the place of (b, t, h).
__global__ void __launch_bounds__(Team<1>::kBlockThreads)
    merge_kernel(int64_t rows, int T, int H, int D, Heads<float> o, Heads<float> lse, Heads<const float> o_part,
                 Heads<const float> lse_part) {
    const int64_t row = Team<1>::row();
    if (row >= rows) return;
    const int64_t h = row % H, i = row / H % T, b = row / H / T;
    float* const l = lse.at(b, h, i);
    const float before = *l, part = *lse_part.at(b, h, i);
    if (part == -INFINITY) return;
    const float largest = fmaxf(before, part);
    const float x = expf(before - largest), y = expf(part - largest), sum = x + y;
    float* const to = o.at(b, i, h);
    const float* const from = o_part.at(b, i, h);
    for (int d = Team<1>::rank(); d < D; d += kWarp) to[d] = x / sum * to[d] + y / sum * from[d];
    __syncwarp();  // every lane has read lse
    if (Team<1>::rank() == 0) *l = largest + logf(sum);
}

void attention_merge(const Stream& stream, View o, View lse, View o_part, View lse_part) {
    if (o.numel() == 0) return;
    const int64_t rows = lse.numel();
    const auto size = [&](int dim) { return static_cast<int>(o.shape[dim]); };
    launch(merge_kernel, grid_of_rows<Team<1>>(rows), stream, rows, size(1), size(2), size(3), Heads<float>(o),
           Heads<float>(lse), Heads<const float>(o_part), Heads<const float>(lse_part));
}

// A warp per row (b, i, h).
template <class A>
__global__ void __launch_bounds__(Team<1>::kBlockThreads)
    sinks_kernel(int64_t rows, int T, int H, int D, Heads<A> o, Heads<float> lse, const A* sinks) {
    const int64_t row = Team<1>::row();
    if (row >= rows) return;
    const int64_t h = row % H, i = row / H % T, b = row / H / T;
    float* const l = lse.at(b, h, i);
    const float before = *l, sink = load_one(sinks + h), largest = fmaxf(before, sink);
    const float x = expf(before - largest), sum = x + expf(sink - largest);
    A* const y = o.at(b, i, h);
    for (int d = Team<1>::rank(); d < D; d += kWarp) store_one(x / sum * load_one(y + d), y + d);
    __syncwarp();  // every lane has read lse
    if (Team<1>::rank() == 0) *l = largest + logf(sum);
}

void attention_sinks(const Stream& stream, View o, View lse, View sinks) {
    if (o.numel() == 0) return;
    const auto size = [&](int dim) { return static_cast<int>(o.shape[dim]); };
    with_type(o.dtype, [&]<class A>(A) {
        launch(sinks_kernel<A>, grid_of_rows<Team<1>>(lse.numel()), stream, lse.numel(), size(1), size(2), size(3),
               Heads<A>(o), Heads<float>(lse), sinks.as<const A>());
    });
}

constexpr int kSinkWarps = 16;

// A block per head: its warps take the rows in turn, and add their terms in an order that depends on the shape only.
template <class A>
__global__ void __launch_bounds__(Team<kSinkWarps>::kBlockThreads)
    sinks_backward_kernel(int B, int T, int D, Heads<const A> dy, Heads<const A> o, Heads<const float> lse,
                          const A* sinks, float* dsinks) {
    using Block = Team<kSinkWarps>;
    const int64_t h = Block::row();
    const float sink = load_one(sinks + h);
    float sum = 0;
    for (int b = 0; b < B; ++b)
        for (int i = Block::rank() / kWarp; i < T; i += kSinkWarps) {
            const A *const gradient = dy.at(b, i, h), *const y = o.at(b, i, h);
            float dot = 0;
            for (int d = Block::rank() % kWarp; d < D; d += kWarp) dot += load_one(gradient + d) * load_one(y + d);
            sum += expf(sink - *lse.at(b, h, i)) * dot;
        }
    sum = Block::sum(sum);
    if (Block::rank() == 0) dsinks[h] -= sum;
}

void attention_sinks_backward(const Stream& stream, View dy, View o, View lse, View sinks, View dsinks) {
    if (o.numel() == 0) return;
    const auto size = [&](int dim) { return static_cast<int>(o.shape[dim]); };
    with_type(o.dtype, [&]<class A>(A) {
        launch(sinks_backward_kernel<A>, grid_of_rows<Team<kSinkWarps>>(size(2)), stream, size(0), size(1), size(3),
               Heads<const A>(dy), Heads<const A>(o), Heads<const float>(lse), sinks.as<const A>(), dsinks.as<float>());
    });
}

template <int named>
const char* implementation_of(const Stream&, const AttentionForward& a) {
    return choice_of(named, a.q, a.cap, {a.q, a.k, a.v, a.o}).kernel->name;
}

template <int named>
const char* implementations() {
    if (named != kAny) return kKernels[named].name;
    return has_hopper() ? "hopper, tensor, plain" : "tensor, plain";
}

template <int named>
void fill(KernelTable& table) {
    table.attention_implementations = implementations<named>;
    table.attention_implementation = implementation_of<named>;
    table.attention_workspace = attention_workspace;
    table.attention_forward = attention_forward<named>;
    table.attention_backward = attention_backward<named>;
}

}  // namespace

std::vector<std::string> slow_attention() {
    const std::lock_guard lock(slow_requests().mutex);
    std::vector<std::string> texts;
    for (const auto& [key, text] : slow_requests().texts) texts.push_back(text);
    return texts;
}

void fill_attention(KernelTable& table, const char* kernel) {
    table.attention_merge = attention_merge;
    table.attention_sinks = attention_sinks;
    table.attention_sinks_backward = attention_sinks_backward;
    if (kernel == nullptr) return fill<kAny>(table);
    constexpr void (*kFill[])(KernelTable&) = {fill<0>, fill<1>, fill<2>};
    static_assert(std::size(kFill) == std::size(kKernels));
    const std::string name = kernel;
    if (name == "cudnn") return use_cudnn_attention(table);
    std::string names = "cudnn";
    for (size_t i = 0; i < std::size(kKernels); ++i) {
        if (kKernels[i].name == name) return kFill[i](table);
        names += concat(", ", kKernels[i].name);
    }
    throw UsageError(concat("TUTTI_CUDA_ATTENTION must be one of ", names, "; got \"", name, "\""));
}

}  // namespace tutti::kernels::cuda
