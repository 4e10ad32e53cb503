#include "tutti/comm/tree_reduce.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm {

namespace {

constexpr int64_t kBlock = 1024;  // elements reduced at once, so that a level of the tree fits the L1 cache

template <class T>
struct Sum {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Max {
    T operator()(T a, T b) const { return a < b ? b : a; }
};

// The number of inputs in the left subtree of the root.
size_t left_inputs(size_t inputs, std::span<const int> ranks) {
    if (ranks.empty()) return std::bit_ceil(inputs) / 2;
    const auto total = to_size(std::accumulate(ranks.begin(), ranks.end(), 0));
    size_t left = 0, sum = 0;
    while (sum < std::bit_ceil(total) / 2) sum += to_size(ranks[left++]);
    check(sum == std::bit_ceil(total) / 2, "tree_reduce: input ", left - 1, " of ", ranks[left - 1],
          " ranks is not the sum of a subtree");
    return left;
}

// sums[0, n) = elements [at, at + n) of the inputs, reduced along the tree.
template <class T, class Sums, class Op>
void reduce_block(std::span<const void* const> inputs, std::span<const int> ranks, int64_t at, int64_t n, Sums* sums,
                  Op op) {
    if (inputs.size() == 1) {
        const T* x = static_cast<const T*>(inputs[0]) + at;
        for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sums>(x[i]);
        return;
    }
    if (inputs.size() == 2) {
        const T *x = static_cast<const T*>(inputs[0]) + at, *y = static_cast<const T*>(inputs[1]) + at;
        for (int64_t i = 0; i < n; ++i) sums[i] = op(static_cast<Sums>(x[i]), static_cast<Sums>(y[i]));
        return;
    }
    const size_t left = left_inputs(inputs.size(), ranks);
    const auto left_ranks = ranks.empty() ? ranks : ranks.first(left);
    const auto right_ranks = ranks.empty() ? ranks : ranks.subspan(left);
    Sums right[kBlock];
    reduce_block<T>(inputs.first(left), left_ranks, at, n, sums, op);
    reduce_block<T>(inputs.subspan(left), right_ranks, at, n, right, op);
    for (int64_t i = 0; i < n; ++i) sums[i] = op(sums[i], right[i]);
}

template <class T, class Sums, class Out, class Op>
void reduce_range(std::span<const void* const> inputs, std::span<const int> ranks, std::span<void* const> outputs,
                  int64_t begin, int64_t end) {
    Sums sums[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        reduce_block<T>(inputs, ranks, at, n, sums, Op{});
        for (void* output : outputs) {
            Out* y = static_cast<Out*>(output) + at;
            for (int64_t i = 0; i < n; ++i) y[i] = static_cast<Out>(sums[i]);
        }
    }
}

}  // namespace

DType sum_type(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype; }

void tree_reduce(Reduce reduce, DType input_type, std::span<const void* const> inputs, DType output_type,
                 std::span<void* const> outputs, int64_t begin, int64_t end, std::span<const int> ranks) {
    check(sum_type(input_type) == sum_type(output_type) &&
              (input_type == output_type || input_type == DType::f32 || output_type == DType::f32),
          "tree_reduce of ", input_type, " into ", output_type, ": required the same type, or f32 and a 16-bit type");
    const auto as = [&]<class T, class Sums, class Out>(T, Sums, Out) {
        if (reduce == Reduce::sum)
            reduce_range<T, Sums, Out, Sum<Sums>>(inputs, ranks, outputs, begin, end);
        else
            reduce_range<T, Sums, Out, Max<Sums>>(inputs, ranks, outputs, begin, end);
    };
    const auto into = [&]<class Out>(Out out) {
        if (input_type == output_type) return as(out, 0.0f, out);
        return input_type == DType::f32 ? as(0.0f, 0.0f, out) : as(out, 0.0f, 0.0f);
    };
    const DType half = input_type == DType::f32 ? output_type : input_type;
    switch (half) {
        case DType::f32: return as(0.0f, 0.0f, 0.0f);
        case DType::f64: return as(0.0, 0.0, 0.0);
        case DType::i32: return as(int32_t{}, int32_t{}, int32_t{});
        case DType::i64: return as(int64_t{}, int64_t{}, int64_t{});
        case DType::bf16: return into(bf16(0.0f));
        case DType::f16: return into(f16(0.0f));
        default: throw Error(concat("tree_reduce of ", input_type, ": required f32, f64, bf16, f16, i32 or i64"));
    }
}

}  // namespace tutti::comm
