// kernels/cpu/isa/cross_entropy.cpp: softmax cross entropy over a vocabulary, whole or in shards, and its gradient in
// place of the logits.
//
// A row is read twice from memory: once for its maximum and sum, taken together piece by piece (Milakov and Gimelshein
// 2018), once for the gradient. The logits are the largest array of a small model, so reading is what costs.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

constexpr int64_t kPiece = 2048;  // stays in L1 between its maximum and its sum
constexpr float kInfinity = __builtin_inff();

template <class T>
float largest(const T* x, int64_t n) {
    Vec most[4] = {broadcast(-kInfinity), broadcast(-kInfinity), broadcast(-kInfinity), broadcast(-kInfinity)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int64_t k = 0; k < 4; ++k) most[k] = max(most[k], load(x + i + k * kLanes, Full{}));
    float rest = -kInfinity;
    for (; i < n; ++i) {
        const float value = value_of(x[i]);
        if (value > rest) rest = value;
    }
    const float vectors = reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
    return vectors > rest ? vectors : rest;
}

enum class Part : uint8_t { whole, partial, finish };

// Sums over the words of a row in one shard, or over all its words.
struct Partial {
    float maximum = -kInfinity;
    float sum = 0;     // sum_v exp(x_v - maximum)
    float target = 0;  // the target's logit
};

// e^x for x <= 0. Terms below the smallest normal float count as that float: a test of every vector would cost more.
template <class T>
[[gnu::always_inline]] inline Vec exp_term(Vec x) {
    return exp2_normal<T>(max(broadcast(-126.0f), x * broadcast(kLog2E)));
}

float exp_of(float x) {
    float lanes[kLanes];
    store(exp(broadcast(x)), lanes, Full{});
    return lanes[0];
}

// column: the target's, negative where another shard has it.
template <class T>
Partial partial_of(const T* x, int64_t n, int64_t column) {
    Partial total;
    if (column >= 0) total.target = value_of(x[column]);
    for (int64_t i = 0; i < n; i += kPiece) {
        const int64_t count = smaller(kPiece, n - i);
        const float piece = largest(x + i, count);
        if (piece > total.maximum) {
            total.sum *= exp_of(total.maximum - piece);  // the first time: 0 exp(-infinity) = 0
            total.maximum = piece;
        }
        // A row may begin with words at -infinity, and -infinity minus itself is NaN.
        const Vec safe = broadcast(total.maximum > -1e38f ? total.maximum : -1e38f);
        total.sum +=
            row_sum(count, [&](int64_t j, auto part) { return exp_term<float>(load(x + i + j, part) - safe); });
    }
    return total;
}

// The sums of row n, from partials (P, 3, N).
Partial sum_of_partials(const View& partials, int64_t n) {
    const int64_t P = size(partials, 0), N = size(partials, 2);
    const float* from = partials.as<const float>() + n;
    Partial all;
    for (int64_t p = 0; p < P; ++p)
        if (from[3 * p * N] > all.maximum) all.maximum = from[3 * p * N];
    for (int64_t p = 0; p < P; ++p) {
        all.sum += from[(3 * p + 1) * N] * exp_of(from[3 * p * N] - all.maximum);
        all.target += from[(3 * p + 2) * N];
    }
    return all;
}

// x_v = scale (exp(x_v - m) / sum - [v = target]), with a cap c times 1 - (x_v / c)^2. The smallest terms are lost in
// bf16, and subnormal ones in f32.
template <bool capped, class T>
void replace_by_gradient(T* x, int64_t words, int64_t column, const Partial& total, float scale, float cap) {
    const float p = exp_of(total.target - total.maximum) / total.sum;
    const Vec maximum = broadcast(total.maximum), factor = broadcast(scale / total.sum), inverse = broadcast(1 / cap);
    for_vectors(0, words, [&](int64_t i, auto part) {
        const Vec logit = load(x + i, part), difference = logit - maximum;
        Vec term = kHidesErrors<T> ? exp_term<T>(difference) : exp_bounded(difference);
        if constexpr (capped) {
            const Vec share = logit * inverse;
            term = term * fma_negative(share, share, broadcast(1.0f));
        }
        store_flushed(term * factor, x + i, part);
    });
    const float share = capped ? total.target / cap : 0;
    if (column >= 0) store(broadcast(scale * (p - 1) * (1 - share * share)), x + column, Tail{1});
}

template <Part part, class T>
void row_loss(const CrossEntropy& c, int64_t n) {
    const int64_t N = size(c.logits, 0), V = size(c.logits, 1), words = larger(0, smaller(V, c.vocab - c.first_word));
    const int64_t target = c.targets.as<const int32_t>()[n * c.targets.strides[0]];
    const bool counts = target >= 0 && target < c.vocab;
    const bool here = target >= c.first_word && target < c.first_word + words;
    const int64_t column = here ? target - c.first_word : -1;
    T* x = c.logits.as<T>() + n * c.logits.strides[0];
    if constexpr (part == Part::partial) {
        const Partial partial = counts ? partial_of(x, words, column) : Partial{};
        float* to = c.partials.as<float>() + n;
        to[0] = partial.maximum;
        to[N] = partial.sum;
        to[2 * N] = partial.target;
        return;
    }
    float& loss = c.losses.as<float>()[n * c.losses.strides[0]];
    const auto clear = [&](int64_t begin) {
        if (c.gradient) __builtin_memset(static_cast<void*>(x + begin), 0, static_cast<size_t>(V - begin) * sizeof(T));
    };
    if (!counts) {
        loss = target < 0 ? 0 : __builtin_nanf("");  // no such word: a loss that stops the run
        return clear(0);
    }
    const Partial total = part == Part::finish ? sum_of_partials(c.partials, n) : partial_of(x, words, column);
    loss = total.maximum + __builtin_logf(total.sum) - total.target;
    if (!c.gradient) return;
    (c.cap > 0 ? replace_by_gradient<true, T> : replace_by_gradient<false, T>)(x, words, column, total, c.grad_scale,
                                                                               c.cap);
    clear(words);
}

template <Part part>
void cross_entropy(const Stream& stream, const CrossEntropy& c) {
    const int64_t N = size(c.logits, 0);
    with_type(c.logits.dtype, [&](auto type) {
        parallel_for(stream, N, row_grain(size(c.logits, 1)), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) row_loss<part, typename decltype(type)::type>(c, n);
        });
    });
}

}  // namespace

void fill_cross_entropy(KernelTable& table) {
    table.cross_entropy = cross_entropy<Part::whole>;
    table.cross_entropy_partial = cross_entropy<Part::partial>;
    table.cross_entropy_finish = cross_entropy<Part::finish>;
}

}  // namespace tutti::kernels::TUTTI_ISA
