#include "tutti/kernels/cpu/delta_rule_plan.h"

namespace tutti::kernels::delta {

Plan plan_of(const Shape& key, const Shape& value, bool backward) {
    const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
    Plan p{.B = key[0], .T = key[1], .Hk = key[2], .Hv = value[2], .Dk = key[3], .Dv = value[3]};
    p.group = p.Hk == 0 ? 0 : p.Hv / p.Hk;
    p.chunks = (p.T + kChunk - 1) / kChunk;
    p.row_k = padded(p.Dk);
    p.row_v = padded(p.Dv);
    p.state = p.group * p.Dk * p.row_v;
    const int64_t forward = kChunk * (4 * p.row_k + 4 * p.row_v + 5 * kChunk + 7) + p.state;
    const int64_t more =
        kChunk * (3 * p.row_k + 4 * p.row_v + 4 * kChunk) + 2 * p.row_v * p.row_k + (p.chunks + 1) * p.state;
    p.slot = forward + (backward ? more : 0);
    return p;
}

int64_t workspace(const Stream& stream, const Shape& key, const Shape& value, bool backward) {
    return stream.threads * plan_of(key, value, backward).slot;
}

}  // namespace tutti::kernels::delta
