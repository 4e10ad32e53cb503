// simulate/prediction.cpp: the prediction for a job, and its uncertainty.
#include "tutti/simulate/prediction.h"

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::simulate {

namespace {

// Half-widths, as a logarithm, that hold 80 of 100 published runs of houses that took no part in a fit
// (docs/decisions/0038-forecast.md), for a source never seen.
double half_width(bool mixture, const hardware::Cluster& cluster) {
    constexpr double kNeverSeen = 1.4;
    if (cluster.generation != "ampere" && cluster.generation != "hopper" &&
        !cluster.generation.starts_with("blackwell"))
        return kNeverSeen * 0.25;
    if (mixture) return kNeverSeen * 0.18;
    return kNeverSeen * (cluster.generation == "hopper" ? 0.10 : cluster.generation == "ampere" ? 0.11 : 0.15);
}

}  // namespace

double uncertainty(const Job& job, const hardware::Cluster& cluster) { return half_width(job.mixture(), cluster); }

Prediction predict(const Job& job, const hardware::Cluster& cluster, const Physics& physics) {
    const std::string problem = layout_problem(job);
    check<UsageError>(problem.empty(), "this layout is impossible: ", problem);
    check<UsageError>(!job.offload.any() || cluster.host_bandwidth > 0, "[offload] on ", cluster.name,
                      ": its bandwidth to the host is not known; give [host] gbs in a cluster file with base = \"",
                      cluster.name, "\", or leave [offload] out");
    Prediction p;
    p.time = step_time(job, cluster, physics);
    p.memory = footprint(job);
    p.high = std::exp(uncertainty(job, cluster));
    p.low = 1 / p.high;
    p.tokens = job.global_batch * job.seq;
    p.ranks = job.ranks;
    const TokenFlops flops = token_flops(job);
    p.model_causal = flops.causal() * p.tokens;
    p.model_full = flops.full() * p.tokens;
    p.hardware = p.model_causal;
    if (job.recompute == Recompute::full)
        p.hardware += (flops.causal() / 3 - 2 * job.model.vocab * job.model.hidden) * p.tokens;
    const bool wide = job.precision == "fp32" || job.precision == "tf32";
    p.peak = cluster.peak(wide ? job.precision : cluster.has("bf16") ? "bf16" : "fp16");
    p.precision_peak = p.peak;
    return p;
}

Json describe(const Prediction& p) {
    const StepTime& t = p.time;
    return {{"step_time_s", p.seconds()},
            {"step_time_low_s", p.seconds() * p.low},
            {"step_time_high_s", p.seconds() * p.high},
            {"tokens_per_s", p.tokens_per_s()},
            {"tokens_per_s_per_rank", p.tokens_per_s() / p.ranks},
            {"mfu_causal", p.share_of_peak(p.model_causal)},
            {"mfu_full", p.share_of_peak(p.model_full)},
            {"hfu", p.share_of_peak(p.hardware)},
            {"mfu_of_precision_peak", p.share_of_peak(p.model_causal) * p.peak / p.precision_peak},
            {"peak_bytes", std::round(p.memory.total())},
            {"offloaded_bytes", std::round(p.memory.offloaded)},
            {"memory",
             {{"weights", std::round(p.memory.weights)},
              {"gradients", std::round(p.memory.gradients)},
              {"optimizer", std::round(p.memory.optimizer)},
              {"activations", std::round(p.memory.activations)},
              {"logits", std::round(p.memory.logits)},
              {"gathered", std::round(p.memory.gathered)},
              {"reserved", std::round(p.memory.reserved)}}},
            {"time",
             {{"products", t.products},
              {"attention", t.attention},
              {"elementwise", t.elementwise},
              {"recompute", t.recompute},
              {"optimizer", t.optimizer},
              {"exposed_tp", t.tp},
              {"exposed_cp", t.cp},
              {"exposed_ep", t.ep},
              {"exposed_pp", t.pp},
              {"exposed_dp", t.dp},
              {"bubble", t.bubble},
              {"exposed_offload", t.offload},
              {"other", t.other}}}};
}

}  // namespace tutti::simulate
