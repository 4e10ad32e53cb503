#include "tutti/spec/learning_rate.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::spec {

int64_t decay_steps(const OptimizerSpec& o, int64_t steps) {
    return o.decay_steps > 0 ? o.decay_steps : std::max<int64_t>(1, steps / 10);
}

double learning_rate(const OptimizerSpec& o, int64_t steps, int64_t step, double from) {
    check(step >= 1, "learning_rate: steps count from 1, got ", step);
    if (step <= o.warmup_steps)
        return from + (o.lr - from) * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
    const auto fraction = [&](int64_t begin) {
        const auto length = static_cast<double>(std::max<int64_t>(1, steps - begin));
        return std::clamp(static_cast<double>(step - begin) / length, 0.0, 1.0);
    };
    if (o.schedule == "constant") return o.lr;
    if (o.schedule == "linear") return o.lr + (o.min_lr - o.lr) * fraction(o.warmup_steps);
    if (o.schedule == "cosine")
        return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(M_PI * fraction(o.warmup_steps)));
    check(o.schedule == "wsd", "learning_rate: there is no schedule \"", o.schedule, "\"");
    const int64_t start = std::max(o.warmup_steps, steps - decay_steps(o, steps));
    return step <= start ? o.lr : o.lr + (o.min_lr - o.lr) * fraction(start);
}

double learning_rate(const RunSpec& run, int64_t step) {
    const StagePlace& p = run.place;
    const int64_t end = p.course_end > 0 ? p.course_end : run.train.steps;
    return learning_rate(run.optimizer, end - p.course_begin, step - p.course_begin, p.course_from);
}

}  // namespace tutti::spec
