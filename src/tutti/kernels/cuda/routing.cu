// kernels/cuda/routing.cu: routing of rows to experts, its gradient, and load balancing; formulas as in
// kernels/reference/experts.cpp. A block takes one row, whose probabilities stay in shared memory.
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"
#include "tutti/kernels/sampling.h"

namespace tutti::kernels::cuda {

namespace {

using Row = Team<4>;
using Place = unsigned long long;
constexpr Place kFirst = ~Place{0};
constexpr uint32_t kLastIndex = 0xfffffffeu;

struct RoutingShape {
    int64_t E, k, groups, chosen_groups, group_best;
    bool sigmoid, normalise;
    float epsilon, scale;
};

// A value and its index, below 2^31, as one number, larger where the value is larger and of equal values the first; NaN
// is larger than any number. Never 0, which stands for nothing, and always below kFirst.
__device__ Place place_of(float value, int64_t index) {
    const uint32_t order = value != value ? 0xffffffffu : order_key(value);
    return static_cast<Place>(order) << 32 | (kLastIndex - static_cast<uint32_t>(index));
}
__device__ int64_t index_of(Place place) { return kLastIndex - static_cast<uint32_t>(place); }

struct Largest {
    Place of_warp[Row::kThreads / kWarp];
};

// Every thread gets the largest.
__device__ Place block_max(Place x) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        const Place other = __shfl_xor_sync(kAllLanes, x, step);
        x = other > x ? other : x;
    }
    auto& largest = block_shared<Largest>();
    __syncthreads();  // the previous call's have been read
    if (threadIdx.x % kWarp == 0) largest.of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    for (const Place other : largest.of_warp) x = other > x ? other : x;
    return x;
}

// The largest place of `values` below `last`, where counts(i); 0: none.
template <class Counts>
__device__ Place next_place(const float* values, int64_t begin, int64_t end, int64_t step, Place last, Counts counts) {
    Place best = 0;
    for (int64_t i = begin; i < end; i += step) {
        const Place place = place_of(values[i], i);
        if (place < last && place > best && counts(i)) best = place;
    }
    return best;
}

// -ln sigmoid(x)
__device__ float minus_log_sigmoid(float x) { return log1pf(expf(-fabsf(x))) + fmaxf(-x, 0.0f); }
__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// f(e) for the thread's share of the experts.
template <class F>
__device__ void for_experts(int64_t E, F&& f) {
    for_columns<Row, 1>(E, f);
}

__global__ void __launch_bounds__(Row::kBlockThreads)
    route_kernel(RoutingShape s, const float* logits, const float* bias, int32_t* experts, float* weights,
                 float* shares, float* entropy, float* log_sum) {
    const int64_t n = blockIdx.x, E = s.E;
    const float* const x = logits + n * E;
    float* const p = reinterpret_cast<float*>(dynamic_shared());  // (E), as those that follow
    float* const score = p + E;
    float* const of_group = score + E;  // the score of each group; later 1: chosen, 0: not

    float m = -INFINITY;
    for_experts(E, [&](int64_t e) { m = fmaxf(m, x[e]); });
    m = Row::max(m);
    float sum = 0, spread = 0;
    for_experts(E, [&](int64_t e) {
        p[e] = expf(x[e] - m);
        sum += p[e];
        if (p[e] != 0) spread += p[e] * (m - x[e]);
    });
    sum = Row::sum(sum);
    spread = Row::sum(spread);
    const float log = logf(sum);
    float total = 1, row_entropy = log + spread / sum;
    if (s.sigmoid) {
        total = spread = 0;
        for_experts(E, [&](int64_t e) {
            p[e] = sigmoid(x[e]);
            total += p[e];
            if (p[e] != 0) spread += p[e] * minus_log_sigmoid(x[e]);
        });
        total = Row::sum(total);
        row_entropy = logf(total) + Row::sum(spread) / total;
    } else {
        for_experts(E, [&](int64_t e) { p[e] /= sum; });
    }
    // Without bias and groups the order of p is that of the logits, whose differences are not lost to rounding; with
    // softmax one NaN makes all p NaN.
    const bool by_logits = bias == nullptr && s.groups == 1 && (s.sigmoid || sum == sum);
    for_experts(E, [&](int64_t e) {
        if (shares != nullptr) shares[n * E + e] = p[e] / total;
        score[e] = by_logits ? x[e] : bias == nullptr ? p[e] : p[e] + bias[e];
    });
    if (Row::rank() == 0) {
        entropy[n] = row_entropy;
        log_sum[n] = m + log;
    }
    __syncthreads();

    const int64_t width = E / s.groups, best = s.group_best;
    if (s.groups > 1) {
        for_experts(s.groups, [&](int64_t g) {
            float group_sum = 0;
            Place last = kFirst;
            for (int64_t i = 0; i < best; ++i) {
                last = next_place(score, g * width, (g + 1) * width, 1, last, [](int64_t) { return true; });
                group_sum += score[index_of(last)];
            }
            of_group[g] = group_sum;  // read by this thread alone until the last of the chosen is known
        });
        // The last one of the chosen: the others stand before it.
        Place last = kFirst;
        for (int64_t i = 0; i < s.chosen_groups; ++i)
            last = block_max(
                next_place(of_group, Row::rank(), s.groups, Row::kThreads, last, [](int64_t) { return true; }));
        for_experts(s.groups, [&](int64_t g) { of_group[g] = place_of(of_group[g], g) >= last ? 1.0f : 0.0f; });
        __syncthreads();
    }
    Place last = kFirst;
    float chosen = 0;
    for (int64_t j = 0; j < s.k; ++j) {
        last = block_max(next_place(score, Row::rank(), E, Row::kThreads, last,
                                    [&](int64_t e) { return s.groups == 1 || of_group[e / width] != 0; }));
        chosen += p[index_of(last)];
        if (Row::rank() == 0) experts[n * s.k + j] = static_cast<int32_t>(index_of(last));
    }
    const float factor = s.normalise ? s.scale / (s.epsilon + chosen) : s.scale;
    if (Row::rank() == 0)
        for (int64_t i = n * s.k; i < (n + 1) * s.k; ++i) weights[i] = p[experts[i]] * factor;
}

__global__ void __launch_bounds__(Row::kBlockThreads)
    route_backward_kernel(RoutingShape s, const float* logits, const int32_t* experts, const float* log_sum,
                          const float* dweights, const float* dshares, const int32_t* segments, float z_scale,
                          float* dlogits) {
    const int64_t n = blockIdx.x, E = s.E;
    const float* const x = logits + n * E;
    float* const p = reinterpret_cast<float*>(dynamic_shared());  // (E), like dp
    float* const dp = p + E;
    const float lse = log_sum[n];
    for_experts(E, [&](int64_t e) { p[e] = s.sigmoid ? sigmoid(x[e]) : expf(x[e] - lse); });
    const float* const D = dshares == nullptr ? nullptr : dshares + (segments == nullptr ? 0 : segments[n]) * E;
    float total = 1, mean = 0;  // of softmax: its own backward takes the mean away
    if (D != nullptr && s.sigmoid) {
        float sum = 0, product = 0;
        for_experts(E, [&](int64_t e) {
            sum += p[e];
            product += p[e] * D[e];
        });
        total = Row::sum(sum);
        mean = Row::sum(product) / total;
    }
    for_experts(E, [&](int64_t e) { dp[e] = D == nullptr ? 0 : (D[e] - mean) / total; });
    __syncthreads();
    if (Row::rank() == 0) {
        float chosen = s.epsilon, g_p = 0;
        for (int64_t i = n * s.k; i < (n + 1) * s.k; ++i) {
            chosen += p[experts[i]];
            g_p += dweights[i] * p[experts[i]];
        }
        const float factor = s.normalise ? s.scale / chosen : s.scale, g_mean = s.normalise ? g_p / chosen : 0;
        for (int64_t i = n * s.k; i < (n + 1) * s.k; ++i) dp[experts[i]] += factor * (dweights[i] - g_mean);
    }
    __syncthreads();
    float p_dp = 0;
    if (!s.sigmoid) {
        for_experts(E, [&](int64_t e) { p_dp += p[e] * dp[e]; });
        p_dp = Row::sum(p_dp);
    }
    const float z = 2 * z_scale * lse;
    for_experts(E, [&](int64_t e) {
        float d = s.sigmoid ? dp[e] * p[e] * sigmoid(-x[e]) : p[e] * (dp[e] - p_dp);
        if (z_scale != 0) d += z * (s.sigmoid ? expf(x[e] - lse) : p[e]);
        dlogits[n * E + e] = d;
    });
}

RoutingShape shape_of(const Routing& r) {
    return {r.logits.shape[1], r.experts.shape[1], r.groups,  r.chosen_groups, r.group_best,
            r.sigmoid,         r.normalise,        r.epsilon, r.scale};
}

// A block per row, with `arrays` of E floats in shared memory.
Grid grid_of(const Routing& r, int64_t arrays) {
    return {.blocks = dim3(static_cast<unsigned>(r.logits.shape[0])),
            .threads = dim3(Row::kBlockThreads),
            .shared_bytes = static_cast<size_t>(arrays * r.logits.shape[1]) * sizeof(float)};
}

void route(const Stream& stream, const Routing& r) {
    if (r.logits.shape[0] == 0) return;
    launch(route_kernel, grid_of(r, 3), stream, shape_of(r), r.logits.as<const float>(), r.bias.as<const float>(),
           r.experts.as<int32_t>(), r.weights.as<float>(), r.shares.as<float>(), r.entropy.as<float>(),
           r.log_sum.as<float>());
}

void route_backward(const Stream& stream, const RoutingBackward& b) {
    const Routing& r = b.forward;
    if (r.logits.shape[0] == 0) return;
    launch(route_backward_kernel, grid_of(r, 2), stream, shape_of(r), r.logits.as<const float>(),
           r.experts.as<const int32_t>(), r.log_sum.as<const float>(), b.dweights.as<const float>(),
           b.dshares.as<const float>(), b.segments.as<const int32_t>(), b.z_scale, b.dlogits.as<float>());
}

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    balance_kernel(int64_t n, float* bias, const float* counts, float mean, float rate) {
    const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (e >= n) return;
    const float missing = mean - counts[e];
    bias[e] += missing > 0 ? rate : missing < 0 ? -rate : 0.0f;
}

void balance(const Stream& stream, View bias, View counts, float mean, float rate) {
    const int64_t n = bias.numel();
    if (n == 0) return;
    launch(balance_kernel, grid_of_tasks(n, kThreads), stream, n, bias.as<float>(), counts.as<const float>(), mean,
           rate);
}

}  // namespace

void fill_routing(KernelTable& table) {
    table.route = route;
    table.route_backward = route_backward;
    table.balance = balance;
}

}  // namespace tutti::kernels::cuda
