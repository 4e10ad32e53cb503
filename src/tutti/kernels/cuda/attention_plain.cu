// kernels/cuda/attention_plain.cu: attention in f32 multiply-adds, for f32 and for 16-bit types whose rows are not
// whole 16-byte words. No (Tq, Tk) array is stored, tiles that no query sees are skipped, and sums have a fixed order.
//
// A block owns 16 rows, 4 per warp, and streams tiles of 32 rows past them, one per lane. The forward and dq own
// queries and stream keys; dk and dv own keys and stream the queries of the group's heads.
#include "tutti/kernels/cuda/attention.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kWarps = 4, kRowsOfWarp = 4, kOwn = kWarps * kRowsOfWarp, kStream = kWarp;
constexpr int kThreads = kWarps * kWarp;

// Two tiles of own rows, two of streamed ones (their rows begin in different banks), one of factors: P, then dS. With
// one for each, a head dim of 256 would take 102,656 bytes, and a block on compute capability 8.6, 8.9 or 12.0 can have
// 101,376.
struct Tiles {
    float *own1, *own2, *stream1, *stream2, *factors;
    int pitch;  // of a streamed row

    __device__ explicit Tiles(int D) : pitch(D + 1) {
        own1 = reinterpret_cast<float*>(dynamic_shared());
        own2 = own1 + kOwn * D;
        stream1 = own2 + kOwn * D;
        stream2 = stream1 + kStream * pitch;
        factors = stream2 + kStream * pitch;
    }
    static size_t bytes(int D) { return sizeof(float) * (2 * kOwn * D + 2 * kStream * (D + 1) + kOwn * kStream); }
};

// Rows [first, first + rows) of head h, zeros from row `end` on.
template <class T>
__device__ void load_rows(Heads<const T> x, int b, int h, int first, int rows, int end, int D, float* to, int pitch) {
    for (int at = static_cast<int>(threadIdx.x); at < rows * D; at += kThreads) {
        const int row = at / D, d = at % D;
        to[row * pitch + d] = first + row < end ? load_one(x.at(b, first + row, h) + d) : 0;
    }
}

// scores[r] = own row r of this warp . the lane's streamed row
__device__ __forceinline__ void dot_rows(const float* own, const float* streamed, int D, float (&scores)[kRowsOfWarp]) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) scores[r] = 0;
    for (int d = 0; d < D; ++d) {
        const float x = streamed[d];
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r) scores[r] += own[r * D + d] * x;
    }
}

// sums[r][c] += sum_j factors[r][j] streamed[j][lane + 32 c]
template <int kColumns>
__device__ __forceinline__ void add_rows(const float* factors, const float* stream, int pitch, int lane, int D,
                                         float (&sums)[kRowsOfWarp][kColumns]) {
    for (int j = 0; j < kStream; ++j)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            if (lane + c * kWarp >= D) continue;
            const float x = stream[j * pitch + lane + c * kWarp];
#pragma unroll
            for (int r = 0; r < kRowsOfWarp; ++r) sums[r][c] += factors[r * kStream + j] * x;
        }
}

// kColumns: columns of a row that a lane sums, D <= 32 kColumns.
template <int kColumns, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionShape s, BlockOrder order, Heads<const T> q,
                                                           Heads<const T> k, Heads<const T> v, Result o, float* lse) {
    const Tiles tiles(s.D);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const auto [b, h, row_tile] = order.at(blockIdx.x);
    const int kv_head = h / s.group(), first = row_tile * kOwn, first_of_warp = first + warp * kRowsOfWarp;
    float* const p = tiles.factors + warp * kRowsOfWarp * kStream;
    load_rows(q, b, h, first, kOwn, s.Tq, s.D, tiles.own1, s.D);
    float m[kRowsOfWarp], sum[kRowsOfWarp] = {}, out[kRowsOfWarp][kColumns] = {};
    for (float& x : m) x = -INFINITY;
    const Keys any = span_of_queries(s, b, first, first + kOwn).any;
    for (int tile = any.first / kStream * kStream; tile < any.end; tile += kStream) {
        __syncthreads();  // the tile before has been used
        load_rows(k, b, kv_head, tile, kStream, s.Tk, s.D, tiles.stream1, tiles.pitch);
        load_rows(v, b, kv_head, tile, kStream, s.Tk, s.D, tiles.stream2, tiles.pitch);
        __syncthreads();
        float score[kRowsOfWarp];
        dot_rows(tiles.own1 + warp * kRowsOfWarp * s.D, tiles.stream1 + lane * tiles.pitch, s.D, score);
#pragma unroll
        for (int r = 0; r < kRowsOfWarp; ++r) {
            const int i = first_of_warp + r, j = tile + lane;
            const Keys keys = i < s.Tq ? s.visible(b, i) : Keys{0, 0};
            const float x = j >= keys.first && j < keys.end ? s.capped(score[r]) * s.softmax_scale() : -INFINITY;
            const float largest = fmaxf(m[r], warp_max(x));
            // A row that has seen no key has maximum -infinity, and -infinity minus itself is NaN.
            const float safe = fmaxf(largest, -1e38f), decay = expf(m[r] - safe), probability = expf(x - safe);
            m[r] = largest;
            sum[r] = sum[r] * decay + warp_sum(probability);
            p[r * kStream + lane] = probability;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) out[r][c] *= decay;
        }
        __syncwarp();
        add_rows<kColumns>(p, tiles.stream2, tiles.pitch, lane, s.D, out);
    }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int i = first_of_warp + r;
        if (i >= s.Tq) continue;
        const float inverse = sum[r] == 0 ? 0 : 1 / sum[r];
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
            if (lane + c * kWarp < s.D) o.store(o.rows.place(b, i, h) + lane + c * kWarp, out[r][c] * inverse);
        if (lane == 0) lse[s.lse_at(b, h, i)] = sum[r] == 0 ? -INFINITY : m[r] + logf(sum[r]);
    }
}

// Gradients of the two own matrices: dq, or dk and dv.
struct OwnGradients {
    Result first, second;
};

// own1, stream1: q and k, or k and q. own2, stream2: dy and v, or v and dy.
template <int kColumns, bool keys_own, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(AttentionShape s, BlockOrder order, Heads<const T> q, Heads<const T> dy, Heads<const T> k,
                    Heads<const T> v, const float* lse, const float* delta, OwnGradients gradients) {
    const Tiles tiles(s.D);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const auto [b, own_head, row_tile] = order.at(blockIdx.x);
    const int kv_head = keys_own ? own_head : own_head / s.group();
    const int first = row_tile * kOwn, first_of_warp = first + warp * kRowsOfWarp;
    const int own_end = keys_own ? s.Tk : s.Tq, stream_end = keys_own ? s.Tq : s.Tk;
    float* const factors = tiles.factors + warp * kRowsOfWarp * kStream;
    load_rows(keys_own ? k : q, b, own_head, first, kOwn, own_end, s.D, tiles.own1, s.D);
    load_rows(keys_own ? v : dy, b, own_head, first, kOwn, own_end, s.D, tiles.own2, s.D);
    float sums1[kRowsOfWarp][kColumns] = {}, sums2[kRowsOfWarp][kColumns] = {};
    const Keys seen =
        keys_own ? queries_of_keys(s, b, first, first + kOwn) : span_of_queries(s, b, first, first + kOwn).any;
    for (int h = keys_own ? kv_head * s.group() : own_head; h < (keys_own ? (kv_head + 1) * s.group() : own_head + 1);
         ++h)
        for (int tile = seen.first / kStream * kStream; tile < seen.end; tile += kStream) {
            __syncthreads();  // the tile before has been used
            load_rows(keys_own ? q : k, b, keys_own ? h : kv_head, tile, kStream, stream_end, s.D, tiles.stream1,
                      tiles.pitch);
            load_rows(keys_own ? dy : v, b, keys_own ? h : kv_head, tile, kStream, stream_end, s.D, tiles.stream2,
                      tiles.pitch);
            __syncthreads();
            float score[kRowsOfWarp], dp[kRowsOfWarp], ds[kRowsOfWarp];
            dot_rows(tiles.own1 + warp * kRowsOfWarp * s.D, tiles.stream1 + lane * tiles.pitch, s.D, score);
            dot_rows(tiles.own2 + warp * kRowsOfWarp * s.D, tiles.stream2 + lane * tiles.pitch, s.D, dp);
#pragma unroll
            for (int r = 0; r < kRowsOfWarp; ++r) {
                const int i = keys_own ? tile + lane : first_of_warp + r,
                          j = keys_own ? first_of_warp + r : tile + lane;
                const Keys keys = i < s.Tq ? s.visible(b, i) : Keys{0, 0};
                float probability = 0, gradient = 0;
                if (j >= keys.first && j < keys.end) {
                    const float x = s.capped(score[r]);
                    probability = expf(x * s.softmax_scale() - lse[s.lse_at(b, h, i)]);
                    gradient =
                        probability * (dp[r] - delta[(static_cast<int64_t>(b) * s.H + h) * s.Tq + i]) * s.slope(x);
                }
                if constexpr (keys_own) factors[r * kStream + lane] = probability;
                ds[r] = gradient;
            }
            if constexpr (keys_own) {
                __syncwarp();
                add_rows<kColumns>(factors, tiles.stream2, tiles.pitch, lane, s.D, sums2);
                __syncwarp();  // P has been used
            }
#pragma unroll
            for (int r = 0; r < kRowsOfWarp; ++r) factors[r * kStream + lane] = ds[r];
            __syncwarp();
            add_rows<kColumns>(factors, tiles.stream1, tiles.pitch, lane, s.D, sums1);
        }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
        const int row = first_of_warp + r;
        if (row >= own_end) continue;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const int d = lane + c * kWarp;
            if (d >= s.D) continue;
            const Result &of_first = gradients.first, &of_second = gradients.second;
            of_first.store(of_first.rows.place(b, row, own_head) + d, s.scale * sums1[r][c]);
            if constexpr (keys_own) of_second.store(of_second.rows.place(b, row, own_head) + d, sums2[r][c]);
        }
    }
}

// Calls f with the columns per lane that D needs.
template <class F>
void with_columns(int D, F&& f) {
    if (D <= 64)
        f(std::integral_constant<int, 2>{});
    else if (D <= 128)
        f(std::integral_constant<int, 4>{});
    else
        f(std::integral_constant<int, 8>{});
}

Grid grid_of(const AttentionShape& s, const BlockOrder& order) {
    return {.blocks = dim3(order.blocks()), .threads = dim3(kThreads), .shared_bytes = Tiles::bytes(s.D)};
}

}  // namespace

void attention_forward_plain(const Stream& stream, const AttentionForward& a) {
    const AttentionShape s(a);
    const BlockOrder order = order_of_queries(s, kOwn);
    with_type(a.q.dtype, [&]<class T>(T) {
        with_columns(s.D, [&](auto columns) {
            launch(forward_kernel<columns(), T>, grid_of(s, order), stream, s, order, Heads<const T>(a.q),
                   Heads<const T>(a.k), Heads<const T>(a.v), Result(a.o), a.lse.as<float>());
        });
    });
}

void attention_backward_plain(const Stream& stream, const AttentionBackward& a) {
    const AttentionShape s(a);
    with_type(a.q.dtype, [&]<class T>(T) {
        with_columns(s.D, [&](auto columns) {
            const auto run = [&](auto kernel, const BlockOrder& order, const OwnGradients& gradients) {
                launch(kernel, grid_of(s, order), stream, s, order, Heads<const T>(a.q), Heads<const T>(a.dy),
                       Heads<const T>(a.k), Heads<const T>(a.v), a.lse.as<const float>(), a.workspace.as<const float>(),
                       gradients);
            };
            if (a.q.numel() > 0)
                run(backward_kernel<columns(), false, T>, order_of_queries(s, kOwn), {Result(a.dq, a.accumulate), {}});
            if (a.k.numel() > 0)
                run(backward_kernel<columns(), true, T>, order_of_keys(s, kOwn),
                    {Result(a.dk, a.accumulate), Result(a.dv, a.accumulate)});
        });
    });
}

}  // namespace tutti::kernels::cuda
