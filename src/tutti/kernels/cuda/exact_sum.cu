// kernels/cuda/exact_sum.cu: sums without rounding. Atomics add integers, so that no order shows.
#include "tutti/base/exact_sum.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kTermsOfThread = 32;
constexpr uint32_t kWords = ExactSum::kWords, kDigits = ExactSum::kDigits;

__device__ __forceinline__ void add_words(const ExactSum::Addend& sum, int64_t* words) {
#pragma unroll
    for (uint32_t k = 0; k < 3; ++k)
        if (sum.digits[k] != 0)
            atomicAdd(reinterpret_cast<unsigned long long*>(words + sum.first + k),
                      static_cast<unsigned long long>(sum.digits[k]));
}

// The terms of a sum are of like size: a thread keeps the three words that it adds to, and goes to memory when a term
// belongs elsewhere.
template <class T>
__global__ void __launch_bounds__(kThreads) exact_sum_kernel(int64_t n, const T* values, int64_t* words) {
    ExactSum::Addend sum{};
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
        const ExactSum::Addend term = ExactSum::addend(static_cast<double>(values[i]));
        if (term.first != sum.first) {
            add_words(sum, words);
            sum = {term.first, {0, 0, 0}};
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) sum.digits[k] += term.digits[k];
    }
    add_words(sum, words);
}

struct Words {
    int64_t at[kWords];
};
// Digits into [0, 2^32), but for the highest: one after another, as carries go.
__global__ void __launch_bounds__(kWords) carry_kernel(int64_t* words) {
    Words& sum = block_shared<Words>();
    sum.at[threadIdx.x] = words[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t k = 0; k + 1 < kDigits; ++k) {
            const int64_t over = sum.at[k] >> 32;
            sum.at[k] -= over * (int64_t{1} << 32);
            sum.at[k + 1] += over;
        }
    __syncthreads();
    words[threadIdx.x] = sum.at[threadIdx.x];
}

void exact_sum(const Stream& stream, View values, View words) {
    const int64_t n = values.numel();
    if (n == 0) return;
    const auto blocks = static_cast<unsigned>(ceil_div(n, kTermsOfThread * kThreads));
    const Grid grid{.blocks = dim3(blocks), .threads = dim3(kThreads)};
    auto* const sum = words.as<int64_t>();
    if (values.dtype == DType::f32)
        launch(exact_sum_kernel<float>, grid, stream, n, values.as<const float>(), sum);
    else
        launch(exact_sum_kernel<double>, grid, stream, n, values.as<const double>(), sum);
    launch(carry_kernel, {.blocks = dim3(1), .threads = dim3(kWords)}, stream, sum);
}

}  // namespace

void fill_exact_sum(KernelTable& table) { table.exact_sum = exact_sum; }

}  // namespace tutti::kernels::cuda
