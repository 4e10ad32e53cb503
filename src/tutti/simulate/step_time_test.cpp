#include "tutti/simulate/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/models/flops.h"
#include "tutti/simulate/prediction.h"

namespace tutti::simulate {
namespace {

Job llama_8b(int ranks) {
    Job job;
    job.model = sizes_of(spec::preset("llama3-8b"));
    job.seq = 8192;
    job.global_batch = 16.0 * ranks;
    job.ranks = ranks;
    return job;
}
double seconds(const Job& job, const hardware::Cluster& cluster) { return step_time(job, cluster, {}).total(); }

TEST(Jobs, ParametersAndFlopsAreThoseOfTheSpec) {
    for (const char* name : {"llama3-8b", "gpt2-124m", "mixtral-8x7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b"}) {
        const spec::ModelSpec model = spec::preset(name);
        const Sizes sizes = sizes_of(model);
        const models::Model outline = models::outline(model);
        const auto counted = static_cast<double>(models::parameter_count(outline));
        EXPECT_NEAR(sizes.parameters() / counted, 1, 0.008) << name;  // norms, biases and positions are left out
        Job job;
        job.model = sizes;
        job.seq = 2048;
        const models::TokenFlops flops = models::model_flops(outline, 2048);
        EXPECT_NEAR(token_flops(job).causal() / flops.causal(), 1, 1e-3) << name;
        EXPECT_NEAR(token_flops(job).full() / flops.full(), 1, 1e-3) << name;
    }
}

TEST(Jobs, AnImpossibleLayoutIsExplained) {
    Job job = llama_8b(64);
    EXPECT_EQ(layout_problem(job), "");
    job.tp = 3;
    EXPECT_NE(layout_problem(job).find("does not divide 64 ranks"), std::string::npos);
    job.tp = 64;
    EXPECT_NE(layout_problem(job).find("does not divide 32 heads"), std::string::npos);
    job.tp = 1;
    job.global_batch = 32;
    EXPECT_NE(layout_problem(job).find("less than micro batch 1 times dp 64"), std::string::npos);
    EXPECT_THROW(predict(job, hardware::cluster_named("h100")), UsageError);
}

TEST(StepTime, NoStepBeatsThePeak) {
    for (const char* name : {"v100", "a100", "h100", "b200", "mi300x", "tpu-v5p"}) {
        const Prediction p = predict(llama_8b(8), hardware::cluster_named(name));
        EXPECT_LT(p.share_of_peak(p.model_causal), 0.9) << name;
        EXPECT_GT(p.share_of_peak(p.model_causal), 0.1) << name;
        EXPECT_LT(p.low, 1);
        EXPECT_GT(p.high, 1);
    }
}

// Properties that must not depend on the constants.
TEST(StepTime, MoreOfAResourceIsNeverSlower) {
    Job job = llama_8b(64);
    job.tp = 4;
    job.pp = 2;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    const double base = seconds(job, h100);
    for (double hardware::Cluster::*resource :
         {&hardware::Cluster::memory_bandwidth, &hardware::Cluster::link_bandwidth,
          &hardware::Cluster::network_bandwidth}) {
        hardware::Cluster more = h100, less = h100;
        more.*resource *= 2;
        less.*resource /= 2;
        EXPECT_LE(seconds(job, more), base);
        EXPECT_GE(seconds(job, less), base);
    }
    Job recomputed = job;
    recomputed.recompute = Recompute::full;
    EXPECT_GT(seconds(recomputed, h100), 1.2 * base);
    EXPECT_LT(seconds(recomputed, h100), 1.4 * base);
}

// Llama 3 8B under ZeRO-3 over 8 devices: 1/8 of 8.03 B values each, at 64 GB/s * 0.8.
TEST(StepTime, OffloadCostsWhatTheHostLinkDoesNotHide) {
    Job job = llama_8b(8);
    job.zero = 3;
    hardware::Cluster h100 = hardware::cluster_named("h100");
    const double owned = job.model.parameters() / 8, rate = 0.8 * h100.host_bandwidth;
    EXPECT_EQ(step_time(job, h100, {}).offload, 0);
    job.offload.optimizer = true;
    EXPECT_NEAR(step_time(job, h100, {}).offload, 24 * owned / rate, 1e-6);
    job.precision = "tf32";  // the weights are the masters and stay
    EXPECT_NEAR(step_time(job, h100, {}).offload, 16 * owned / rate, 1e-6);
    // 139 kB of a token and layer take longer than the forward of the layer; at ten times the rate they do not.
    job.precision = "bf16";
    job.offload = {false, false, true};
    EXPECT_GT(step_time(job, h100, {}).offload, 0);
    h100.host_bandwidth *= 10;
    EXPECT_EQ(step_time(job, h100, {}).offload, 0);
    // With a link that slow nothing hides it: two gathers of each of 16 microbatches, and the rounded weights.
    job.offload = {false, true, false};
    h100.host_bandwidth = 1e6;
    const double copies = (16 * 2 + 1) * 2 * owned / (0.8 * h100.host_bandwidth);
    EXPECT_NEAR(step_time(job, h100, {}).offload / copies, 1, 0.001);
    h100.host_bandwidth = 0;
    EXPECT_THROW(predict(job, h100), UsageError);
}

TEST(StepTime, TheBubbleFollowsItsFormula) {
    Job job = llama_8b(8);
    job.pp = 8;
    job.global_batch = 32;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    const StepTime plain = step_time(job, h100, {});
    job.virtual_stages = 4;
    const StepTime interleaved = step_time(job, h100, {});
    EXPECT_NEAR(interleaved.bubble / plain.bubble, 1.0 / 4, 0.01);
    job.virtual_stages = 1;
    job.global_batch = 64;
    EXPECT_NEAR(step_time(job, h100, {}).bubble, plain.bubble, 1e-9 * plain.bubble);  // of a step, however long
}

TEST(Footprint, StateIsTheTextbooks) {
    Job job = llama_8b(8);
    const double n = job.model.parameters();
    const auto state = [&](int zero) {
        job.zero = zero;
        const Footprint f = footprint(job);
        return (f.weights + f.gradients + f.optimizer) / n;
    };
    EXPECT_NEAR(state(0), 18, 1e-9);
    EXPECT_NEAR(state(1), 6 + 12.0 / 8, 1e-9);
    EXPECT_NEAR(state(2), 2 + 16.0 / 8, 1e-9);
    EXPECT_NEAR(state(3), 16.0 / 8, 1e-9);  // masters alone
    job.recompute = Recompute::full;
    job.zero = 1;
    const double recomputed = footprint(job).activations;
    job.recompute = Recompute::none;
    EXPECT_LT(recomputed, 0.15 * footprint(job).activations);
    job.pp = 4;
    job.global_batch = 64;
    EXPECT_NEAR(footprint(job).activations / job.model.layers, footprint(llama_8b(8)).activations / 32,
                0.1 * footprint(job).activations / 32);
}

TEST(Jobs, ImbalanceIsOfTheFullestRank) {
    const std::vector<double> loads = {1, 2, 5, 0, 3, 1, 3, 1};  // 16 in all
    EXPECT_EQ(imbalance_of({}, 4), 0);
    EXPECT_DOUBLE_EQ(imbalance_of(loads, 1), 1);
    EXPECT_DOUBLE_EQ(imbalance_of(loads, 2), 1);
    EXPECT_DOUBLE_EQ(imbalance_of(loads, 4), 5.0 / 4);
    EXPECT_DOUBLE_EQ(imbalance_of(loads, 8), 5.0 / 2);
    EXPECT_EQ(fullest_rank(loads, 4), 1);
    EXPECT_EQ(fullest_rank(loads, 8), 2);
}

TEST(StepTime, FullerExpertsTakeTimeAndMemory) {
    Job job;
    job.model = sizes_of(spec::preset("mixtral-8x7b"));
    job.seq = 4096;
    job.global_batch = 64;
    job.ranks = 64;
    job.ep = 8;
    job.imbalance = 1;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    const StepTime even = step_time(job, h100, {});
    const double bytes = footprint(job).activations;
    job.imbalance = 2;
    const StepTime uneven = step_time(job, h100, {});
    // A layer's products: experts have 2 x 176 M parameters for a token, attention 42 M.
    EXPECT_NEAR(uneven.products / even.products, (2 * 352 + 42) / (352 + 42.0), 0.1);
    EXPECT_NEAR(uneven.ep / even.ep, 2, 0.1);  // latency stays
    EXPECT_GT(footprint(job).activations, 1.5 * bytes);
    job.token_drop = true;  // equal, padded loads
    EXPECT_LT(step_time(job, h100, {}).products, 1.05 * even.products);
}

// Sent bytes of a layer and microbatch of llama3-8b over cp 8, counted by `tutti rehearse`, in units of 7/8 of all keys
// and values, 4 KiB a token: four around the ring, four gathered, five quarters of queries, keys, values and outputs
// when heads are exchanged. Few microseconds of latency beside.
TEST(StepTime, ContextParallelMethodsCostWhatTheySend) {
    Job job = llama_8b(8);
    job.cp = 8;
    job.seq = 1 << 20;
    job.global_batch = 1;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    Physics bare;
    bare.link = 1;
    const double unit = 32 * 7.0 / 8 * 4096 * job.seq / h100.link_bandwidth;
    const auto exposed = [&](Context method) {
        job.cp_method = method;
        return step_time(job, h100, bare).cp;
    };
    constexpr double kExchange = 0.8;  // the rate of an all-to-all over that of a ring
    EXPECT_NEAR(exposed(Context::all_gather) / unit, 4, 0.02);
    EXPECT_NEAR(exposed(Context::ulysses) / unit, 1.25 / kExchange, 0.02);
    // Pairs exchange half of queries, keys, values and outputs; then four of them pass on 3/4 of half of the heads.
    job.cp_ulysses = 2;
    EXPECT_NEAR(exposed(Context::all_gather) / unit, 4 * (3.0 / 4) / 2 / (7.0 / 8) + 1.25 / kExchange / 2 / (7.0 / 8),
                0.02);
    EXPECT_LT(exposed(Context::ring), exposed(Context::all_gather));
    job.cp_ulysses = 1;
    // A ring hides behind attention, a gather does not; exchanging heads moves the least.
    job.cp_method = Context::ring;
    const double hidden = seconds(job, h100);
    job.cp_method = Context::all_gather;
    EXPECT_LT(hidden, seconds(job, h100));
}

}  // namespace
}  // namespace tutti::simulate
