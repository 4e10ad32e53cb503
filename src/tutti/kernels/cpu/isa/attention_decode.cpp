// kernels/cpu/isa/attention_decode.cpp: attention of a few query rows (one new token against the keys before it). K and
// V are read once, in place; memory bandwidth is the limit.
#include "tutti/kernels/cpu/isa/attention_tiles.h"

namespace tutti::kernels::TUTTI_ISA {

namespace {

constexpr int64_t kKeys = 128;  // of a piece: their scores are exponentiated together
constexpr float kInfinity = __builtin_inff();

// o += sum_j p_j v_j, four vectors of o at a time so that they stay in registers.
template <class T>
void add_values(const T* v, int64_t stride, const float* p, int64_t keys, int64_t D, float* o) {
    int64_t d = 0;
    for (; d + 4 * kLanes <= D; d += 4 * kLanes) {
        Vec sum[4];
        for (int64_t k = 0; k < 4; ++k) sum[k] = load(o + d + k * kLanes, Full{});
        for (int64_t j = 0; j < keys; ++j)
            for (int64_t k = 0; k < 4; ++k)
                sum[k] = fma(broadcast(p[j]), load(v + j * stride + d + k * kLanes, Full{}), sum[k]);
        for (int64_t k = 0; k < 4; ++k) store(sum[k], o + d + k * kLanes, Full{});
    }
    for_vectors(d, D, [&](int64_t i, auto part) {
        Vec sum = load(o + i, part);
        for (int64_t j = 0; j < keys; ++j) sum = fma(broadcast(p[j]), load(v + j * stride + i, part), sum);
        store(sum, o + i, part);
    });
}

// Query i of head h in batch entry b; o (Dv) is memory for the sums.
template <class T>
void attend_row(const AttentionForward& a, const Sizes& s, int64_t b, int64_t i, int64_t h, float* o) {
    const int64_t kv_head = h / s.group;
    const Keys visible = visible_keys(a.mask, s.Tk, b, i);
    const T* q = row_of<const T>(a.q, b, i, h);
    float maximum = -kInfinity, sum = 0;
    __builtin_memset(o, 0, static_cast<size_t>(s.Dv) * sizeof(float));
    for (int64_t first = visible.first; first < visible.end; first += kKeys) {
        const int64_t keys = smaller(kKeys, visible.end - first);
        float p[kKeys];
        float before = maximum;
        for (int64_t j = 0; j < keys; ++j) {
            const T* k = row_of<const T>(a.k, b, first + j, kv_head);
            p[j] = a.scale * row_sum(s.D, [&](int64_t d, auto part) { return load(q + d, part) * load(k + d, part); });
        }
        if (a.cap > 0)
            for_vectors(0, keys, [&](int64_t j, auto part) {
                store(broadcast(a.cap) * tanh(load(p + j, part) * broadcast(1 / a.cap)), p + j, part);
            });
        for (int64_t j = 0; j < keys; ++j)
            if (p[j] > maximum) maximum = p[j];
        // As in attention.cpp: m' = max(m, max_j S_j), O and sum shrink by exp(m - m'), and -infinity is kept out of
        // m'.
        const float safe = maximum > -1e38f ? maximum : -1e38f;
        sum = row_sum(keys,
                      [&](int64_t j, auto part) {
                          const Vec e = exp(load(p + j, part) - broadcast(safe));
                          store(e, p + j, part);
                          return e;
                      }) +
              sum * reduce_max(exp(broadcast(before - safe)));
        if (first > visible.first && before != maximum) {
            const Vec decay = exp(broadcast(before - safe));
            for_vectors(0, s.Dv, [&](int64_t d, auto part) { store(load(o + d, part) * decay, o + d, part); });
        }
        add_values(row_of<const T>(a.v, b, first, kv_head), a.v.strides[1], p, keys, s.Dv, o);
    }
    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    with_type(a.o.dtype, [&](auto type) {
        auto* y = row_of<typename decltype(type)::type>(a.o, b, i, h);
        for_vectors(0, s.Dv, [&](int64_t d, auto part) { store(load(o + d, part) * broadcast(inverse), y + d, part); });
    });
    a.lse.as<float>()[b * a.lse.strides[0] + h * a.lse.strides[1] + i * a.lse.strides[2]] =
        sum == 0 ? -kInfinity : maximum + __builtin_logf(sum);
}

}  // namespace

void attend_few_rows(const Stream& stream, const AttentionForward& a) {
    const Sizes s = sizes_of(a.q.shape, a.v.shape);
    tasks_in_slots(stream, s.B * s.H * s.Tq, [&](int64_t task, int64_t slot) {
        float* o = a.workspace.as<float>() + slot * round_up(s.Dv, 16);
        with_type(a.q.dtype, [&](auto type) {
            attend_row<typename decltype(type)::type>(a, s, task / (s.H * s.Tq), task % s.Tq, task / s.Tq % s.H, o);
        });
    });
}

}  // namespace tutti::kernels::TUTTI_ISA
