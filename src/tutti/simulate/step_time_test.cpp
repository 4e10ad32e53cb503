#include "tutti/simulate/step_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/plan/flops.h"
#include "tutti/simulate/fit.h"
#include "tutti/simulate/prediction.h"
#include "tutti/simulate/published.h"

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
        const auto counted = static_cast<double>(spec::parameter_count(model));
        EXPECT_NEAR(sizes.parameters() / counted, 1, 0.008) << name;  // norms, biases and positions are left out
        Job job;
        job.model = sizes;
        job.seq = 2048;
        const plan::TokenFlops flops = plan::model_flops(model, 2048);
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

// What must not depend on the constants.
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

TEST(Fit, FindsTheConstantsThatMadeTheTimes) {
    Constants truth;
    truth.gemm_hopper *= 1.12;
    truth.flash_hopper *= 0.85;
    std::vector<PublishedRun> runs;
    for (const int tp : {1, 2, 4, 8}) {
        for (const double seq : {2048.0, 8192.0, 32768.0}) {
            PublishedRun run;
            run.family = "made up";
            run.job = llama_8b(32);
            run.job.stack = Stack::megatron;
            run.job.year = 2025;
            run.job.tp = tp;
            run.job.seq = seq;
            run.cluster = hardware::cluster_named("h100");
            run.seconds = step_time(run.job, run.cluster, truth).total();
            runs.push_back(run);
        }
    }
    const Constants found = fit(runs, {});
    EXPECT_NEAR(found.gemm_hopper / truth.gemm_hopper, 1, 0.06);
    EXPECT_NEAR(found.flash_hopper / truth.flash_hopper, 1, 0.06);
    const std::string path = testing::TempDir() + "site.json";
    std::ofstream(path) << site_of(found).dump();
    EXPECT_EQ(read_site(path).gemm_hopper, found.gemm_hopper);
    EXPECT_EQ(read_site(path).flash_hopper, found.flash_hopper);
    std::ofstream(path) << R"({"constants": {"gemm_hoper": 0.5}})";
    EXPECT_THROW(read_site(path), DataError);
    std::ofstream(path) << R"({"constants": {"gemm_hopper": 1.5}})";
    EXPECT_THROW(read_site(path), DataError);
    for (const PublishedRun& run : runs)
        EXPECT_NEAR(step_time(run.job, run.cluster, found).total() / run.seconds, 1, 0.03);
}

TEST(Published, ARowSaysMuchAndItsSoftwareTheRest) {
    const std::vector<PublishedRun> runs = read_published(R"({"rows": [
        {"id": "a", "family": "f", "model": "Llama-3-8B", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8,
         "vocab": 128256, "mlp": "swiglu", "seq_len": 8192, "gpu": "H100", "num_gpus": 16, "gpus_per_node": 8, "tp": 2,
         "micro_batch": 1, "global_batch": 32, "precision": "bf16", "software": "NeMo 25.02", "zero_stage": 1,
         "network": "1600 Gb/s RoCE per node", "iter_time_s": 2.5, "memory_gib": 40, "pp": null},
        {"gpu": "H101"}, {"gpu": "A100"},
        {"gpu": "A100", "layers": 4, "hidden": 1024, "num_gpus": 6, "tp": 4}]})",
                                                          "rows.json");
    ASSERT_EQ(runs.size(), 4u);
    const PublishedRun& run = runs[0];
    EXPECT_EQ(run.problem, "");
    EXPECT_EQ(run.job.stack, Stack::megatron);
    EXPECT_NEAR(run.job.year, 2025 + 1.0 / 12, 1e-9);
    EXPECT_TRUE(run.job.tp_overlap);
    EXPECT_EQ(run.job.attention, Attention::flash);
    EXPECT_DOUBLE_EQ(run.cluster.network_bandwidth, 25e9);
    EXPECT_EQ(run.job.dp(), 8);
    EXPECT_DOUBLE_EQ(run.seconds, 2.5);
    EXPECT_DOUBLE_EQ(run.memory_bytes, 40.0 * (1 << 30));
    EXPECT_NE(runs[1].problem.find("h100"), std::string::npos);
    EXPECT_NE(runs[2].problem.find("layers and hidden must be given"), std::string::npos);
    EXPECT_NE(runs[3].problem.find("does not divide 6 ranks"), std::string::npos);
    EXPECT_THROW(read_published("[1]", "x"), DataError);
    EXPECT_THROW(read_published("{", "x"), DataError);
}

}  // namespace
}  // namespace tutti::simulate
