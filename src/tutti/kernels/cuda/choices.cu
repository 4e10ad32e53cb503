// kernels/cuda/choices.cu: choices in the order of experts, what experts accept, and the order of rows that arrive.
// Every element has one writer whose value follows from its place, so there are no atomics.
#include <bit>

#include "tutti/kernels/cuda/counting_sort.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {

namespace {

// The expert of a choice, or E where it is dropped.
struct ExpertOf {
    const int32_t* choices;
    int32_t E;
    __device__ int32_t operator()(int64_t i) const {
        const int32_t e = choices[i];
        return e >= 0 && e < E ? e : E;
    }
    template <class F>
    void for_pointers(F f) const {
        f(choices);
    }
};

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) loads_kernel(int64_t E, const int32_t* totals, float* counts) {
    const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (e < E) counts[e] = static_cast<float>(totals[e]);
}

// Places of the copies of each choice; those that are dropped are an owner of their own.
struct WritePlaces {
    int32_t E, experts_of_owner, copies;
    int64_t k;
    int32_t *sent, *slots;
    __device__ void operator()(int64_t i, int32_t bucket, int32_t place, const int32_t* first) const {
        const int64_t row = i / k, j = i - row * k;
        const bool dropped = bucket == E;
        const int32_t begin = dropped ? E : bucket / experts_of_owner * experts_of_owner;
        const int32_t end = dropped ? E + 1 : begin + experts_of_owner, of_copy = first[end] - first[begin];
        int32_t at = copies * first[begin] + first[bucket] - first[begin] + place;
        for (int32_t copy = 0; copy < copies; ++copy, at += of_copy) {
            if (sent != nullptr) sent[at] = dropped ? -1 : static_cast<int32_t>(row);
            if (slots != nullptr) slots[(row * copies + copy) * k + j] = dropped ? -1 : at;
        }
    }
    template <class F>
    void for_pointers(F f) const {
        f(sent);
        f(slots);
    }
};

void sort_choices(const Stream& stream, const SortChoices& s) {
    const int64_t n = s.choices.numel(), E = s.counts.numel();
    const int64_t bytes = Sorting<ExpertOf>::workspace_bytes(n, E + 1);
    check(bytes <= stream.workspace_bytes, "sort_choices: ", n, " choices of ", E, " experts need ", bytes,
          " bytes of the stream's workspace, which has ", stream.workspace_bytes, "; choose smaller microbatches");
    const Sorting<ExpertOf> sorting({s.choices.as<const int32_t>(), static_cast<int32_t>(E)}, n, E + 1,
                                    stream.workspace);
    count(stream, sorting);
    launch(loads_kernel, grid_of_tasks(E, kThreads), stream, E, static_cast<const int32_t*>(sorting.totals),
           s.counts.as<float>());
    if (s.sent.defined() || s.slots.defined())
        scatter(stream, sorting,
                WritePlaces{static_cast<int32_t>(E), static_cast<int32_t>(E / s.owners), static_cast<int32_t>(s.copies),
                            s.choices.shape[1], s.sent.as<int32_t>(), s.slots.as<int32_t>()});
}

using Block = Team<8>;

// A copy of this rank's choices.
__global__ void __launch_bounds__(Block::kBlockThreads) own_kernel(int64_t n, const int32_t* own, int32_t* accepted) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * Block::kBlockThreads + threadIdx.x;
    if (i < n) accepted[i] = own[i];
}

// The order in which an expert takes its choices, as words of a key: weight, row, place; the smallest key first.
struct Offers {
    static constexpr int kWords = 3;
    const int64_t* rows;  // 0 or more
    const float* weights;
    int64_t k;

    __device__ uint64_t word(int w, int32_t i) const {
        if (w == 2) return static_cast<uint64_t>(i);
        if (w == 1) return static_cast<uint64_t>(rows[i / k]);
        return weights == nullptr ? 0 : falling(weights[i]);
    }
    // Integers in the opposite order of floats; -0 is 0, and a NaN counts as larger than any number.
    __device__ static uint32_t falling(float x) {
        const uint32_t bits = std::bit_cast<uint32_t>(x == x ? (x == 0 ? 0.0f : x) : INFINITY);
        return (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
    }
};

// A key of Offers, or the first bits of one: `shift` bits are missing at the end of word `word`, and all later words.
struct KeyPart {
    uint64_t of[Offers::kWords] = {};
    int word = 0, shift = 0;

    // -1, 0, 1: the key of choice i is smaller, begins with these bits, or is larger.
    __device__ int compare(const Offers& offers, int32_t i) const {
#pragma unroll
        for (int w = 0; w < Offers::kWords; ++w) {
            if (w > word) break;
            const int missing = w == word ? shift : 0;
            const uint64_t x = offers.word(w, i) >> missing, y = of[w] >> missing;
            if (x != y) return x < y ? -1 : 1;
        }
        return 0;
    }
};

// Block e drops what expert e does not take. The last key that it takes is found bit by bit: each bit counts the keys
// that begin with the bits before it and a 0. Where all keys with the bits found so far are taken, the rest is not
// sought. A choice is looked at once for each bit in which keys can differ, and is found in the cache.
__global__ void __launch_bounds__(Block::kBlockThreads)
    accept_kernel(Offers offers, const int32_t* order, const float* counts, int64_t capacity, int64_t first, int64_t n,
                  int32_t* accepted) {
    const int64_t e = blockIdx.x;
    const int32_t count = static_cast<int32_t>(counts[e]);
    if (count <= capacity) return;
    float sum = 0;  // counts are integers: exact in any order
    for (int64_t i = Block::rank(); i < e; i += Block::kThreads) sum += counts[i];
    order += static_cast<int32_t>(Block::sum(sum));

    KeyPart last;
    int32_t alike = count, left = static_cast<int32_t>(capacity);  // of keys that begin with `last`; of these are taken
#pragma unroll
    for (int w = 0; w < Offers::kWords; ++w) {
        if (alike == left || left == 0) break;
        float length = 0;  // bits of the longest word
        for (int32_t m = Block::rank(); m < count; m += Block::kThreads)
            length = fmaxf(length, static_cast<float>(std::bit_width(offers.word(w, order[m]))));
        last.word = w;
        last.shift = static_cast<int>(Block::max(length));
        while (last.shift > 0 && alike != left) {
            --last.shift;
            int32_t zeros = 0;
            for (int32_t m = Block::rank(); m < count; m += Block::kThreads)
                zeros += last.compare(offers, order[m]) == 0 ? 1 : 0;
            zeros = Block::sum(zeros);
            if (zeros >= left) {
                alike = zeros;
            } else {
                left -= zeros;
                alike -= zeros;
                last.of[w] |= uint64_t{1} << last.shift;
            }
        }
    }
    const int most = left > 0 ? 0 : -1;  // of compare()
    for (int32_t m = Block::rank(); m < count; m += Block::kThreads) {
        const int32_t i = order[m];
        if (i >= first && i < first + n && last.compare(offers, i) > most) accepted[i - first] = -1;
    }
}

void accept_choices(const Stream& stream, const AcceptChoices& a) {
    const int64_t k = a.choices.shape[1], n = a.accepted.numel(), E = a.counts.numel(), first = a.first * k;
    if (n == 0) return;
    launch(own_kernel, grid_of_tasks(n, Block::kBlockThreads), stream, n, a.choices.as<const int32_t>() + first,
           a.accepted.as<int32_t>());
    launch(accept_kernel, grid_of_rows<Block>(E), stream,
           Offers{a.rows.as<const int64_t>(), a.weights.as<const float>(), k}, a.order.as<const int32_t>(),
           a.counts.as<const float>(), a.capacity, first, n, a.accepted.as<int32_t>());
}

// Block (p, e) takes the rows of rank p for expert e; that of the last rank also the padding behind them.
__global__ void __launch_bounds__(Block::kBlockThreads)
    arrivals_kernel(int64_t P, int64_t L, const float* counts, int32_t multiple, int32_t* order, int32_t* places) {
    const int64_t segment = blockIdx.x, e = segment % L;
    float arrived = 0, of_expert = 0, padded = 0;  // rows before these; padded: of earlier experts
    for (int64_t i = Block::rank(); i < segment; i += Block::kThreads) {
        arrived += counts[i];
        if (i % L == e) of_expert += counts[i];
    }
    for (int64_t other = Block::rank(); other < e; other += Block::kThreads) {
        int32_t rows = 0;
        for (int64_t p = 0; p < P; ++p) rows += static_cast<int32_t>(counts[p * L + other]);
        padded += static_cast<float>((rows + multiple - 1) / multiple * multiple);
    }
    const int32_t count = static_cast<int32_t>(counts[segment]), arrival = static_cast<int32_t>(Block::sum(arrived));
    const int32_t before = static_cast<int32_t>(Block::sum(of_expert));
    const int32_t at = static_cast<int32_t>(Block::sum(padded)) + before;
    for (int32_t i = Block::rank(); i < count; i += Block::kThreads) {
        order[at + i] = arrival + i;
        places[arrival + i] = at + i;
    }
    const int32_t end = (before + count + multiple - 1) / multiple * multiple - before;
    if (segment / L == P - 1)
        for (int32_t i = count + Block::rank(); i < end; i += Block::kThreads) order[at + i] = -1;
}

void order_arrivals(const Stream& stream, View counts, int64_t multiple, View order, View places) {
    if (order.numel() == 0) return;
    const int64_t P = counts.shape[0], L = counts.shape[1];
    launch(arrivals_kernel, grid_of_rows<Block>(P * L), stream, P, L, counts.as<const float>(),
           static_cast<int32_t>(multiple), order.as<int32_t>(), places.as<int32_t>());
}

}  // namespace

void fill_choices(KernelTable& table) {
    table.sort_choices = sort_choices;
    table.accept_choices = accept_choices;
    table.order_arrivals = order_arrivals;
}

}  // namespace tutti::kernels::cuda
