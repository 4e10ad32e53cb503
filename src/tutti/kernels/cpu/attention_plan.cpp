#include "tutti/kernels/cpu/attention_plan.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/ceil_div.h"

namespace tutti::kernels::attention {

Sizes sizes_of(const Shape& q, const Shape& v) {
    Sizes s{.B = q[0], .Tq = q[1], .H = q[2], .D = q[3], .Tk = v[1], .Hkv = v[2], .Dv = v[3]};
    s.group = s.Hkv == 0 ? 0 : s.H / s.Hkv;
    s.rows = s.Tq * s.group;
    s.blocks = ceil_div(s.rows, kRows);
    s.padded_D = round_up(s.D, 16);
    s.padded_Dv = round_up(s.Dv, 16);
    return s;
}

int64_t forward_slot(int64_t padded_D) {
    return (3 * kKeys + 2 * kForwardTogether * kRows) * padded_D + (kKeys + kChunk) * kRows;
}

BackwardPlan backward_plan(const Stream& stream, const Sizes& s) {
    const int64_t threads = stream.threads;
    BackwardPlan p{.heads = s.B * s.Hkv, .splits = 1, .keys = round_up(s.Tk, kKeys), .padded_D = s.padded_D};
    if (p.heads > 0 && p.heads < 4 * threads)
        p.splits = std::max<int64_t>(1, std::min(threads / std::gcd(p.heads, threads), s.blocks));
    p.sums = 2 * p.keys * p.padded_D;
    p.slot = (3 * p.keys + (5 * kBackwardTogether + 1) * kRows + kKeys) * p.padded_D + (3 * kKeys + 2 * kChunk) * kRows;
    p.workspace = threads * p.slot + (p.splits == 1 ? threads : p.heads * p.splits) * p.sums;
    return p;
}

int64_t workspace(const Stream& stream, const Shape& q, const Shape& k, bool backward) {
    const Sizes s = sizes_of(q, k);
    return backward ? backward_plan(stream, s).workspace : stream.threads * forward_slot(s.padded_D);
}

}  // namespace tutti::kernels::attention
