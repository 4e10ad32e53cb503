// kernels/cpu/isa/loops.h: loops of the kernels over arrays: sizes of views, dispatch on the dtype, whole vectors and
// tails, threads, sums along a row. A body is called as body(i, part), where part is `Full` or `Tail`.
#pragma once

#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/cpu/isa/simd.h"
#include "tutti/tensor/view.h"

namespace tutti::kernels::TUTTI_ISA {

// Elements below which waking another thread costs more than it saves (about 5 us against 1 us of work).
inline constexpr int64_t kGrain = 16384;

// Like the member functions of View and Shape, without their checks (cpu/isa.h says why).
inline int64_t size(const View& view, int i) { return view.shape.begin()[i < 0 ? i + view.shape.rank() : i]; }
inline int64_t numel(const View& view) {
    int64_t n = 1;
    for (int i = 0; i < view.shape.rank(); ++i) n *= size(view, i);
    return n;
}
inline int64_t columns(const View& view) { return view.shape.rank() == 0 ? 1 : size(view, -1); }
inline int64_t rows(const View& view) { return columns(view) == 0 ? 0 : numel(view) / columns(view); }
inline int64_t stride(const View& view, int i) { return (&view.strides.front())[i]; }
// Token numbers, positions, row numbers: i32 or i64.
inline int64_t index_at(const View& view, int64_t i) {
    return view.dtype == DType::i64 ? view.as<int64_t>()[i] : view.as<int32_t>()[i];
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
// The number of rows of `width` elements that is worth another thread.
inline int64_t row_grain(int64_t width) { return kGrain / larger(width, 1) + 1; }

template <class T>
struct Type {
    using type = T;
};
// body(Type<T>) for the types of activations.
template <class Body>
void with_type(DType dtype, Body&& body) {
    if (dtype == DType::bf16)
        body(Type<bf16>{});
    else if (dtype == DType::f16)
        body(Type<f16>{});
    else
        body(Type<float>{});
}

// x rounded to T and converted back.
template <class T>
[[gnu::always_inline]] inline Vec rounded(Vec x) {
    if constexpr (__is_same(T, bf16))
        return from_bf16(to_bf16(x));
    else if constexpr (__is_same(T, f16))
        return from_f16(to_f16(x));
    else
        return x;
}

// Rows that are apart in memory come in runs too short for the processor's prefetcher: they are fetched so many rows
// ahead of where they are read or written.
inline constexpr int64_t kRowsFetched = 8;

// Brings n elements from x on into the L1.
template <class T>
[[gnu::always_inline]] inline void fetch(const T* x, int64_t n) {
    for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(x + i);
}

// Fetches row(j + kRowsFetched), of `width` elements, where there are so many of `count` rows.
template <class Row>
[[gnu::always_inline]] inline void fetch_ahead(Row&& row, int64_t j, int64_t count, int64_t width) {
    if (j + kRowsFetched < count) fetch(row(j + kRowsFetched), width);
}

// Lanes of a vector that are in memory.
inline int64_t lanes_of(Full) { return kLanes; }
inline int64_t lanes_of(Tail tail) { return tail.count; }

template <class Body>
[[gnu::always_inline]] inline void for_vectors(int64_t begin, int64_t end, Body&& body) {
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) body(i, Full{});
    if (i < end) body(i, Tail{end - i});
}

// The same over [0, n), on the stream's threads.
template <class Body>
void for_vectors_parallel(const Stream& stream, int64_t n, Body&& body) {
    parallel_for(stream, n, kGrain, [&](int64_t begin, int64_t end) { for_vectors(begin, end, body); });
}

// body(task, slot) for all tasks, distributed one by one; one thread at a time uses a slot, so memory may belong to a
// slot.
template <class Body>
void tasks_in_slots(const Stream& stream, int64_t tasks, Body&& body) {
    int64_t next = 0;
    parallel_tasks(stream, smaller(stream.threads, tasks), [&](int64_t slot) {
        [[maybe_unused]] const TileScope tiles;
        for (int64_t task; (task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < tasks;) body(task, slot);
    });
}

// sum_i value(i) over [0, n), in f32, in an order that depends on n only.
template <class Value>
[[gnu::always_inline]] inline float row_sum(int64_t n, Value&& value) {
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int64_t k = 0; k < 4; ++k) sums[k] = sums[k] + value(i + k * kLanes, Full{});
    for (; i + kLanes <= n; i += kLanes) sums[0] = sums[0] + value(i, Full{});
    if (i < n) sums[1] = sums[1] + keep(value(i, Tail{n - i}), Tail{n - i});
    return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// K values side by side: of K rows, or of K sums over one row.
template <int K>
struct Vecs {
    Vec v[K];
};

template <int K>
[[gnu::always_inline]] inline Vecs<K> operator+(Vecs<K> a, const Vecs<K>& b) {
    for (int k = 0; k < K; ++k) a.v[k] = a.v[k] + b.v[k];
    return a;
}

template <int K>
struct Floats {
    float v[K];
};

// K sums at a time: their chains of additions and horizontal sums overlap. The order of each depends on n only.
template <int K, class Value>
[[gnu::always_inline]] inline Floats<K> row_sums(int64_t n, Value&& value) {
    Vecs<K> even, odd;
    for (int k = 0; k < K; ++k) even.v[k] = odd.v[k] = zero();
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        even = even + value(i, Full{});
        odd = odd + value(i + kLanes, Full{});
    }
    if (i + kLanes <= n) {
        even = even + value(i, Full{});
        i += kLanes;
    }
    if (i < n) {
        Vecs<K> last = value(i, Tail{n - i});
        for (int k = 0; k < K; ++k) last.v[k] = keep(last.v[k], Tail{n - i});
        odd = odd + last;
    }
    Floats<K> sums;
    for (int k = 0; k < K; ++k) sums.v[k] = reduce_add(even.v[k] + odd.v[k]);
    return sums;
}

// Calls body(Rows<R>, n) for rows [0, row_count), R = 2 at a time, then a single last one: the second row hides the
// latency at the end of the first row's sums.
template <int R>
struct Rows {};
template <class Body>
void for_rows_parallel(const Stream& stream, int64_t row_count, int64_t width, Body&& body) {
    parallel_for(stream, row_count, row_grain(width), [&](int64_t begin, int64_t end) {
        int64_t n = begin;
        for (; n + 2 <= end; n += 2) body(Rows<2>{}, n);
        if (n < end) body(Rows<1>{}, n);
    });
}

}  // namespace tutti::kernels::TUTTI_ISA
