#include "tutti/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"

namespace tutti::optim {

double learning_rate(const spec::OptimizerSpec& o, int64_t total_steps, int64_t step) {
    check(step >= 1, "learning_rate: steps count from 1, got ", step);
    if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
    const auto fraction = [&](int64_t from) {
        const auto length = static_cast<double>(std::max<int64_t>(1, total_steps - from));
        return std::clamp(static_cast<double>(step - from) / length, 0.0, 1.0);
    };
    if (o.schedule == "constant") return o.lr;
    if (o.schedule == "linear") return o.lr + (o.min_lr - o.lr) * fraction(o.warmup_steps);
    if (o.schedule == "cosine")
        return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(M_PI * fraction(o.warmup_steps)));
    check<UsageError>(o.schedule == "wsd", "optimizer.schedule must be cosine, linear, constant or wsd, got \"",
                      o.schedule, "\"");
    const int64_t decay = o.decay_steps > 0 ? o.decay_steps : std::max<int64_t>(1, total_steps / 10);
    const int64_t start = std::max(o.warmup_steps, total_steps - decay);
    return step <= start ? o.lr : o.lr + (o.min_lr - o.lr) * fraction(start);
}

}  // namespace tutti::optim
