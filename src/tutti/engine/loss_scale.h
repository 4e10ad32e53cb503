// engine/loss_scale.h: the loss scale S of mixed precision (Micikevicius et al. 2018, Mixed Precision Training). All
// gradients of a step are S times as large, so that those in f16 do not vanish below 2^-24; norm and update divide by
// S. S is a power of two: where no value overflows or underflows, every S gives the same bits.
#pragma once

#include <algorithm>

#include "tutti/spec/run_spec.h"

namespace tutti::engine {

// The law of Megatron-LM (megatron/core/optimizer/grad_scaler.py, DynamicGradScaler); with a hysteresis of 1 also that
// of torch.amp.GradScaler.
struct LossScale {
    double value = 1;        // S
    int64_t good = 0;        // steps since the last skip, or since S last doubled
    int64_t hysteresis = 1;  // skips until S is halved, refilled only when S doubles
    bool operator==(const LossScale&) const = default;
};

// Of the first step.
inline LossScale first_loss_scale(const spec::RunSpec& run) {
    const spec::PrecisionSpec& p = run.precision;
    return {.value = spec::fixed_loss_scale(run).value_or(p.loss_scale_initial), .hysteresis = p.loss_scale_hysteresis};
}

// Of the step after one with S = `now`; `skipped`: that one had gradients that were not finite.
inline LossScale next_loss_scale(const spec::RunSpec& run, LossScale now, bool skipped) {
    const spec::PrecisionSpec& p = run.precision;
    if (spec::fixed_loss_scale(run)) return now;
    if (skipped) {
        now.good = 0;
        if (--now.hysteresis <= 0) now.value = std::max(now.value / 2, p.loss_scale_least);
    } else if (++now.good >= p.loss_scale_interval) {
        now.good = 0;
        now.hysteresis = p.loss_scale_hysteresis;
        if (now.value < 0x1p127) now.value *= 2;  // f32 has no larger power
    }
    return now;
}

// Whether skipped steps will make S smaller, which may cure gradients that are not finite.
inline bool may_fall(const spec::RunSpec& run, const LossScale& now) {
    return !spec::fixed_loss_scale(run) && now.value > run.precision.loss_scale_least;
}

}  // namespace tutti::engine
