// kernels/cpu/isa/reduction.cpp: sums over blocks, over rows (bias gradient), along rows (squared error).
#include "tutti/kernels/cpu/isa/column_sums.h"
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// One stream of memory: the hardware prefetcher stops at every page, so lines are asked for ahead of it.
void sums_of_squares(const Stream& stream, View x, View sums) {
    constexpr int64_t kAhead = 2048;
    const int64_t n = numel(x);
    const auto* values = x.as<float>();
    auto* totals = sums.as<double>();
    parallel_for(stream, numel(sums), kGrain / kSumBlock + 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            Doubles even, odd;
            const int64_t last = smaller(n, (b + 1) * kSumBlock);
            int64_t i = b * kSumBlock;
            for (; i + 2 * kLanes <= last; i += 2 * kLanes) {
                for (int64_t line = 0; line < 2 * kLanes; line += 16) __builtin_prefetch(values + i + kAhead + line);
                even.add_square(load(values + i, Full{}));
                odd.add_square(load(values + i + kLanes, Full{}));
            }
            for_vectors(i, last, [&](int64_t k, auto part) { even.add_square(load(values + k, part)); });
            totals[b] = even.total() + odd.total();
        }
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
    with_type(x.dtype, [&]<class T>(Type<T>) {
        with_type(target.dtype, [&]<class U>(Type<U>) {
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
    table.sums_of_squares = sums_of_squares;
    table.bias_backward = bias_backward;
    table.squared_error = squared_error;
}

}  // namespace tutti::kernels::TUTTI_ISA
