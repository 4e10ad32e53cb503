// kernels/cuda/float8.cu: codes of 8 bits. Largest magnitudes are maxima of integers, so that the order of threads
// cannot be seen in them.
#include "tutti/base/ceil_div.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"
#include "tutti/kernels/group_scale.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int64_t kPartials = 256;  // blocks of a maximum over a whole matrix
constexpr int64_t kSmallGroup = 1024;

template <class T>
struct Matrix {
    const T* values;
    int64_t rows, columns, stride;
    __device__ float at(int64_t r, int64_t c) const { return load_one(values + r * stride + c); }
};
template <class T>
Matrix<T> matrix_of(const View& x) {
    return {x.as<const T>(), x.shape[0], x.shape[1], x.stride(0)};
}

__device__ __forceinline__ int magnitude_bits(float x) { return std::bit_cast<int>(x) & 0x7fffffff; }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

__device__ __forceinline__ int warp_largest(int x) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}
// Of the kWarps warps of a block; every thread gets it.
__device__ __forceinline__ int block_largest(int x) {
    auto& partials = block_shared<Partials<int, kWarps>>();
    x = warp_largest(x);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partials.of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = partials.of_warp[0];
    for (int w = 1; w < kWarps; ++w) x = larger(x, partials.of_warp[w]);
    return x;
}

// --- the largest magnitude of a matrix: of the rows of each block, then of all blocks

template <class T>
__global__ void __launch_bounds__(kThreads) amax_kernel(Matrix<T> x, int* partials) {
    int most = 0;
    for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x)
        for (int64_t c = threadIdx.x; c < x.columns; c += kThreads) most = larger(most, magnitude_bits(x.at(r, c)));
    most = block_largest(most);
    if (threadIdx.x == 0) partials[blockIdx.x] = most;
}
__global__ void __launch_bounds__(kThreads)
    largest_kernel(int n, const int* partials, const int* before, int* largest) {
    int most = static_cast<int>(threadIdx.x) < n ? partials[threadIdx.x] : 0;
    if (before != nullptr) most = larger(most, *before);
    most = block_largest(most);
    if (threadIdx.x == 0) *largest = most;
}

// largest = max(before, max |x|); before null: 0. Takes the start of the stream's workspace.
void find_largest(const Stream& stream, const View& x, const int* before, int* largest) {
    auto* const partials = static_cast<int*>(stream.workspace);
    const int64_t blocks = x.shape[0] < kPartials ? x.shape[0] : kPartials;
    if (x.numel() > 0)
        with_type(x.dtype, [&]<class T>(T) {
            launch(amax_kernel<T>, {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads)}, stream,
                   matrix_of<T>(x), partials);
        });
    launch(largest_kernel, {.blocks = dim3(1), .threads = dim3(kThreads)}, stream,
           static_cast<int>(x.numel() > 0 ? blocks : 0), static_cast<const int*>(partials), before, largest);
}

void amax(const Stream& stream, View x, View largest) {
    find_largest(stream, x, largest.as<const int>(), largest.as<int>());
}

// --- quantize

// What the casts of a thread lose; the warps of a kernel add it to Quantize::lost.
struct Lost {
    unsigned long long* total;  // (2); null: not counted
    int saturated = 0, flushed = 0;

    __device__ void add(float x, float scaled, const Float8& format) {
        if (total == nullptr) return;
        saturated += is_saturated(scaled, format);
        flushed += is_flushed(x, scaled, format);
    }
    __device__ void add_to_total() const {  // all lanes of the warp
        if (total == nullptr) return;
        const int of_warp[2] = {warp_sum(saturated), warp_sum(flushed)};
        if (threadIdx.x % kWarp != 0) return;
        for (int i = 0; i < 2; ++i)
            if (of_warp[i] > 0) atomicAdd(total + i, static_cast<unsigned long long>(of_warp[i]));
    }
};

struct Target {
    uint8_t* codes;
    float* divisors;  // one of the two
    uint8_t* e8m0;
    const int* amax;      // null: of the group
    const float* factor;  // null: that of amax
    GroupGrid groups;
    float of_type;
    bool transposed, powers_of_two;
    unsigned long long* lost;  // null: not counted

    __device__ uint8_t* code(int64_t r, int64_t c) const {
        return codes + (transposed ? c * groups.R + r : r * groups.C + c);
    }
};

template <int kFraction>
__device__ __forceinline__ uint8_t code_of(float x) {
    constexpr Float8 kFormat = kFraction == 3 ? Float8(kE4m3) : Float8(kE5m2);
    return float8_code(x, kFormat);
}
template <int kFraction>
__device__ __forceinline__ uint8_t code_of(float x, float factor, Lost& lost) {
    constexpr Float8 kFormat = kFraction == 3 ? Float8(kE4m3) : Float8(kE5m2);
    const float scaled = x * factor;
    lost.add(x, scaled, kFormat);
    return float8_code(scaled, kFormat);
}

// The factor of group (i, j); `writes`: the one thread that stores the divisor.
template <int kFraction>
__device__ __forceinline__ float factor_of(const Target& t, int64_t i, int64_t j, int amax, bool writes) {
    constexpr Float8 kFormat = kFraction == 3 ? Float8(kE4m3) : Float8(kE5m2);
    const GroupScale scale =
        group_scale(amax, kFormat, t.e8m0 != nullptr, t.of_type, t.powers_of_two, t.factor != nullptr ? *t.factor : 0);
    if (writes && t.e8m0 != nullptr)
        for (int64_t copy = 0; copy < scale_copies(t.groups.layout); ++copy)
            t.e8m0[t.groups.at(i, j, t.transposed) + copy] = scale.code;
    if (writes && t.e8m0 == nullptr) t.divisors[t.groups.at(i, j, t.transposed)] = scale.divisor;
    return scale.factor;
}

// A group for each kTeam threads, whose consecutive threads take consecutive columns.
template <int kFraction, int kTeam, class T>
__global__ void __launch_bounds__(kThreads) quantize_groups(Matrix<T> x, Target t) {
    const int64_t group = static_cast<int64_t>(blockIdx.x) * (kThreads / kTeam) + threadIdx.x / kTeam;
    const int64_t across = t.groups.across();
    if (kTeam < kThreads && group >= t.groups.down() * across) return;  // whole warps
    const int64_t i = group / across, j = group % across, first = i * t.groups.rows, left = j * t.groups.columns;
    const int rows = static_cast<int>(x.rows - first < t.groups.rows ? x.rows - first : t.groups.rows);
    const int columns = static_cast<int>(x.columns - left < t.groups.columns ? x.columns - left : t.groups.columns);
    const int rank = static_cast<int>(threadIdx.x) % kTeam;
    int most = 0;
    for (int e = rank; e < rows * columns; e += kTeam)
        most = larger(most, magnitude_bits(x.at(first + e / columns, left + e % columns)));
    most = kTeam == kWarp ? warp_largest(most) : block_largest(most);
    const float factor = factor_of<kFraction>(t, i, j, most, rank == 0);
    Lost lost{t.lost};
    for (int e = rank; e < rows * columns; e += kTeam) {
        const int64_t r = first + e / columns, c = left + e % columns;
        *t.code(r, c) = code_of<kFraction>(x.at(r, c), factor, lost);
    }
    lost.add_to_total();
}

// Blocks of 32 columns and some rows in a grid of one dimension, columns first: the second dimension of a grid ends at
// 65535.
struct Strip {
    int64_t row, first_column;
    template <class T>
    __device__ explicit Strip(const Matrix<T>& x) {
        const int64_t strips = ceil_div(x.columns, kWarp);
        row = blockIdx.x / strips;
        first_column = blockIdx.x % strips * kWarp;
    }
};

// Groups of one column: a block takes the rows of a group in 32 columns, a lane for each column.
template <int kFraction, class T>
__global__ void __launch_bounds__(kThreads) quantize_columns(Matrix<T> x, Target t) {
    struct Largest {
        int of[kWarps][kWarp];
    };
    auto& shared = block_shared<Largest>();
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const Strip strip(x);
    const int64_t i = strip.row, c = strip.first_column + lane, first = i * t.groups.rows;
    const int64_t end = first + t.groups.rows < x.rows ? first + t.groups.rows : x.rows;
    int most = 0;
    if (c < x.columns)
        for (int64_t r = first + warp; r < end; r += kWarps) most = larger(most, magnitude_bits(x.at(r, c)));
    shared.of[warp][lane] = most;
    __syncthreads();
    Lost lost{t.lost};
    if (c < x.columns) {
        for (int w = 0; w < kWarps; ++w) most = larger(most, shared.of[w][lane]);
        const float factor = factor_of<kFraction>(t, i, c, most, warp == 0);
        for (int64_t r = first + warp; r < end; r += kWarps)
            *t.code(r, c) = code_of<kFraction>(x.at(r, c), factor, lost);
    }
    lost.add_to_total();
}

// One group, whose largest magnitude is known: tiles of 32 x 32, through shared memory, so that both matrices are read
// and written along their rows.
template <int kFraction, class T>
__global__ void __launch_bounds__(kThreads) quantize_whole(Matrix<T> x, Target t) {
    struct Tile {
        uint8_t codes[kWarp][kWarp + 1];
    };
    auto& tile = block_shared<Tile>();
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const Strip strip(x);
    const int64_t first = strip.row * kWarp, left = strip.first_column;
    const bool writes = blockIdx.x == 0 && threadIdx.x == 0;
    const float factor = factor_of<kFraction>(t, 0, 0, *t.amax, writes);
    Lost lost{t.lost};
    for (int r = warp; r < kWarp; r += kWarps)
        if (first + r < x.rows && left + lane < x.columns)
            tile.codes[r][lane] = code_of<kFraction>(x.at(first + r, left + lane), factor, lost);
    lost.add_to_total();
    __syncthreads();
    for (int k = warp; k < kWarp; k += kWarps) {
        const int r = t.transposed ? lane : k, c = t.transposed ? k : lane;
        if (first + r < x.rows && left + c < x.columns) *t.code(first + r, left + c) = tile.codes[r][c];
    }
}

template <int kFraction, class T>
void quantize_as(const Stream& stream, const Quantize& q) {
    const Matrix<T> x = matrix_of<T>(q.x);
    const bool e8m0 = q.scales.values.dtype == DType::e8m0;
    Target t{.codes = q.codes.as<uint8_t>(),
             .divisors = e8m0 ? nullptr : q.scales.values.as<float>(),
             .e8m0 = e8m0 ? q.scales.values.as<uint8_t>() : nullptr,
             .amax = q.amax.as<const int>(),
             .factor = q.factor.as<const float>(),
             .groups = GroupGrid(q.scales.group, x.rows, x.columns, q.scales.layout),
             .of_type = largest_of(q.x.dtype),
             .transposed = q.transposed,
             .powers_of_two = q.powers_of_two,
             .lost = q.lost.as<unsigned long long>()};
    const int64_t down = t.groups.down(), across = t.groups.across();
    if (x.rows * x.columns == 0) return;
    const auto blocks = [](int64_t n) {
        return Grid{.blocks = dim3(static_cast<unsigned>(n)), .threads = dim3(kThreads)};
    };
    const int64_t strips = ceil_div(x.columns, kWarp);
    if (down == 1 && across == 1) {
        if (t.amax == nullptr) {
            int* const largest = static_cast<int*>(stream.workspace) + kPartials;
            find_largest(stream, q.x, nullptr, largest);
            t.amax = largest;
        }
        return launch(quantize_whole<kFraction, T>, blocks(strips * ceil_div(x.rows, kWarp)), stream, x, t);
    }
    if (t.groups.columns == 1) return launch(quantize_columns<kFraction, T>, blocks(strips * down), stream, x, t);
    if (t.groups.rows * t.groups.columns <= kSmallGroup)
        return launch(quantize_groups<kFraction, kWarp, T>, blocks(ceil_div(down * across, kWarps)), stream, x, t);
    launch(quantize_groups<kFraction, kThreads, T>, blocks(down * across), stream, x, t);
}

void quantize(const Stream& stream, const Quantize& q) {
    with_type(q.x.dtype, [&]<class T>(T) {
        q.codes.dtype == DType::e4m3 ? quantize_as<3, T>(stream, q) : quantize_as<2, T>(stream, q);
    });
}

// --- a run of elements: a warp takes those of a row that lie in one group

struct Run {
    int64_t n, first;
    GroupGrid groups;
    int* amaxes;
    const float* factor;  // null: that of the group's amax
    uint8_t* codes;
    float of_type;
    bool powers_of_two;

    struct Piece {
        int64_t begin, end, group;  // of the elements of the run; empty where the run does not reach
    };
    __host__ __device__ int64_t first_row() const { return first / groups.C; }
    __host__ int64_t rows() const { return (first + n - 1) / groups.C - first_row() + 1; }
    __device__ Piece piece(int64_t number) const {
        const int64_t across = groups.across(), r = first_row() + number / across, j = number % across;
        const int64_t left = j * groups.columns;
        const int64_t right = left + groups.columns < groups.C ? left + groups.columns : groups.C;
        const int64_t begin = r * groups.C + left - first, end = r * groups.C + right - first;
        return {begin > 0 ? begin : 0, end < n ? end : n, groups.at(r / groups.rows, j, false)};
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads) amax_of_run_kernel(const T* x, Run run, int64_t pieces) {
    const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (number >= pieces) return;  // whole warps
    const Run::Piece piece = run.piece(number);
    int most = 0;
    for (int64_t i = piece.begin + threadIdx.x % kWarp; i < piece.end; i += kWarp)
        most = larger(most, magnitude_bits(load_one(x + i)));
    most = warp_largest(most);
    if (threadIdx.x % kWarp == 0 && most > 0) atomicMax(run.amaxes + piece.group, most);
}

template <int kFraction, class T>
__global__ void __launch_bounds__(kThreads) quantize_run_kernel(const T* x, Run run, int64_t pieces) {
    constexpr Float8 kFormat = kFraction == 3 ? Float8(kE4m3) : Float8(kE5m2);
    const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (number >= pieces) return;
    const Run::Piece piece = run.piece(number);
    if (piece.begin >= piece.end) return;
    const float factor = group_scale(run.amaxes[piece.group], kFormat, false, run.of_type, run.powers_of_two,
                                     run.factor != nullptr ? *run.factor : 0)
                             .factor;
    for (int64_t i = piece.begin + threadIdx.x % kWarp; i < piece.end; i += kWarp)
        run.codes[i] = code_of<kFraction>(load_one(x + i) * factor);
}

template <class Launch>
void over_pieces(const QuantizeRun& q, const Launch& launch_kernel) {
    if (q.x.numel() == 0) return;
    const Run run{.n = q.x.shape[0],
                  .first = q.first,
                  .groups = GroupGrid(q.group, q.matrix[0], q.matrix[1]),
                  .amaxes = q.amaxes.as<int>(),
                  .factor = q.factor.as<const float>(),
                  .codes = q.codes.as<uint8_t>(),
                  .of_type = largest_of(q.x.dtype),
                  .powers_of_two = q.powers_of_two};
    const int64_t pieces = run.rows() * run.groups.across();
    launch_kernel(run, pieces,
                  Grid{.blocks = dim3(static_cast<unsigned>(ceil_div(pieces, kWarps))), .threads = dim3(kThreads)});
}

void amax_of_run(const Stream& stream, const QuantizeRun& q) {
    over_pieces(q, [&](const Run& run, int64_t pieces, const Grid& grid) {
        with_type(q.x.dtype,
                  [&]<class T>(T) { launch(amax_of_run_kernel<T>, grid, stream, q.x.as<const T>(), run, pieces); });
    });
}

void quantize_run(const Stream& stream, const QuantizeRun& q) {
    over_pieces(q, [&](const Run& run, int64_t pieces, const Grid& grid) {
        with_type(q.x.dtype, [&]<class T>(T) {
            q.codes.dtype == DType::e4m3
                ? launch(quantize_run_kernel<3, T>, grid, stream, q.x.as<const T>(), run, pieces)
                : launch(quantize_run_kernel<2, T>, grid, stream, q.x.as<const T>(), run, pieces);
        });
    });
}

// --- dequantize

struct Source {
    const uint8_t* codes;
    const float* divisors;  // one of the two
    const uint8_t* e8m0;
    GroupGrid groups;
    bool transposed;
};

template <int kFraction, class T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(Source s, T* y, int64_t stride) {
    constexpr Float8 kFormat = kFraction == 3 ? Float8(kE4m3) : Float8(kE5m2);
    const int64_t blocks_of_row = ceil_div(s.groups.C, kThreads);
    const int64_t r = blockIdx.x / blocks_of_row, c = blockIdx.x % blocks_of_row * kThreads + threadIdx.x;
    if (c >= s.groups.C) return;
    const int64_t at = s.groups.at(r / s.groups.rows, c / s.groups.columns, s.transposed);
    const float divisor = s.e8m0 != nullptr ? e8m0_value(s.e8m0[at]) : s.divisors[at];
    const uint8_t code = s.codes[s.transposed ? c * s.groups.R + r : r * s.groups.C + c];
    store_one(float8_value(code, kFormat) * divisor, y + r * stride + c);
}

void dequantize(const Stream& stream, const Dequantize& d) {
    const bool e8m0 = d.scales.values.dtype == DType::e8m0;
    const int64_t R = d.y.shape[0], C = d.y.shape[1];
    if (R * C == 0) return;
    with_type(d.y.dtype, [&]<class T>(T) {
        const Source s{.codes = d.codes.as<const uint8_t>(),
                       .divisors = e8m0 ? nullptr : d.scales.values.as<const float>(),
                       .e8m0 = e8m0 ? d.scales.values.as<const uint8_t>() : nullptr,
                       .groups = GroupGrid(d.scales.group, R, C, d.scales.layout),
                       .transposed = d.transposed};
        const Grid grid{.blocks = dim3(static_cast<unsigned>(R * ceil_div(C, kThreads))), .threads = dim3(kThreads)};
        d.codes.dtype == DType::e4m3 ? launch(dequantize_kernel<3, T>, grid, stream, s, d.y.as<T>(), d.y.stride(0))
                                     : launch(dequantize_kernel<2, T>, grid, stream, s, d.y.as<T>(), d.y.stride(0));
    });
}

}  // namespace

void fill_float8(KernelTable& table) {
    table.amax = amax;
    table.quantize = quantize;
    table.amax_of_run = amax_of_run;
    table.quantize_run = quantize_run;
    table.dequantize = dequantize;
}

}  // namespace tutti::kernels::cuda
