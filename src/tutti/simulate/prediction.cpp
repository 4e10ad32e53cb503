// simulate/prediction.cpp: the prediction for a job, and its uncertainty.
#include "tutti/simulate/prediction.h"

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::simulate {

double uncertainty(const Job& job, const hardware::Cluster& cluster) {
    const bool calibrated = cluster.vendor == "NVIDIA" && cluster.generation != "volta";
    if (job.stack == Stack::nanotron) return 0.28;  // 8 of 10 rows of either model of its sweep: e^0.32, e^0.42
    if (job.mixture()) return 0.22;
    if (!calibrated) return 0.20;
    if (job.stack == Stack::megatron) return 0.085;
    return 0.13;
}

Prediction predict(const Job& job, const hardware::Cluster& cluster, const Constants& constants) {
    const std::string problem = layout_problem(job);
    check<UsageError>(problem.empty(), "this layout is impossible: ", problem);
    check<UsageError>(!job.offload.any() || cluster.host_bandwidth > 0, "[offload] on ", cluster.name,
                      ": its bandwidth to the host is not known; give [host] gbs in a cluster file with base = \"",
                      cluster.name, "\", or leave [offload] out");
    Prediction p;
    p.time = step_time(job, cluster, constants);
    p.memory = footprint(job);
    constexpr double kEightyPercent = 1.2816;  // of a normal distribution, in standard deviations on either side
    p.high = std::exp(kEightyPercent * uncertainty(job, cluster));
    p.low = 1 / p.high;
    p.tokens = job.global_batch * job.seq;
    p.ranks = job.ranks;
    const TokenFlops flops = token_flops(job);
    p.model_causal = flops.causal() * p.tokens;
    p.model_full = flops.full() * p.tokens;
    p.hardware = p.model_causal;
    if (job.recompute == Recompute::full)
        p.hardware += (flops.causal() / 3 - 2 * job.model.vocab * job.model.hidden) * p.tokens;
    else if (job.recompute == Recompute::selective && job.attention == Attention::unfused)
        p.hardware += flops.full_attention / 6 * p.tokens;
    const bool wide = job.precision == "fp32" || job.precision == "tf32";
    p.peak = cluster.peak(wide ? job.precision : cluster.has("bf16") ? "bf16" : "fp16");
    p.precision_peak = job.precision == "nvfp4"                         ? cluster.peak("fp4")
                       : job.precision.find("fp8") != std::string::npos ? cluster.peak("fp8")
                                                                        : p.peak;
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
              {"host", t.host},
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
