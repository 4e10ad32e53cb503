// The tree splits at the largest power of two below its number of leaves. From left to right, leaves and sums of equal
// size merge as the digits of a binary counter do; at the end the sums of unequal size merge from the right.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/comm/nccl/tree_sum.h"
#include "tutti/device/cuda/launch.h"

namespace tutti::comm::nccl {

namespace {

constexpr int kThreads = 256, kLevels = 17;
constexpr int64_t kMostBlocks = 1024;

template <class T>
__device__ const T* values_of(const RankValues& x, int rank) {
    return static_cast<const T*>(rank == x.rank ? x.own : x.arrived + rank * x.stride);
}

// For any number of ranks, element by element.
template <class T, class Sums, class Out, bool maximum>
__global__ void __launch_bounds__(kThreads) tree_kernel(RankValues x, Out* y, int64_t begin, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const auto merge = [](Sums a, Sums b) { return maximum ? (a < b ? b : a) : a + b; };
        Sums sums[kLevels];
        int level = 0;
        for (int r = 0; r < x.ranks; ++r) {
            Sums sum = static_cast<Sums>(values_of<T>(x, r)[i]);
            for (int digits = r; (digits & 1) != 0; digits >>= 1) sum = merge(sums[--level], sum);
            sums[level++] = sum;
        }
        Sums sum = sums[--level];
        while (level > 0) sum = merge(sums[--level], sum);
        y[i] = static_cast<Out>(sum);
    }
}

template <class T, int kValues>
struct alignas(kValues * sizeof(T)) Word {
    T of[kValues];
};

// For 2, 4 or 8 ranks, one word of each at a time: all loads of a thread are in flight at once, and its sums stay in
// registers.
template <class T, class Out, int kRanks>
__global__ void __launch_bounds__(kThreads) word_kernel(RankValues x, Out* y, int64_t words) {
    constexpr int kValues = static_cast<int>(kWordBytes / sizeof(T));
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
        Word<T, kValues> values[kRanks];
#pragma unroll
        for (int r = 0; r < kRanks; ++r) values[r] = reinterpret_cast<const Word<T, kValues>*>(values_of<T>(x, r))[i];
        Word<Out, kValues> out;
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
            float sums[kRanks];
#pragma unroll
            for (int r = 0; r < kRanks; ++r) sums[r] = static_cast<float>(values[r].of[v]);
#pragma unroll
            for (int size = 1; size < kRanks; size *= 2)
#pragma unroll
                for (int r = 0; r < kRanks; r += 2 * size) sums[r] += sums[r + size];
            out.of[v] = static_cast<Out>(sums[0]);
        }
        reinterpret_cast<Word<Out, kValues>*>(y)[i] = out;
    }
}

Grid grid_of(int64_t threads) {
    return {.blocks = {static_cast<unsigned>(std::min<int64_t>(ceil_div(threads, kThreads), kMostBlocks))},
            .threads = {kThreads}};
}

// Returns the number of elements added, which tree_kernel then need not add.
template <class T, class Out>
int64_t start_words(const Stream& stream, const RankValues& x, Out* y, int64_t count) {
    constexpr int64_t kValues = kWordBytes / static_cast<int64_t>(sizeof(T));
    const auto is_aligned = [](const void* data, int64_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; };
    const int64_t words = count / kValues;
    if (words == 0 || x.stride % kWordBytes != 0 || !is_aligned(x.own, kWordBytes) ||
        !is_aligned(x.arrived, kWordBytes) || !is_aligned(y, kValues * static_cast<int64_t>(sizeof(Out))))
        return 0;
    switch (x.ranks) {
        case 2: launch(word_kernel<T, Out, 2>, grid_of(words), stream, x, y, words); break;
        case 4: launch(word_kernel<T, Out, 4>, grid_of(words), stream, x, y, words); break;
        case 8: launch(word_kernel<T, Out, 8>, grid_of(words), stream, x, y, words); break;
        default: return 0;
    }
    return words * kValues;
}

template <class T, class Sums, class Out>
void start(const Stream& stream, Reduce reduce, const RankValues& x, void* y, int64_t count) {
    auto* out = static_cast<Out*>(y);
    if (reduce == Reduce::max)
        return launch(tree_kernel<T, Sums, Out, true>, grid_of(count), stream, x, out, int64_t{0}, count);
    int64_t begin = 0;
    if constexpr (std::is_same_v<Sums, float>) begin = start_words<T>(stream, x, out, count);
    if (begin < count) launch(tree_kernel<T, Sums, Out, false>, grid_of(count - begin), stream, x, out, begin, count);
}

// For types that add in f32: into f32, into their own type, or f32 into a 16-bit type.
template <class T>
void start_f32(const Stream& stream, Reduce reduce, const RankValues& x, DType output_type, void* y, int64_t count) {
    constexpr bool is_f32 = std::is_same_v<T, float>;
    if (output_type == DType::f32) return start<T, float, float>(stream, reduce, x, y, count);
    if constexpr (is_f32) {
        if (output_type == DType::bf16) return start<T, float, bf16>(stream, reduce, x, y, count);
        if (output_type == DType::f16) return start<T, float, f16>(stream, reduce, x, y, count);
    } else if (output_type == dtype_of<T>()) {
        return start<T, float, T>(stream, reduce, x, y, count);
    }
    throw Error(concat("reduction of ", dtype_of<T>(), " into ", output_type,
                       " on a GPU: required the same type, or f32 and a 16-bit type"));
}

}  // namespace

void tree_sum(const Stream& stream, Reduce reduce, DType input_type, const RankValues& x, DType output_type, void* y,
              int64_t count) {
    check(x.ranks <= 1 << (kLevels - 1), "reduction over ", x.ranks, " ranks on a GPU: required at most ",
          1 << (kLevels - 1));
    if (count == 0) return;
    switch (input_type) {
        case DType::f32: return start_f32<float>(stream, reduce, x, output_type, y, count);
        case DType::bf16: return start_f32<bf16>(stream, reduce, x, output_type, y, count);
        case DType::f16: return start_f32<f16>(stream, reduce, x, output_type, y, count);
        default: break;
    }
    check(input_type == output_type, "reduction of ", input_type, " into ", output_type,
          " on a GPU: required the same type");
    switch (input_type) {
        case DType::f64: return start<double, double, double>(stream, reduce, x, y, count);
        case DType::i32: return start<int32_t, int32_t, int32_t>(stream, reduce, x, y, count);
        case DType::i64: return start<int64_t, int64_t, int64_t>(stream, reduce, x, y, count);
        default:
            throw Error(concat("reduction of ", input_type, " on a GPU: required f32, f64, bf16, f16, i32 or i64"));
    }
}

}  // namespace tutti::comm::nccl
