#include "tutti/kernels/cpu/delta_rule_plan.h"

#include "tutti/base/ceil_div.h"

namespace tutti::kernels::delta {

namespace {

// Few keys and many values are usual in Mamba-2, one key head for 128 of values: tasks take some of them, at least
// kFewest, since each makes the products of the keys again, and in at most kMostParts parts, since the backward holds
// the gradients of the keys for each.
constexpr int64_t kFewest = 4, kMostParts = 16;

int64_t parts_of(int64_t heads) {
    for (int64_t parts = kMostParts; parts > 1; --parts)
        if (heads % parts == 0 && heads / parts >= kFewest) return parts;
    return 1;
}

}  // namespace

Plan plan_of(const Shape& key, const Shape& value, bool corrects, bool backward) {
    const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
    Plan p{.B = key[0],
           .T = key[1],
           .Hk = key[2],
           .Hv = value[2],
           .Dk = key[3],
           .Dv = value[3],
           .corrects = corrects,
           .heads = key[2] == 0 ? 0 : value[2] / key[2]};
    p.parts = corrects ? 1 : parts_of(p.heads);
    p.group = p.heads / p.parts;
    p.chunks = ceil_div(p.T, kChunk);
    p.row_k = padded(p.Dk);
    p.row_v = padded(p.Dv);
    p.state = p.group * p.Dk * p.row_v;
    const int64_t forward = kChunk * (4 * p.row_k + 4 * p.row_v + 5 * kChunk + 7) + p.state;
    const int64_t more =
        kChunk * (3 * p.row_k + 4 * p.row_v + 4 * kChunk) + 2 * p.row_v * p.row_k + (p.chunks + 1) * p.state;
    p.slot = forward + (backward ? more : 0);
    p.partials = backward && p.parts > 1 ? p.B * p.Hk * p.parts * p.T * 2 * p.row_k : 0;
    return p;
}

int64_t workspace(const Stream& stream, const Shape& key, const Shape& value, bool corrects, bool backward) {
    const Plan p = plan_of(key, value, corrects, backward);
    return stream.threads * p.slot + p.partials;
}

}  // namespace tutti::kernels::delta
