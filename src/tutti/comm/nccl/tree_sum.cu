// The tree splits at the largest power of two below its number of leaves. Taken from the left, leaves and sums of equal
// size merge as the digits of a binary counter do; at the end the unequal ones merge from the right.
#include <algorithm>
#include <type_traits>

#include "tutti/base/error.h"
#include "tutti/comm/nccl/tree_sum.h"
#include "tutti/device/cuda/launch.h"

namespace tutti::comm::nccl {

namespace {

constexpr int kThreads = 256, kLevels = 17;
constexpr int64_t kMostBlocks = 1024;

template <class T, class Sums, class Out, bool maximum>
__global__ void tree_kernel(Arrived x, Out* y, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const auto merge = [](Sums a, Sums b) { return maximum ? (a < b ? b : a) : a + b; };
        Sums sums[kLevels];
        int level = 0;
        for (int r = 0; r < x.ranks; ++r) {
            const void* values = r == x.rank ? x.own : x.arrived + r * x.stride;
            Sums sum = static_cast<Sums>(static_cast<const T*>(values)[i]);
            for (int digits = r; (digits & 1) != 0; digits >>= 1) sum = merge(sums[--level], sum);
            sums[level++] = sum;
        }
        Sums sum = sums[--level];
        while (level > 0) sum = merge(sums[--level], sum);
        y[i] = static_cast<Out>(sum);
    }
}

template <class T, class Sums, class Out>
void start(const tutti::Stream& stream, Reduce reduce, const Arrived& x, void* y, int64_t count) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, kMostBlocks));
    const Grid grid{.blocks = {blocks}, .threads = {kThreads}};
    auto* out = static_cast<Out*>(y);
    if (reduce == Reduce::max)
        launch(tree_kernel<T, Sums, Out, true>, grid, stream, x, out, count);
    else
        launch(tree_kernel<T, Sums, Out, false>, grid, stream, x, out, count);
}

// Of values that add in f32: into f32, into their own type, or f32 into a 16-bit type.
template <class T>
void start_f32(const tutti::Stream& stream, Reduce reduce, const Arrived& x, DType output_type, void* y,
               int64_t count) {
    constexpr bool is_f32 = std::is_same_v<T, float>;
    if (output_type == DType::f32) return start<T, float, float>(stream, reduce, x, y, count);
    if constexpr (is_f32) {
        if (output_type == DType::bf16) return start<T, float, bf16>(stream, reduce, x, y, count);
        if (output_type == DType::f16) return start<T, float, f16>(stream, reduce, x, y, count);
    } else if (output_type == dtype_of<T>()) {
        return start<T, float, T>(stream, reduce, x, y, count);
    }
    throw Error(concat("a reduction of ", dtype_of<T>(), " into ", output_type, " on a GPU"));
}

}  // namespace

void tree_sum(const tutti::Stream& stream, Reduce reduce, DType input_type, const Arrived& x, DType output_type,
              void* y, int64_t count) {
    check(x.ranks <= 1 << (kLevels - 1), "a sum over ", x.ranks, " ranks on a GPU: at most ", 1 << (kLevels - 1));
    if (count == 0) return;
    switch (input_type) {
        case DType::f32: return start_f32<float>(stream, reduce, x, output_type, y, count);
        case DType::bf16: return start_f32<bf16>(stream, reduce, x, output_type, y, count);
        case DType::f16: return start_f32<f16>(stream, reduce, x, output_type, y, count);
        default: break;
    }
    check(input_type == output_type, "a reduction of ", input_type, " into ", output_type, " on a GPU");
    switch (input_type) {
        case DType::f64: return start<double, double, double>(stream, reduce, x, y, count);
        case DType::i32: return start<int32_t, int32_t, int32_t>(stream, reduce, x, y, count);
        case DType::i64: return start<int64_t, int64_t, int64_t>(stream, reduce, x, y, count);
        default: throw Error(concat("no reduction of ", input_type, " on a GPU"));
    }
}

}  // namespace tutti::comm::nccl
