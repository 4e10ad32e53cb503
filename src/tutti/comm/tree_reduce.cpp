#include "tutti/comm/tree_reduce.h"

#include <algorithm>
#include <bit>

#include "tutti/base/error.h"

namespace tutti::comm {

namespace {

constexpr int64_t kBlock = 1024;  // elements reduced at once: a level of the tree stays in the first cache

template <class T>
struct Sum {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Max {
    T operator()(T a, T b) const { return a < b ? b : a; }
};

// sums[0, n) = elements [at, at + n) of inputs[first, first + count), along the tree.
template <class T, class Sums, class Op>
void reduce_block(std::span<const void* const> inputs, int64_t at, int64_t n, Sums* sums, Op op) {
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
    const size_t left = std::bit_ceil(inputs.size()) / 2;
    Sums right[kBlock];
    reduce_block<T>(inputs.first(left), at, n, sums, op);
    reduce_block<T>(inputs.subspan(left), at, n, right, op);
    for (int64_t i = 0; i < n; ++i) sums[i] = op(sums[i], right[i]);
}

template <class T, class Sums, class Out, class Op>
void reduce_range(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
    Sums sums[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        reduce_block<T>(inputs, at, n, sums, Op{});
        for (void* output : outputs) {
            Out* y = static_cast<Out*>(output) + at;
            for (int64_t i = 0; i < n; ++i) y[i] = static_cast<Out>(sums[i]);
        }
    }
}

template <class T, class Sums, class Out>
void reduce_as(Reduce reduce, std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin,
               int64_t end) {
    if (reduce == Reduce::sum)
        reduce_range<T, Sums, Out, Sum<Sums>>(inputs, outputs, begin, end);
    else
        reduce_range<T, Sums, Out, Max<Sums>>(inputs, outputs, begin, end);
}

}  // namespace

void tree_reduce(Reduce reduce, DType input_type, std::span<const void* const> inputs, DType output_type,
                 std::span<void* const> outputs, int64_t begin, int64_t end) {
    const bool widened = output_type == DType::f32 && (input_type == DType::bf16 || input_type == DType::f16);
    check(input_type == output_type || widened, "a reduction of ", input_type, " into ", output_type,
          ": the result must have the input's type, or be f32 of a 16-bit type");
    switch (input_type) {
        case DType::f32: return reduce_as<float, float, float>(reduce, inputs, outputs, begin, end);
        case DType::f64: return reduce_as<double, double, double>(reduce, inputs, outputs, begin, end);
        case DType::i32: return reduce_as<int32_t, int32_t, int32_t>(reduce, inputs, outputs, begin, end);
        case DType::i64: return reduce_as<int64_t, int64_t, int64_t>(reduce, inputs, outputs, begin, end);
        case DType::bf16:
            return widened ? reduce_as<bf16, float, float>(reduce, inputs, outputs, begin, end)
                           : reduce_as<bf16, float, bf16>(reduce, inputs, outputs, begin, end);
        case DType::f16:
            return widened ? reduce_as<f16, float, float>(reduce, inputs, outputs, begin, end)
                           : reduce_as<f16, float, f16>(reduce, inputs, outputs, begin, end);
        default: throw Error(concat("no reduction of ", input_type));
    }
}

}  // namespace tutti::comm
