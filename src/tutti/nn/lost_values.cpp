#include "tutti/nn/lost_values.h"

#include "tutti/ops/ops.h"

namespace tutti::nn {

void LostValues::allocate(ops::Context& ctx) {
    lost_ = ops::empty(ctx, {2}, DType::i64, Purpose::optimizer);
    clear(ctx);
}

void LostValues::clear(ops::Context& ctx) {
    constexpr std::array<int64_t, 2> kNone = {};
    ctx.device.copy_in(lost_.view().data, kNone.data(), lost_.bytes());
    cast_ = 0;
}

void LostValues::begin_step(ops::Context& ctx) {
    clear(ctx);
    recording_ = true;
}

Tensor LostValues::of_cast(int64_t n) {
    if (!recording_) return {};
    cast_ += n;
    return lost_;
}

std::array<int64_t, 3> LostValues::counts(const ops::Context& ctx) const {
    if (!ctx.values->exist()) return {};
    const std::vector<int64_t> lost = lost_.to_host<int64_t>();
    return {lost[0], lost[1], cast_};
}

}  // namespace tutti::nn
