// kernels/cuda/attention.cu: chooses the kernels of attention, as AttentionChoice says; D_i for the backward;
// attention_merge; sinks.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tutti/kernels/cuda/attention.h"
#include "tutti/kernels/cuda/attention_cudnn.h"
#include "tutti/kernels/cuda/candidates.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/sizes.h"
#include "tutti/kernels/cuda/team.h"
#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

using Views = std::vector<View>;

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

// What kernels need to know of a request.
struct Request {
    const AttentionForward* forward = nullptr;
    const AttentionBackward* backward = nullptr;  // one of the two
    View q, k;
    Views views;  // all that are read or written by heads, q first
    float cap;
    AttentionMask mask;

    explicit Request(const AttentionForward& a)
        : forward(&a), q(a.q), k(a.k), views{a.q, a.k, a.v, a.o}, cap(a.cap), mask(a.mask) {}
    explicit Request(const AttentionBackward& a)
        : backward(&a), q(a.q), k(a.k), views{a.q, a.k, a.v, a.dy, a.dq, a.dk, a.dv}, cap(a.cap), mask(a.mask) {}
};

constexpr const char* kTakenByHopper =
    "\"hopper\" takes bf16 that \"tensor\" takes, not empty, with head dims up to 128, without a cap, on compute "
    "capability 9.0 in a build for 90a";
constexpr const char* kTakenByTensor =
    "\"tensor\" takes bf16 or f16 with head dims and strides that are multiples of 8 and data aligned to 16 bytes, and "
    "with head dims above 128 where a block can have 128 KiB of shared memory";

std::string refusal_of_cudnn(const Stream& stream, const Request& r) {
    return r.forward != nullptr ? cudnn_refusal(stream, *r.forward) : cudnn_refusal(stream, *r.backward);
}
std::string refusal_of_hopper(const Stream&, const Request& r) {
    return r.cap == 0 && suits_hopper(r.views) ? "" : kTakenByHopper;
}
std::string refusal_of_tensor(const Stream&, const Request& r) {
    return suits_tensor_cores(r.views) ? "" : kTakenByTensor;
}

// In the order in which they are tried. The first that [train] attention names, or the first of ours, is followed by
// those behind it; with measured times, the fastest comes first.
struct AttentionKernel {
    const char* name;
    bool (*exists)();                                       // on this GPU
    std::string (*refusal)(const Stream&, const Request&);  // why it does not compute the request; "": it does
    bool needs_delta;                                       // D_i at the beginning of the workspace of the backward
    void (*forward)(const Stream&, const AttentionForward&);
    void (*backward)(const Stream&, const AttentionBackward&);
};
bool always() { return true; }
constexpr AttentionKernel kKernels[] = {
    {"cudnn", always, refusal_of_cudnn, false, cudnn_forward, cudnn_backward},
    {"hopper", has_hopper, refusal_of_hopper, true, attention_forward_hopper, attention_backward_hopper},
    {"tensor", always, refusal_of_tensor, true, attention_forward_tensor, attention_backward_tensor},
    {"plain", always, [](const Stream&, const Request&) { return std::string(); }, true, attention_forward_plain,
     attention_backward_plain},
};
constexpr size_t kCudnn = 0, kOwn = 1, kPlain = std::size(kKernels) - 1;

using Order = std::vector<const AttentionKernel*>;

// From one on, without those that this GPU lacks.
Order order_from(size_t first) {
    Order order;
    for (size_t i = first; i < std::size(kKernels); ++i)
        if (kKernels[i].exists()) order.push_back(&kKernels[i]);
    return order;
}

Order order_of(const std::string& kernels) {
    if (kernels == "own") return order_from(kOwn);
    std::string names = "own, fastest";
    for (size_t i = 0; i < std::size(kKernels); ++i) {
        if (kKernels[i].name == kernels) return order_from(i);
        names += concat(", ", kKernels[i].name);
    }
    throw UsageError(concat("the kernels of attention must be one of ", names, "; got \"", kernels, "\""));
}

// --- measured times --------------------------------------------------------------------------------------------------

std::vector<int64_t> key_of(const Request& r) {
    return {r.backward != nullptr,
            static_cast<int64_t>(r.q.dtype),
            static_cast<int64_t>(r.views[r.backward != nullptr ? 4 : 3].dtype),  // of results
            r.q.shape[0],
            r.q.shape[1],
            r.q.shape[2],
            r.q.shape[3],
            r.k.shape[1],
            r.k.shape[2],
            r.mask.causal,
            r.mask.query_offset,
            r.mask.key_offset,
            r.mask.window,
            r.mask.first_key.defined(),
            r.cap > 0};
}

std::string text_of(const Request& r) {
    const Shape &q = r.q.shape, &k = r.k.shape;
    std::string text = concat(r.backward != nullptr ? "backward" : "forward", " of q (", q[0], ", ", q[1], ", ", q[2],
                              ", ", q[3], ") and ", k[2], " heads of ", k[1], " keys in ", r.q.dtype);
    if (r.mask.causal) text += ", causal";
    if (r.mask.window > 0) text += concat(", window ", r.mask.window);
    if (r.mask.query_offset != 0 || r.mask.key_offset != 0)
        text += concat(", offsets ", r.mask.query_offset, " and ", r.mask.key_offset);
    if (r.mask.first_key.defined()) text += ", documents";
    if (r.cap > 0) text += ", capped";
    return text;
}

void write_delta(const Stream& stream, const AttentionBackward& a);

void start(const AttentionKernel& kernel, const Stream& stream, const Request& r) {
    if (r.forward != nullptr) return kernel.forward(stream, *r.forward);
    if (kernel.needs_delta) write_delta(stream, *r.backward);
    kernel.backward(stream, *r.backward);
}

bool has_cudnn(const AttentionTuning& tuning) { return !tuning.library.empty(); }

// Of kernels that take the request; "plain" only where no other does. What gradients are added to is not kept.
TunedAttention measured(const AttentionTuning& tuning, const Stream& stream, const Request& r) {
    check_can_time(stream, concat("attention, ", text_of(r), ","));
    Order order;
    for (const AttentionKernel* kernel : order_from(has_cudnn(tuning) ? kCudnn : kOwn))
        if ((kernel != &kKernels[kPlain] || order.empty()) && kernel->refusal(stream, r).empty())
            order.push_back(kernel);
    const std::vector<double> seconds = medians_in_turns(stream, order.size(), [&](size_t i) {
        start(*order[i], stream, r);
        return true;
    });
    TunedAttention request{.text = text_of(r), .seconds = {}};
    for (size_t i = 0; i < order.size(); ++i) request.seconds.emplace(order[i]->name, seconds[i]);
    return request;
}

// Kernels with a time, fastest first, then all others of ours.
Order order_by_times(AttentionTuning& tuning, const Stream& stream, const Request& r) {
    const std::vector<int64_t> key = key_of(r);
    auto found = tuning.requests.find(key);
    if (found == tuning.requests.end() && tuning.measures)
        found = tuning.requests.emplace(key, measured(tuning, stream, r)).first;
    Order order = order_from(kOwn);
    if (found == tuning.requests.end()) {
        tuning.missed.try_emplace(key, text_of(r));
        return order;
    }
    if (has_cudnn(tuning)) order.insert(order.begin(), &kKernels[kCudnn]);
    const auto seconds = [&](const AttentionKernel* kernel) {
        const auto time = found->second.seconds.find(kernel->name);
        return time == found->second.seconds.end() ? std::numeric_limits<double>::infinity() : time->second;
    };
    std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return seconds(a) < seconds(b); });
    return order;
}

// --- the choice ------------------------------------------------------------------------------------------------------

Order order_for(const Stream& stream, const Request& r) {
    const AttentionChoice* choice = stream.attention;
    if (choice == nullptr) return order_from(kOwn);
    if (choice->kernels != "fastest") return order_of(choice->kernels);
    check(choice->tuning != nullptr, "attention by measured times has no times");
    return order_by_times(*choice->tuning, stream, r);
}

// The first that takes the request; the run learns why it is not the first of all.
const AttentionKernel& kernel_for(const Stream& stream, const Request& r) {
    std::string why;
    const Order order = order_for(stream, r);
    for (const AttentionKernel* kernel : order) {
        std::string refusal = kernel->refusal(stream, r);
        if (!refusal.empty()) {
            if (why.empty()) why = std::move(refusal);
            continue;
        }
        if (kernel != order.front() && stream.attention != nullptr)
            stream.attention->others.try_emplace(
                concat(kernel->name, ' ', r.q.dtype, ' ', r.q.shape[3], ' ', why),
                concat("attention, ", text_of(r), ", is computed by the kernels \"", kernel->name, "\": ", why));
        return *kernel;
    }
    throw Error("no kernel takes a request of attention");  // "plain" takes all
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

void write_delta(const Stream& stream, const AttentionBackward& a) {
    if (a.q.numel() == 0) return;
    const AttentionShape s(a);
    with_type(a.q.dtype, [&](auto type) {
        with_type(a.o.dtype, [&](auto type_of_o) { write_delta<decltype(type), decltype(type_of_o)>(stream, s, a); });
    });
}

void attention_forward(const Stream& stream, const AttentionForward& a) {
    if (a.q.numel() == 0) return;
    const Request request(a);
    start(kernel_for(stream, request), stream, request);
}

void attention_backward(const Stream& stream, const AttentionBackward& a) {
    const Request request(a);
    start(kernel_for(stream, request), stream, request);
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

const char* implementation_of(const Stream& stream, const AttentionForward& a) {
    return kernel_for(stream, Request(a)).name;
}

const char* implementations() { return has_hopper() ? "hopper, tensor, plain" : "tensor, plain"; }

}  // namespace

void fill_attention(KernelTable& table) {
    table.attention_implementations = implementations;
    table.attention_implementation = implementation_of;
    table.attention_workspace = attention_workspace;
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
    table.attention_merge = attention_merge;
    table.attention_sinks = attention_sinks;
    table.attention_sinks_backward = attention_sinks_backward;
}

}  // namespace tutti::kernels::cuda
