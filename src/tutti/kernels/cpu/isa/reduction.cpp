// kernels/cpu/isa/reduction.cpp: sums over a whole tensor, over rows (bias gradient), along rows (squared error).
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// Partial sums that fit the stack. How elements are spread over them depends on n only, and they are added in order:
// the same bits for any number of threads.
constexpr int64_t kMaxPartials = 256;
constexpr int64_t kMinBlock = 4096;

// result += sum of what add(accumulator, x) collects, in double.
template <class T, class Add>
void reduce(const Stream& stream, const T* x, int64_t n, double* result, Add add) {
    const int64_t per_partial = larger((n + kMaxPartials - 1) / kMaxPartials, kMinBlock);
    const int64_t block = (per_partial + kLanes - 1) / kLanes * kLanes;
    const int64_t blocks = (n + block - 1) / block;
    double partials[kMaxPartials];
    parallel_for(stream, blocks, kGrain / block + 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            Doubles even, odd;
            const int64_t last = smaller(n, (b + 1) * block);
            int64_t i = b * block;
            for (; i + 2 * kLanes <= last; i += 2 * kLanes) {
                add(even, load(x + i, Full{}));
                add(odd, load(x + i + kLanes, Full{}));
            }
            for_vectors(i, last, [&](int64_t k, auto part) { add(even, load(x + k, part)); });
            partials[b] = even.total() + odd.total();
        }
    });
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b) total += partials[b];
    *result += total;
}

void sum(const Stream& stream, View x, View result) {
    with_type(x.dtype, [&](auto type) {
        reduce(stream, x.as<typename decltype(type)::type>(), numel(x), result.as<double>(),
               [](Doubles& total, Vec v) { total.add(v); });
    });
}

void sum_of_squares(const Stream& stream, View x, View result) {
    with_type(x.dtype, [&](auto type) {
        reduce(stream, x.as<typename decltype(type)::type>(), numel(x), result.as<double>(),
               [](Doubles& total, Vec v) { total.add_square(v); });
    });
}

void bias_backward(const Stream& stream, View dy, View db) {
    with_type(dy.dtype, [&](auto type) {
        const auto* gradients = dy.as<typename decltype(type)::type>();
        const int64_t width = columns(dy);
        add_column_sums<1>(stream, rows(dy), width, {db.as<float>()}, [=](int64_t n, int64_t c, auto part) {
            return Vecs<1>{{load(gradients + n * width + c, part)}};
        });
    });
}

void squared_error(const Stream& stream, View x, View target, float grad_scale, View losses, View dx) {
    const int64_t width = columns(x);
    const Vec factor = broadcast(2 * grad_scale);
    float* loss = losses.as<float>();
    with_type(x.dtype, [&](auto x_type) {
        with_type(target.dtype, [&](auto target_type) {
            using T = typename decltype(x_type)::type;
            using U = typename decltype(target_type)::type;
            parallel_for(stream, rows(x), row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    const T* values = x.as<T>() + n * width;
                    const U* wanted = target.as<U>() + n * width;
                    T* gradients = dx.as<T>();
                    if (gradients) gradients += n * width;
                    loss[n] = row_sum(width, [=](int64_t c, auto part) {
                        const Vec difference = load(values + c, part) - load(wanted + c, part);
                        if (gradients) store(difference * factor, gradients + c, part);
                        return difference * difference;
                    });
                }
            });
        });
    });
}

}  // namespace

void fill_reduction(KernelTable& table) {
    table.sum = sum;
    table.sum_of_squares = sum_of_squares;
    table.bias_backward = bias_backward;
    table.squared_error = squared_error;
}

}  // namespace tutti::kernels::TUTTI_ISA
