#include "tutti/simulate/prediction.h"

#include <cmath>

namespace tutti::simulate {

std::vector<std::pair<const char*, double>> kinds_of(const StepTime& t) {
    return {{"matrix products", t.products},
            {"attention", t.attention},
            {"elementwise", t.elementwise},
            {"recompute", t.recompute},
            {"optimizer", t.optimizer},
            {"exposed tp", t.tp},
            {"exposed cp", t.cp},
            {"exposed ep", t.ep},
            {"exposed dp", t.dp},
            {"pipeline bubble", t.bubble},
            {"exposed offload", t.offload},
            {"other", t.other}};
}

// Half-widths, as a logarithm, that hold 80 of 100 published runs of houses that took no part in a fit
// (docs/decisions/0038-forecast.md), for a source never seen.
double uncertainty(bool mixture, const hardware::Cluster& cluster) {
    constexpr double kNeverSeen = 1.4;
    if (cluster.generation != "ampere" && cluster.generation != "hopper" &&
        !cluster.generation.starts_with("blackwell"))
        return kNeverSeen * 0.25;
    if (mixture) return kNeverSeen * 0.18;
    return kNeverSeen * (cluster.generation == "hopper" ? 0.10 : cluster.generation == "ampere" ? 0.11 : 0.15);
}

Json describe(const Prediction& p) {
    const StepTime& t = p.time;
    Json memory = Json::object();
    for (int purpose = 0; purpose < kPurposes; ++purpose)
        memory[std::string(name_of(static_cast<Purpose>(purpose)))] = p.memory[static_cast<Purpose>(purpose)];
    return {{"step_time_s", p.seconds()},
            {"step_time_low_s", p.seconds() * p.low},
            {"step_time_high_s", p.seconds() * p.high},
            {"tokens_per_s", p.tokens_per_s()},
            {"tokens_per_s_per_rank", p.tokens_per_s() / p.ranks},
            {"mfu_causal", p.share_of_peak(p.model_causal)},
            {"mfu_full", p.share_of_peak(p.model_full)},
            {"hfu", p.share_of_peak(p.hardware)},
            {"mfu_of_precision_peak", p.share_of_peak(p.model_causal) * p.peak / p.precision_peak},
            {"peak_bytes", p.memory.total()},
            {"offloaded_bytes", std::round(p.offloaded)},
            {"memory", memory},
            {"time",
             {{"products", t.products},
              {"attention", t.attention},
              {"elementwise", t.elementwise},
              {"recompute", t.recompute},
              {"optimizer", t.optimizer},
              {"exposed_tp", t.tp},
              {"exposed_cp", t.cp},
              {"exposed_ep", t.ep},
              {"exposed_dp", t.dp},
              {"bubble", t.bubble},
              {"exposed_offload", t.offload},
              {"other", t.other}}}};
}

}  // namespace tutti::simulate
