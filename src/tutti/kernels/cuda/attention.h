// kernels/cuda/attention.h: shared parts of the attention kernels: shapes, the mask, and the range of tiles that the
// mask leaves. attention_forward.cu and attention_backward.cu use tensor cores, attention_hopper_*.cu those of Hopper,
// attention_plain.cu takes f32 and odd shapes; attention.cu chooses. Letters as in kernels/reference/attention.cpp: S
// scores, P probabilities, O output.
#pragma once

#include "tutti/kernels/cuda/block_order.h"
#include "tutti/kernels/cuda/element.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

// Rows (b, t, h) of a view (B, T, H, D).
template <class T>
struct Heads {
    T* data = nullptr;
    int64_t batch = 0, row = 0, head = 0;  // strides

    Heads() = default;
    explicit Heads(const View& x) : data(x.as<T>()), batch(x.stride(0)), row(x.stride(1)), head(x.stride(2)) {}
    __device__ int64_t place(int64_t b, int64_t t, int64_t h) const { return b * batch + t * row + h * head; }
    __device__ T* at(int64_t b, int64_t t, int64_t h) const { return data + place(b, t, h); }
    // Whether rows can be read 16 bytes at a time.
    bool aligned() const {
        return is_aligned(data) && batch % kPack<T> == 0 && row % kPack<T> == 0 && head % kPack<T> == 0;
    }
};

// Rows of a result, f32, bf16 or f16; with `add` (f32), values are added to those in memory. The type is tested when a
// kernel stores, at its end, which costs neither registers nor spills beside kernels for bf16 alone; a second set of
// kernels for f32 would double the compiled code.
struct Result {
    Heads<float> rows;  // `data` points to values of `type`
    DType type = DType::f32;
    bool add = false;

    Result() = default;
    explicit Result(const View& x, bool add_ = false) : rows(x), type(x.dtype), add(add_) {}
    template <class T>
    __device__ T* as() const {
        return reinterpret_cast<T*>(rows.data);
    }
    __device__ void store(int64_t place, float x) const {
        if (type == DType::f32)
            rows.data[place] = add ? rows.data[place] + x : x;
        else if (type == DType::bf16)
            store_one(x, as<bf16>() + place);
        else
            store_one(x, as<f16>() + place);
    }
    // Stores two adjacent elements at an even place.
    __device__ void store_pair(int64_t place, float x, float y) const {
        if (type == DType::f32) {
            store(place, x);
            store(place + 1, y);
        } else {
            *reinterpret_cast<uint32_t*>(as<uint16_t>() + place) =
                type == DType::bf16 ? to_bf16_pair(x, y) : to_f16_pair(x, y);
        }
    }
};

// Keys [first, end); none where end <= first.
struct Keys {
    int first, end;
};

struct AttentionShape {
    int B, Tq, Tk, H, Hkv, D;
    float scale, cap, inverse_cap;  // cap 0: none; 1 / cap, since a division calls a function and its values spill
    bool causal;
    int64_t query_offset;  // relative to key_offset: key 0 has position 0
    int64_t key_offset, window;
    const int32_t* first_key;  // may be null
    int64_t first_key_batch, first_key_row;
    int64_t lse_batch, lse_head, lse_row;

    template <class Attention>
    explicit AttentionShape(const Attention& a)
        : B(static_cast<int>(a.q.shape[0])),
          Tq(static_cast<int>(a.q.shape[1])),
          Tk(static_cast<int>(a.k.shape[1])),
          H(static_cast<int>(a.q.shape[2])),
          Hkv(static_cast<int>(a.k.shape[2])),
          D(static_cast<int>(a.q.shape[3])),
          scale(a.scale),
          cap(a.cap),
          inverse_cap(a.cap > 0 ? 1 / a.cap : 0),
          causal(a.mask.causal),
          query_offset(a.mask.query_offset - a.mask.key_offset),
          key_offset(a.mask.key_offset),
          window(a.mask.window),
          first_key(a.mask.first_key.template as<const int32_t>()),
          first_key_batch(first_key == nullptr ? 0 : a.mask.first_key.stride(0)),
          first_key_row(first_key == nullptr ? 0 : a.mask.first_key.stride(1)),
          lse_batch(a.lse.stride(0)),
          lse_head(a.lse.stride(1)),
          lse_row(a.lse.stride(2)) {
        check(D <= 256, "attention on a GPU has head dims up to 256, got ", D);
        check(a.v.shape[3] == D, "attention on a GPU has values as wide as keys, got ", a.v.shape[3], " and ", D);
    }

    __device__ int group() const { return H / Hkv; }
    // Scores are capped(q.k) times softmax_scale(): the cap contains the scale.
    __device__ float softmax_scale() const { return cap > 0 ? 1 : scale; }
    __device__ float capped(float product) const {
        return cap > 0 ? cap * tanhf(product * scale * inverse_cap) : product;
    }
    // The factor of dS, from a capped score.
    __device__ float slope(float score) const {
        const float t = score * inverse_cap;
        return 1 - t * t;
    }
    __device__ int64_t lse_at(int b, int h, int i) const { return b * lse_batch + h * lse_head + i * lse_row; }

    // Keys visible to query i < Tq of batch entry b; neither bound decreases as i grows.
    __device__ Keys visible(int b, int i) const {
        const int64_t last = i + query_offset;
        int64_t first = window > 0 && last - window + 1 > 0 ? last - window + 1 : 0;
        int64_t end = causal && last + 1 < Tk ? last + 1 : Tk;
        if (first_key != nullptr) {
            const int64_t document = first_key[b * first_key_batch + i * first_key_row] - key_offset;
            if (document > first) first = document;
        }
        if (first > Tk) first = Tk;
        return {static_cast<int>(first), static_cast<int>(end > 0 ? end : 0)};
    }

    // The first query for which `passed` is true, Tq if there is none; `passed` is monotonic.
    template <class Passed>
    __device__ int first_query(Passed passed) const {
        int low = 0, high = Tq;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (passed(middle))
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

// Keys visible to queries [begin, end): no query sees a key outside of `any`, every query sees the keys of `all`.
struct Span {
    Keys any, all;
};
__device__ __forceinline__ Span span_of_queries(const AttentionShape& s, int b, int begin, int end) {
    const Keys front = s.visible(b, begin), back = s.visible(b, (end < s.Tq ? end : s.Tq) - 1);
    return {{front.first, back.end}, {back.first, front.end}};
}
// Queries [first, end): no other query sees a key of [begin, end).
__device__ __forceinline__ Keys queries_of_keys(const AttentionShape& s, int b, int begin, int end) {
    return {s.first_query([&](int i) { return s.visible(b, i).end > begin; }),
            s.first_query([&](int i) { return s.visible(b, i).first >= end; })};
}

// Each block owns `rows` queries and streams the keys and values of its head, 16 bits each; the last queries see the
// most keys.
inline BlockOrder order_of_queries(const AttentionShape& s, int rows) {
    return {s.B, s.H, ceil_div(s.Tq, rows), true, int64_t{4} * s.Tk * s.D / (s.H / s.Hkv)};
}
// Each block owns `rows` keys and streams the queries of its group; the first keys are seen by the most queries. At
// least eight heads are computed side by side: with fewer, too few blocks begin with long tiles. Blocks of a head
// stream the same queries at about the same time, so the cache needs to hold only the part of the queries in use.
inline BlockOrder order_of_keys(const AttentionShape& s, int rows) {
    const int64_t streamed = int64_t{4} * s.Tq * s.D * (s.H / s.Hkv), eighth = BlockOrder::kCacheBytes / 8;
    return {s.B, s.Hkv, ceil_div(s.Tk, rows), false, streamed < eighth ? streamed : eighth};
}

// Any shape and type, no tensor cores: attention_plain.cu.
void attention_forward_plain(const Stream& stream, const AttentionForward& a);
void attention_backward_plain(const Stream& stream, const AttentionBackward& a);
// bf16 or f16 whose rows can be read 16 bytes at a time, D a multiple of 8: attention_forward.cu,
// attention_backward.cu.
void attention_forward_tensor(const Stream& stream, const AttentionForward& a);
void attention_backward_tensor(const Stream& stream, const AttentionBackward& a);
// bf16 of these with D <= 128 and tensors that a tensor map can describe, on compute capability 9.0:
// attention_hopper_*.cu.
void attention_forward_hopper(const Stream& stream, const AttentionForward& a);
void attention_backward_hopper(const Stream& stream, const AttentionBackward& a);

}  // namespace tutti::kernels::cuda
