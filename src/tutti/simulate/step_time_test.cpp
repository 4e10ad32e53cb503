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
    Job fp8 = job;
    fp8.precision = "fp8";
    EXPECT_LT(seconds(fp8, h100), base);
    Job recomputed = job;
    recomputed.recompute = Recompute::full;
    EXPECT_GT(seconds(recomputed, h100), 1.2 * base);
    EXPECT_LT(seconds(recomputed, h100), 1.4 * base);
}

// Llama 3 8B under ZeRO-3 over 8 devices: 1/8 of 8.03 B values each, at 64 GB/s * 0.8.
TEST(StepTime, OffloadCostsWhatTheHostLinkDoesNotHide) {
    Job job = llama_8b(8);
    job.stack = Stack::tutti;
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

TEST(StepTime, PublishedRunsThatWereNotFittedTo) {
    // Llama 3 405B on 8,192 and 16,384 H100 (Llama Team 2024, table 4): 430 and 400 TFLOP/s a GPU with full attention.
    Job job;
    job.model = {
        .layers = 126, .hidden = 16384, .ffn = 53248, .heads = 128, .kv_heads = 8, .head_dim = 128, .vocab = 128256};
    job.seq = 8192;
    job.global_batch = 2048;
    job.ranks = 8192;
    job.tp = 8;
    job.pp = 16;
    job.virtual_stages = 7;
    job.zero = 2;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    Prediction p = predict(job, h100);
    EXPECT_NEAR(p.model_full / p.seconds() / 8192 / 430e12, 1, 0.1);
    job.ranks = 16384;
    p = predict(job, h100);
    EXPECT_NEAR(p.model_full / p.seconds() / 16384 / 400e12, 1, 0.1);
}

TEST(Footprint, StateIsTheTextbooks) {
    Job job = llama_8b(8);
    job.stack = Stack::megatron;
    const double n = job.model.parameters();
    const auto state = [&](int zero) {
        job.zero = zero;
        const Footprint f = footprint(job);
        return (f.weights + f.gradients + f.optimizer) / n;
    };
    EXPECT_NEAR(state(0), 18, 1e-9);
    EXPECT_NEAR(state(1), 6 + 12.0 / 8, 1e-9);
    EXPECT_NEAR(state(2), 2 + 16.0 / 8, 1e-9);
    EXPECT_NEAR(state(3), 18.0 / 8, 1e-9);
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
    job.stack = Stack::tutti;
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
    job.stack = Stack::tutti;
    job.cp = 8;
    job.seq = 1 << 20;
    job.global_batch = 1;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    Constants bare;
    bare.cp_exposed = 1;  // nothing is hidden
    bare.ep_exposed = 1;
    bare.link_efficiency = 1;
    bare.link_half = 0;
    const double unit = 32 * 7.0 / 8 * 4096 * job.seq / h100.link_bandwidth;
    const auto exposed = [&](Context method) {
        job.cp_method = method;
        return step_time(job, h100, bare).cp;
    };
    EXPECT_NEAR(exposed(Context::ring) / unit, 4, 0.02);
    EXPECT_NEAR(exposed(Context::all_gather) / unit, 4, 0.02);
    EXPECT_NEAR(exposed(Context::ulysses) / unit, 1.25, 0.02);
    // Pairs exchange half of queries, keys, values and outputs; then four of them pass on 3/4 of half of the heads.
    job.cp_ulysses = 2;
    EXPECT_NEAR(exposed(Context::ring) / unit, 4 * (3.0 / 4) / 2 / (7.0 / 8) + 1.25 / 2 / (7.0 / 8), 0.02);
    EXPECT_DOUBLE_EQ(exposed(Context::ring), exposed(Context::all_gather));
    job.cp_ulysses = 1;
    // A ring hides behind attention, a gather does not; exchanging heads moves the least.
    job.cp_method = Context::ring;
    const double hidden = seconds(job, h100);
    job.cp_method = Context::all_gather;
    EXPECT_LT(hidden, seconds(job, h100));
}

// Llama 3.1 8B under FSDP on 8 H100, torchtitan's benchmarks: 82.4 GiB without compilation and 77.0 with it, December
// 2024; 83.9 with 32,768 tokens and whole layers recomputed; 48.0 on 32 H200 in June 2025, with a compiled loss.
TEST(Footprint, PyTorchRunsAreAsMeasured) {
    Job job = llama_8b(8);
    job.zero = 3;
    job.micro_batch = 2;
    job.gradient_bytes = 2;
    job.recompute = Recompute::selective;
    job.year = 2024.9;
    const auto gib = [&] { return footprint(job).total() / (1 << 30); };
    job.stack = Stack::eager;
    EXPECT_NEAR(gib() / 82.4, 1, 0.05);
    job.stack = Stack::compiled;
    EXPECT_NEAR(gib() / 77.0, 1, 0.05);
    job.year = 2025.5;
    job.ranks = 32;
    EXPECT_NEAR(gib() / 48.0, 1, 0.05);
    job = llama_8b(8);
    job.zero = 3;
    job.gradient_bytes = 2;
    job.stack = Stack::compiled;
    job.seq = 32768;
    job.recompute = Recompute::full;
    EXPECT_NEAR(gib() / 83.9, 1, 0.05);
}

// The 8.86B and 1.34B models of the nanotron sweep (Ultrascale Playbook, 2025).
Job nanotron(double layers, double hidden, double ffn, bool tied) {
    Job job;
    job.model = {.layers = layers,
                 .hidden = hidden,
                 .ffn = ffn,
                 .heads = 32,
                 .kv_heads = 32,
                 .head_dim = hidden / 32,
                 .vocab = 131072,
                 .tied = tied};
    job.seq = 4096;
    job.stack = Stack::nanotron;
    job.global_batch = 256;
    return job;
}
Job nanotron_9b() { return nanotron(32, 4096, 14336, false); }
Job nanotron_1b() { return nanotron(16, 2048, 8192, true); }

TEST(Nanotron, BlocksGoToStagesByCost) {
    // Worked out by hand: the head of the small model costs as much as four of its layers, that of the large one 2.2.
    const auto layers = [](const std::vector<NanotronStage>& stages) {
        std::vector<int> counts;
        for (const NanotronStage& stage : stages) counts.push_back(stage.layers);
        return counts;
    };
    std::vector<NanotronStage> stages = nanotron_stages(nanotron_9b().model, 4);
    EXPECT_EQ(layers(stages), (std::vector<int>{9, 9, 8, 6}));
    EXPECT_TRUE(stages[3].head);
    stages = nanotron_stages(nanotron_1b().model, 8);
    EXPECT_EQ(layers(stages), (std::vector<int>{3, 3, 2, 3, 2, 3, 0, 0}));
    EXPECT_TRUE(stages[6].head);
    EXPECT_EQ(stages[7].blocks, 2);  // the cast and the loss
    EXPECT_EQ(nanotron_stages(nanotron_1b().model, 16)[15].blocks, 0);
}

TEST(Nanotron, LayoutsThatItsEngineRefuses) {
    Job job = nanotron_1b();
    job.ranks = 64;
    job.pp = 16;
    EXPECT_NE(layout_problem(job).find("without a block"), std::string::npos);
    job.stack = Stack::megatron;
    EXPECT_EQ(layout_problem(job), "");
    job = nanotron_9b();
    job.ranks = 128;
    job.pp = 8;
    job.micro_batch = 2;
    job.global_batch = 192;  // six microbatches
    EXPECT_NE(layout_problem(job).find("at least pp - 1 = 7 microbatches, got 6"), std::string::npos);
    job.global_batch = 224;
    EXPECT_EQ(layout_problem(job), "");
}

TEST(Nanotron, MemoryIsAsMeasured) {
    struct Row {
        int ranks, tp, pp;
        double micro_batch;
        int zero;
        double gigabytes;
    };
    // Rows of the sweep, chosen over its axes; the median error of all rows is 6 %.
    for (const Row& row : {Row{64, 4, 1, 1, 0, 51.1}, Row{16, 4, 2, 1, 1, 23.7}, Row{8, 1, 8, 1, 0, 62.5},
                           Row{128, 8, 8, 8, 1, 45.7}, Row{256, 8, 4, 8, 1, 31.3}, Row{64, 1, 16, 1, 0, 62.6}}) {
        Job job = nanotron_9b();
        job.ranks = row.ranks;
        job.tp = row.tp;
        job.pp = row.pp;
        job.micro_batch = row.micro_batch;
        job.zero = row.zero;
        EXPECT_EQ(layout_problem(job), "");
        EXPECT_NEAR(footprint(job).total() / (row.gigabytes * 1e9), 1, 0.12)
            << row.ranks << " ranks, tp " << row.tp << ", pp " << row.pp;
    }
}

TEST(Nanotron, BucketsAndGatheredInputsAreHeld) {
    Job job = nanotron_9b();
    job.tp = 8;
    job.pp = 2;
    job.micro_batch = 8;
    job.zero = 0;
    job.ranks = 16;
    const Footprint alone = footprint(job);
    job.ranks = 32;  // two replicas: buckets of 2 bytes
    const Footprint two = footprint(job);
    EXPECT_NEAR(two.gradients / alone.gradients, 1.5, 1e-9);
    EXPECT_NEAR(two.activations, alone.activations, 1);
    // Over 256 ranks the host does not run ahead: 18 layers of the first stage, two microbatches.
    job.ranks = 256;
    EXPECT_NEAR(two.activations - footprint(job).activations, 18 * 2 * 2.0 * 8 * 4096 * 4096, 1);
}

TEST(Nanotron, ShardedStateCostsOneGatherOfTheWeights) {
    Job job = nanotron_9b();
    job.ranks = 256;
    job.tp = 8;
    job.micro_batch = 8;
    job.zero = 0;
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    const double whole = step_time(job, h100, {}).dp;
    job.zero = 1;
    const double sharded = step_time(job, h100, {}).dp;
    const double bytes = 2 * job.model.parameters() / 8;
    EXPECT_GT(sharded - whole, bytes / h100.network_bandwidth * 31 / 32);
    EXPECT_LT(sharded - whole, 3 * bytes / h100.network_bandwidth);
}

}  // namespace
}  // namespace tutti::simulate
