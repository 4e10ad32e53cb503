// kernels/cuda/sampling.cu: samples a token from a row of logits, one block per row: finds the cuts digit by digit with
// histograms in shared memory, then draws. Sums are of integers, so the order of atomics does not matter.
#include "tutti/base/ceil_div.h"
#include "tutti/base/philox.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"
#include "tutti/kernels/sampling.h"

namespace tutti::kernels::cuda {

namespace {

using Row = Team<16>;
using Count = unsigned long long;  // what atomicAdd takes for 64 bits

struct SampleShape {
    int64_t stride, vocab;
    RandomKey key;
    float temperature;
    int64_t top_k;
    double top_p;
};

struct Shared {
    Count histogram[Cut::kDigits];
    Cut cut;
    Count sums[Row::kThreads];
    int owner;
    Count left;
};

// measure(x, key) of a logit, 0 where it does not count. Between two calls the block meets: `need` of the second is a
// sum over its threads.
template <class T, class Measure>
__device__ uint32_t cut_at(const T* row, int64_t vocab, Count need, Measure measure) {
    auto& shared = block_shared<Shared>();
    const int rank = Row::rank();
    if (rank == 0) shared.cut = {.need = need};
    for (int shift = Cut::kKeyBits - Cut::kDigitBits; shift >= 0; shift -= Cut::kDigitBits) {
        for (int d = rank; d < Cut::kDigits; d += Row::kThreads) shared.histogram[d] = 0;
        __syncthreads();
        const Cut cut = shared.cut;
        for_columns<Row, 1>(vocab, [&](int64_t i) {
            const float x = load_one(row + i);
            const uint32_t key = order_key(x);
            if (!cut.matches(key, shift)) return;
            const Count size = measure(x, key);
            if (size > 0) atomicAdd(&shared.histogram[Cut::digit(key, shift)], size);
        });
        __syncthreads();
        if (rank == 0) shared.cut.find_digit(shared.histogram);
        __syncthreads();
    }
    return shared.cut.prefix;
}

template <class T>
__global__ void __launch_bounds__(Row::kBlockThreads)
    sample_kernel(SampleShape s, const T* logits, const int64_t* draws, int32_t* tokens) {
    auto& shared = block_shared<Shared>();
    const int64_t n = Row::row();
    const int rank = Row::rank();
    const T* const row = logits + n * s.stride;

    float most = -INFINITY;
    int strange = 0;
    for_columns<Row, 1>(s.vocab, [&](int64_t i) {
        const float x = load_one(row + i);
        strange += x != x;
        most = fmaxf(most, x);
    });
    const float largest = Row::max(most);
    if (Row::sum(strange) > 0 || !(fabsf(largest) < INFINITY)) {
        if (rank == 0) tokens[n] = -1;
        return;
    }
    uint32_t floor = 0;
    const auto weight = [&](float x, uint32_t key) -> Count {
        return key >= floor ? sampling_weight(x, largest, s.temperature) : 0;
    };
    if (s.top_k > 0 && s.top_k < s.vocab)
        floor = cut_at(row, s.vocab, static_cast<Count>(s.top_k), [](float, uint32_t) -> Count { return 1; });
    if (s.top_p < 1) {
        Count own = 0;
        for_columns<Row, 1>(s.vocab, [&](int64_t i) {
            const float x = load_one(row + i);
            own += weight(x, order_key(x));
        });
        floor = cut_at(row, s.vocab, share_of(s.top_p, Row::sum(own)), weight);
    }

    // The draw: neighbouring tokens to each thread, then the thread that has the place, then the place.
    const int64_t part = ceil_div(s.vocab, Row::kThreads);
    const int64_t begin = rank * part, end = begin + part < s.vocab ? begin + part : s.vocab;
    Count own = 0;
    for (int64_t i = begin; i < end; ++i) {
        const float x = load_one(row + i);
        own += weight(x, order_key(x));
    }
    shared.sums[rank] = own;
    __syncthreads();
    if (rank == 0) {
        Count total = 0, left = 0;
        for (int r = 0; r < Row::kThreads; ++r) total += shared.sums[r];
        if (s.temperature > 0) left = uniform_below(s.key, static_cast<uint64_t>(draws[n]), total);
        int owner = 0;
        for (; left >= shared.sums[owner]; ++owner) left -= shared.sums[owner];
        shared.owner = owner;
        shared.left = left;
    }
    __syncthreads();
    if (rank != shared.owner) return;
    Count left = shared.left;
    for (int64_t i = begin;; ++i) {
        const float x = load_one(row + i);
        const Count size = weight(x, order_key(x));
        if (left < size) {
            tokens[n] = static_cast<int32_t>(i);
            return;
        }
        left -= size;
    }
}

void sample(const Stream& stream, const Sample& s) {
    const int64_t N = s.logits.shape[0];
    if (N == 0) return;
    const SampleShape shape{s.logits.stride(0), s.vocab, s.key, s.temperature, s.top_k, s.top_p};
    with_type(s.logits.dtype, [&]<class T>(T) {
        launch(sample_kernel<T>, grid_of_rows<Row>(N), stream, shape, s.logits.as<const T>(),
               s.draws.as<const int64_t>(), s.tokens.as<int32_t>());
    });
}

}  // namespace

void fill_sampling(KernelTable& table) { table.sample = sample; }

}  // namespace tutti::kernels::cuda
