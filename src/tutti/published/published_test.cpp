#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "tutti/base/error.h"
#include "tutti/published/calibration.h"
#include "tutti/published/memory.h"
#include "tutti/published/step.h"
#include "tutti/simulate/prediction.h"

namespace tutti::published {
namespace {

std::vector<PublishedRun> runs_of(const std::string& rows) {
    return read_runs(concat(R"({"rows": [)", rows, "]}"), "rows.json");
}
// Llama 3 8B with further fields.
PublishedRun llama_8b(const std::string& fields) {
    return runs_of(concat(R"({"model": "Llama-3-8B", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32,
        "kv_heads": 8, "vocab": 128256, "mlp": "swiglu", "seq_len": 8192, "gpu": "H100", )",
                          fields, "}"))
        .at(0);
}
double seconds(const PublishedRun& run) { return step_time(run, {}).total(); }

TEST(Rows, ARowSaysMuchAndItsSoftwareTheRest) {
    const PublishedRun run =
        llama_8b(R"("num_gpus": 16, "gpus_per_node": 8, "tp": 2, "micro_batch": 1, "global_batch": 32,
        "precision": "bf16", "software": "NeMo 25.02", "zero_stage": 1, "network": "1600 Gb/s RoCE per node",
        "iter_time_s": 2.5, "memory_gib": 40, "pp": null, "family": "dgxc-llama3-8b")");
    EXPECT_EQ(run.problem, "");
    EXPECT_EQ(run.software.name, "megatron-core");
    EXPECT_EQ(run.software.logit_bytes, 24);  // since 2025
    EXPECT_TRUE(run.software.overlaps_tp);
    EXPECT_DOUBLE_EQ(run.cluster.network_bandwidth, 25e9);
    EXPECT_EQ(run.dp, 8);
    EXPECT_EQ(run.house, "nemo and dgxc");
    EXPECT_DOUBLE_EQ(run.seconds, 2.5);
    EXPECT_DOUBLE_EQ(run.memory_bytes, 40.0 * (1 << 30));
    const std::vector<PublishedRun> others = runs_of(R"({"gpu": "H101"}, {"gpu": "A100"},
        {"gpu": "A100", "layers": 4, "hidden": 1024, "num_gpus": 2, "tp": 4})");
    EXPECT_NE(others[0].problem.find("h100"), std::string::npos);
    EXPECT_NE(others[1].problem.find("layers and hidden must be given"), std::string::npos);
    EXPECT_NE(others[2].problem.find("exceeds 2 ranks"), std::string::npos);
    EXPECT_THROW(read_runs("1", "x"), DataError);
    EXPECT_THROW(read_runs(R"({"devices": []})", "x"), DataError);
    EXPECT_THROW(read_runs("{", "x"), DataError);
    EXPECT_THROW(read_runs(R"({"rows": []})", "x"), DataError);
}

// A field of another type counted as missing: tp = "8" was predicted as tp = 1.
TEST(Rows, AWrongTypeIsTheProblemOfItsRow) {
    const std::vector<PublishedRun> runs = runs_of(R"(
        {"gpu": "H100", "layers": 32, "hidden": 4096, "tp": "8"},
        {"gpu": "H100", "layers": 32, "hidden": 4096, "offload": 1}, {"layers": 32, "hidden": 4096}, 3)");
    EXPECT_EQ(runs.at(0).problem, "tp: required a number, got \"8\"");
    EXPECT_EQ(runs.at(1).problem, "offload: required true or false, got 1");
    EXPECT_EQ(runs.at(2).problem, "gpu must be given, in the row or in meta");
    EXPECT_EQ(runs.at(3).problem, "gpu must be given, in the row or in meta");
}

// Sizes that no run has were predicted, as minutes or as no number at all.
TEST(Rows, SizesThatNoRunHasAreTheProblemOfTheirRow) {
    const auto problem = [](const char* field) {
        return runs_of(concat(R"({"gpu": "H100", "layers": 32, "hidden": 4096, "num_gpus": 64, )", field, "}"))
            .at(0)
            .problem;
    };
    EXPECT_EQ(problem(R"("tp": -2)"), "tp: required a number from 0 to 1e+15, got -2");
    EXPECT_EQ(problem(R"("tp": 1.5)"), "tp: required a whole number of at most 2^30, got 1.5");
    EXPECT_EQ(problem(R"("seq_len": 1e300)"), "seq_len: required a number from 0 to 1e+15, got 1e+300");
    EXPECT_EQ(problem(R"("tp": 1e9, "pp": 8)"), "tp * cp * pp = 8e+09 exceeds 64 ranks");
    EXPECT_EQ(problem(R"("tp": 8, "dp": 100)"), "tp * cp * pp * dp = 800 exceeds 64 ranks");
    EXPECT_EQ(problem(R"("tp": 8, "micro_batch": 4, "global_batch": 16)"),
              "micro_batch 4 on each of 8 replicas exceeds global_batch 16");
    EXPECT_EQ(problem(R"("tp": 8, "micro_batch": 4, "global_batch": 31)"), "");
    EXPECT_EQ(problem(R"("zero_stage": 7)"), "zero_stage: required 0 to 3, got 7");
    EXPECT_EQ(problem(R"("precision": "int8")"),
              "precision: required fp32, tf32, fp16, bf16, fp8 or fp4, with or without a recipe, got int8");
    for (const char* precision : {"bf16+fp8", "FP8-hybrid", "amp_bf16", "amp", "half", "float8", "NVFP4", "TF32"})
        EXPECT_EQ(problem(concat(R"("precision": ")", precision, "\"").c_str()), "") << precision;
    EXPECT_EQ(problem(R"("cost": [1, {"a": 2}])"), "");  // a field that nothing reads
    EXPECT_EQ(runs_of(R"({"gpu": "H100", "layers": 2, "hidden": 64, "tokens_per_sec_per_gpu": 0})").at(0).seconds, 0);
}

TEST(Rows, DevicesAreReadInEverySpelling) {
    for (const auto& [name, spellings] : std::map<std::string, std::vector<const char*>>{
             {"h100", {"H100-SXM5-80GB", "H100 SXM", "NVIDIA H100 80GB HBM3", "h100"}},
             {"a100", {"A100-SXM4-80GB", "A100 80GB", "A100-80 (one node), assumed"}},
             {"a100-40", {"A100-40G", "A100-SXM-40GB", "NVIDIA A100 40GB"}},
             {"a100-pcie", {"A100 PCIe 80GB"}},
             {"a800", {"A800-SXM4-80GB"}},
             {"a6000", {"NVIDIA RTX A6000", "A6000-48GB"}},
             {"h100-nvl", {"H100-NVL", "NVIDIA H100 NVL"}},
             {"h20", {"NVIDIA H20", "H20-96GB"}},
             {"gb200", {"GB200 NVL72"}},
             {"mi300x", {"AMD Instinct MI300X", "MI300X OAM"}},
             {"tpu-v5p", {"TPU v5p", "v5p", "TPUv5p"}},
             {"tpu-v6e", {"Trillium"}},
             {"rtx4090", {"GeForce RTX 4090"}},
             {"v100", {"Tesla V100-SXM2-32GB"}}})
        for (const char* gpu : spellings) {
            const PublishedRun run = runs_of(concat(R"({"layers": 2, "hidden": 1024, "gpu": ")", gpu, "\"}")).at(0);
            EXPECT_EQ(run.problem, "") << gpu;
            EXPECT_EQ(run.cluster.name, name) << gpu;
        }
    for (const char* gpu : {"H100-CNX", "A16", "Gaudi2", "H20-3e"})
        EXPECT_NE(runs_of(concat(R"({"layers": 2, "hidden": 1024, "gpu": ")", gpu, "\"}")).at(0).problem, "") << gpu;
}

// The shape of the sweep of the Ultrascale Playbook: sizes by model in meta, short names in rows.
TEST(Rows, WhatRowsShareStandsInMeta) {
    const PublishedRun run =
        read_runs(R"json({"meta": {"gpu": "H100 (8 a node)", "software": "nanotron 2025-02", "models":
        {
    "1.34B" : { "layers" : 16, "hidden" : 2048, "heads" : 32, "tied" : true }}}, "rows": [{"model": "1.34B", "nodes": 2,
        "mbs": 4, "gas": 16, "gbs": 1024, "dp": 16, "zero": 1, "tp": null, "memory_gb": 41.8}]
})json",
                  "sweep.json")
            .at(0);
    EXPECT_EQ(run.problem, "");
    EXPECT_EQ(run.ranks, 16);
    EXPECT_EQ(run.model.layers, 16);
    EXPECT_TRUE(run.model.tied);
    EXPECT_EQ(run.software.name, "nanotron");
    EXPECT_EQ(run.micro_batch, 4);
    EXPECT_EQ(run.microbatches(), 16);
    EXPECT_EQ(run.zero, 1);
    EXPECT_DOUBLE_EQ(run.memory_bytes, 41.8e9);
    EXPECT_EQ(read_runs(R"([{"gpu": "H100", "layers": 2, "hidden": 64}])", "list.json").at(0).problem, "");
}

TEST(Rows, WhatARowLeavesOutIsUsualForItsSoftware) {
    const auto row = [](const char* fields) {
        return runs_of(concat(R"({"layers": 24, "hidden": 2048, "num_gpus": 32, )", fields, "}")).at(0);
    };
    using simulate::Attention;
    // No kernel of FlashAttention before 2022, and none for V100.
    EXPECT_EQ(row(R"("gpu": "A100", "software": "Megatron-LM 2022")").software.attention, Attention::unfused);
    EXPECT_EQ(row(R"("gpu": "V100", "software": "Megatron-LM")").software.attention, Attention::unfused);
    EXPECT_EQ(row(R"("gpu": "A100", "software": "Megatron-LM 2022", "attn_impl": "flash1")").software.attention,
              Attention::flash1);
    EXPECT_EQ(row(R"("gpu": "A100", "software": "Megatron-LM 2023")").software.attention, Attention::newest);
    for (const char* name : {"FlashAttention-2", "flash_attn v2", "Flash Attention 2", "fa2", "flash2"})
        EXPECT_EQ(row(concat(R"("gpu": "H100", "attn_impl": ")", name, "\"").c_str()).software.attention,
                  Attention::flash2)
            << name;
    for (const char* software : {"PyTorch FSDP 2023", "torchtitan 2024", "llm-foundry/Composer FSDP", "Megatron-LM"})
        EXPECT_EQ(row(concat(R"("gpu": "H100", "attn_impl": "unfused", "software": ")", software, "\"").c_str())
                      .software.attention,
                  Attention::unfused)
            << software;
    EXPECT_EQ(row(R"("gpu": "H100", "attn_impl": "cuDNN")").software.attention, Attention::newest);
    EXPECT_EQ(row(R"json("gpu": "H100", "attn_impl": "flash2+/cuDNN (assumed from date)")json").software.attention,
              Attention::newest);
    for (const char* name : {"full", "block", "uniform, 1 layer", "yes", "activation checkpointing"})
        EXPECT_EQ(row(concat(R"("gpu": "H100", "recompute": ")", name, "\"").c_str()).recompute, Recompute::full)
            << name;
    EXPECT_EQ(row(R"("gpu": "H100", "recompute": true)").recompute, Recompute::full);
    EXPECT_EQ(row(R"("gpu": "H100", "recompute": "no activation checkpointing")").recompute, Recompute::none);
    EXPECT_EQ(row(R"("gpu": "H100", "recompute": "selective, all blocks")").recompute, Recompute::selective);
    EXPECT_EQ(row(R"json("gpu": "H100", "recompute": "unstated (recipe default)")json").recompute, Recompute::none);
    EXPECT_EQ(row(R"("gpu": "H100", "software": "PyTorch FSDP2")").zero, 3);
    EXPECT_EQ(row(R"("gpu": "H100", "software": "PyTorch FSDP2", "zero_stage": 0)").zero, 0);
    EXPECT_EQ(row(R"("gpu": "H100", "software": "DeepSpeed ZeRO-2")").zero, 2);
    EXPECT_EQ(row(R"("gpu": "H100", "software": "Megatron-LM")").zero, 0);
    EXPECT_FALSE(row(R"("gpu": "H100", "software": "Megatron-LM 2024")").software.one_copy);
    EXPECT_TRUE(row(R"("gpu": "H100", "software": "Megatron-LM 2024, DeepEP")").software.one_copy);
    EXPECT_EQ(row(R"("gpu": "H100")").model.mlp_matrices, 2);
    EXPECT_EQ(row(R"("gpu": "H100", "ffn": 5632)").model.mlp_matrices, 3);
    EXPECT_EQ(row(R"("gpu": "H100", "ffn": 5632, "mlp": "gelu")").model.mlp_matrices, 2);
    EXPECT_DOUBLE_EQ(row(R"("gpu": "V100", "gpus_per_node": 16)").cluster.network_bandwidth, 6.25e9);
}

// Copies that DeepEP sends of a token, counted token by token, for the gate of AutoModel's benchmarks and for one that
// spreads a token's experts.
TEST(Step, ExpertsThatFollowOneAnotherNeedFewerCopies) {
    std::mt19937 random(7);
    const auto from = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int draw = 0; draw < 60; ++draw) {
        const int nodes = from(0, 1) == 0 ? 1 : 4, ranks = 8 * nodes, each = from(1, 8), experts = ranks * each;
        const int parts = nodes > 1 ? nodes : ranks, part = experts / parts;
        const int top_k = from(1, std::min(16, experts - part + 1));
        const auto exposed = [&](const char* software) {
            const PublishedRun run =
                runs_of(concat(R"({"gpu": "H100", "layers": 4, "hidden": 4096, "ffn": 4096, "num_gpus": )", ranks,
                               R"(, "ep": )", ranks, R"(, "num_experts": )", experts, R"(, "top_k": )", top_k,
                               R"(, "micro_batch": 1, "global_batch": )", ranks, R"(, "software": ")", software, "\"}"))
                    .at(0);
            EXPECT_EQ(run.problem, "");
            return step_time(run, {}).ep - 4 * 4 * (nodes > 1 ? 1.5 : 1) * simulate::Physics().latency;
        };
        double copies = 0;
        for (int token = 0; token < experts; ++token) {
            std::set<int> holding;
            for (int i = 0; i < top_k; ++i) holding.insert((token * top_k + i) % experts / part);
            copies += static_cast<double>(holding.size()) / experts;
        }
        EXPECT_NEAR(exposed("NeMo AutoModel, DeepEP") / exposed("NeMo, DeepEP"), copies / std::min(top_k, parts), 1e-6)
            << ranks << " ranks, " << experts << " experts, top_k " << top_k;
    }
}

// A pipeline of four passes fills and drains three times more than one of one pass, one of two once more.
TEST(Step, ALocalBatchIsOnePassThroughThePipeline) {
    const auto bubble = [](const char* field) {
        return step_time(llama_8b(concat(R"("num_gpus": 8, "pp": 8, "micro_batch": 1, "global_batch": 64)", field)), {})
            .bubble;
    };
    EXPECT_DOUBLE_EQ(bubble(R"(, "local_batch": 64)"), bubble(""));
    EXPECT_NEAR((bubble(R"(, "local_batch": 16)") - bubble("")) / (bubble(R"(, "local_batch": 32)") - bubble("")), 3,
                1e-9);
}

TEST(Rows, NetworksAreReadInEverySpelling) {
    const auto rate = [](const char* network) {
        return llama_8b(concat(R"("num_gpus": 8, "network": ")", network, "\"")).cluster.network_bandwidth / 1e9;
    };
    EXPECT_DOUBLE_EQ(rate("8 x 400 Gb/s InfiniBand"), 50);
    EXPECT_DOUBLE_EQ(rate("4x200Gb/s"), 12.5);
    EXPECT_DOUBLE_EQ(rate("3200 Gb/s (assumed)"), 50);
    EXPECT_DOUBLE_EQ(rate("400 Gb/s RDMA per GPU"), 50);
    EXPECT_DOUBLE_EQ(rate("8 x 200 Gbps HDR"), 25);
    EXPECT_DOUBLE_EQ(rate("4 x 25 GB/s"), 12.5);
    EXPECT_DOUBLE_EQ(rate("unknown"), 50);  // the catalog's
}

// Parameters of Llama 3 8B: 8.03 B, of which the embedding takes part in no product; FLOPs of section 4.1 of the paper.
TEST(Models, FlopsAreThoseOfThePapers) {
    const PublishedRun llama = llama_8b(R"("num_gpus": 8)");
    EXPECT_NEAR(llama.model.product_flops() / (6 * (8.03e9 - 128256.0 * 4096)), 1, 0.002);
    EXPECT_NEAR(llama.model.attention_flops(8192), 12.0 * 32 * 8192 * 4096, 1);
    // DeepSeek-V3: 37 B active parameters, the embedding among them.
    const PublishedRun deepseek =
        runs_of(R"({"model": "DeepSeek-V3", "layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128,
        "num_experts": 256, "top_k": 8, "moe_ffn": 2048, "vocab": 129280, "gpu": "H800", "num_gpus": 2048})")
            .at(0);
    EXPECT_NEAR(deepseek.model.product_flops() / 6, 37e9 - 129280.0 * 7168, 1e9);
}

TEST(Step, NoStepBeatsThePeak) {
    for (const char* gpu : {"V100", "A100", "H100", "B200", "MI300X", "TPU-v5p"}) {
        const PublishedRun run =
            runs_of(concat(R"({"layers": 32, "hidden": 4096, "ffn": 14336, "mlp": "swiglu", "seq_len": 8192,
            "num_gpus": 8, "global_batch": 128, "micro_batch": 1, "gpu": ")",
                           gpu, "\"}"))
                .at(0);
        ASSERT_EQ(run.problem, "") << gpu;
        const double peak = 8 * run.cluster.peak(run.cluster.sixteen_bits());
        const double share = run.tokens() * run.model.product_flops() / seconds(run) / peak;
        EXPECT_LT(share, 0.87) << gpu;
        EXPECT_GT(share, 0.1) << gpu;
    }
}

// Properties that must not depend on the constants.
TEST(Step, MoreOfAResourceIsNeverSlower) {
    const PublishedRun base = llama_8b(R"("num_gpus": 64, "tp": 4, "pp": 2, "micro_batch": 1, "global_batch": 256,
        "software": "Megatron-LM core")");
    for (double hardware::Cluster::*resource :
         {&hardware::Cluster::memory_bandwidth, &hardware::Cluster::link_bandwidth,
          &hardware::Cluster::network_bandwidth}) {
        PublishedRun more = base, less = base;
        more.cluster.*resource *= 2;
        less.cluster.*resource /= 2;
        EXPECT_LE(seconds(more), seconds(base));
        EXPECT_GE(seconds(less), seconds(base));
    }
    PublishedRun fp8 = base, recomputed = base, interleaved = base;
    fp8.precision = "fp8";
    EXPECT_LT(seconds(fp8), seconds(base));
    recomputed.recompute = Recompute::full;
    EXPECT_GT(seconds(recomputed), 1.2 * seconds(base));
    EXPECT_LT(seconds(recomputed), 1.45 * seconds(base));
    interleaved.virtual_stages = 4;
    EXPECT_NEAR(step_time(interleaved, {}).bubble / step_time(base, {}).bubble, 1.0 / 4, 0.25);
    EXPECT_LT(seconds(interleaved), seconds(base));
    for (const PublishedRun& run : {base, fp8, recomputed}) {
        double sum = 0;
        for (const auto& [name, part] : kinds_of(step_time(run, {}))) sum += part;
        EXPECT_NEAR(sum, seconds(run), 1e-12);
    }
}

// What programs of 2020 to 2022 do besides: by hand, of a GPT with 12 h^2 values a layer on one stage or two.
TEST(Step, OlderProgramsAddGradientsAndWait) {
    const auto gpt = [](const char* fields) {
        return runs_of(concat(R"({"layers": 10, "hidden": 8192, "heads": 64, "mlp": "gelu", "gpu": "A100",
            "precision": "fp16", "micro_batch": 1, "global_batch": 64, "recompute": "full",
            "attn_impl": "unfused", )",
                              fields, "}"))
            .at(0);
    };
    const simulate::Physics physics;
    const auto more = [&](const PublishedRun& run, auto change) {
        PublishedRun changed = run;
        change(changed.software);
        return seconds(changed) - seconds(run);
    };
    PublishedRun run = gpt(R"("num_gpus": 2, "dp": 2, "software": "Megatron-LM 2021")");
    EXPECT_EQ(run.software.accumulate_bytes, 6);
    EXPECT_EQ(run.software.gradient_bytes, 2);
    for (const char* wide : {R"("precision": "bf16", "software": "Megatron-LM 2021")",
                             R"("precision": "fp16", "software": "Megatron-DeepSpeed 2021")"})
        EXPECT_EQ(
            runs_of(concat(R"({"layers": 2, "hidden": 64, "gpu": "A100", )", wide, "}")).at(0).software.gradient_bytes,
            4)
            << wide;
    run.software.accumulate_bytes = 0;
    const double values = 12.0 * 8192 * 8192 * 10, rate = run.cluster.memory_bandwidth * physics.memory;
    EXPECT_NEAR(more(run, [](Traits& s) { s.accumulate_bytes = 6; }), 32 * 6 * values / rate, 1e-3);
    EXPECT_EQ(
        gpt(R"json("num_gpus": 2, "dp": 2, "software": "Megatron-LM 2022 (Selene)")json").software.accumulate_bytes, 0);
    // A forward, a second one and a backward of twice as many kernels; gaps between them count already.
    run.software.launches = 50;
    EXPECT_NEAR(more(run, [](Traits& s) { s.launches_block = true; }), 32 * 10 * 4 * 50 * physics.host_launch, 1e-3);
    // Each microbatch of a stage has two receives and two sends, of which two were hidden by the other stage's work.
    const PublishedRun piped = gpt(R"("num_gpus": 2, "pp": 2, "software": "Megatron-DeepSpeed 2022")");
    ASSERT_TRUE(piped.software.blocking_hops);
    const double message = 2.0 * 2048 * 8192 / (piped.cluster.link_bandwidth * physics.link) + physics.latency;
    EXPECT_NEAR(more(piped, [](Traits& s) { s.blocking_hops = false; }), -2 * 64 * message, 1e-3);
    PublishedRun split = gpt(R"("num_gpus": 4, "tp": 2, "pp": 2, "software": "Megatron-DeepSpeed 2022")");
    const double rest = 2.0 * 2048 * 8192 / 2 / (split.cluster.link_bandwidth * physics.link);  // one rank's other half
    EXPECT_NEAR(more(split, [](Traits& s) { s.whole_gradients = true; }), (2 * 64 + 1) * rest, 1e-3);
    EXPECT_TRUE(gpt(R"("num_gpus": 2, "pp": 2, "software": "Megatron-DeepSpeed 2021")").software.whole_gradients);
    // ZeRO-3: a latency for each weight in place of one for all of a layer, in both passes.
    const PublishedRun sharded = gpt(R"("num_gpus": 2, "zero_stage": 3, "software": "DeepSpeed 2021")");
    ASSERT_EQ(sharded.software.gathers_a_layer, 4);
    EXPECT_NEAR(more(sharded, [](Traits& s) { s.gathers_a_layer = 1; }), -10 * 32 * 2 * 3 * 2 * physics.latency, 1e-6);
    EXPECT_TRUE(gpt(R"("num_gpus": 2, "zero_stage": 3, "software": "metaseq FSDP 2021")").software.prefetches);
}

// By hand, on one device without recomputation: operations of norms, rotations and activations that are passes of
// their own move 84, 20 and 10 bytes a value in place of 20, 4 and 6; backwards move 1.9 times that of a forward.
TEST(Step, EagerProgramsPassThroughMemoryOperationByOperation) {
    const auto run = [](const char* fields) {
        return runs_of(concat(R"({"layers": 8, "hidden": 4096, "heads": 32, "ffn": 11008, "gpu": "A100", "num_gpus": 1,
            "micro_batch": 8, "global_batch": 8, "seq_len": 2048, "recompute": "none", )",
                              fields, "}"))
            .at(0);
    };
    const auto more = [](PublishedRun changed) {
        const double eager = seconds(changed);
        changed.software.eager = false;
        return eager - seconds(changed);
    };
    const PublishedRun gated = run(R"("mlp": "swiglu", "software": "PyTorch DDP 2023")");
    ASSERT_TRUE(gated.software.eager);
    const double tokens = 8 * 2048, rate = gated.cluster.memory_bandwidth * simulate::Physics{}.memory;
    const double bytes = (84 - 20) * 4096.0 + (20 - 4) * 2 * 4096.0 + (10 - 6) * 11008.0;
    EXPECT_NEAR(more(gated), 8 * (1 + 1.9) * tokens * bytes / rate, 1e-6);
    EXPECT_NEAR(more(run(R"("mlp": "gelu", "software": "PyTorch DDP 2023")")), 0, 1e-9);
    // A softmax by itself: 26 bytes of each score in place of 8.
    const PublishedRun scores = run(R"("mlp": "gelu", "software": "PyTorch DDP 2023", "attn_impl": "unfused")");
    EXPECT_NEAR(more(scores), 8 * (1 + 1.6) * 8 * 32 * 2048.0 * 2048 * (26 - 8) / rate, 1e-6);
    for (const char* fused :
         {"torchtitan 2024-12, compile", "llm-foundry/Composer FSDP", "Megatron-Core 2024", "DeepSpeed, Liger-Kernel"})
        EXPECT_FALSE(run(concat(R"("software": ")", fused, "\"").c_str()).software.eager) << fused;
    // Norms are split over tp where the program says so.
    EXPECT_FALSE(run(R"("software": "PaddlePaddle 2.5 2023")").software.sequence_parallel);
    EXPECT_TRUE(run(R"("software": "torchtitan 2024-12, eager")").software.sequence_parallel);
    EXPECT_TRUE(run(R"("software": "InternLM 2023", "sequence_parallel": true)").software.sequence_parallel);
}

// DeepSpeed's ZeRO-3 releases a large layer's weights between its recomputation and its backward.
TEST(Step, LargeLayersAreGatheredThreeTimes) {
    const auto gpt = [](int hidden, const char* recompute) {
        return runs_of(concat(R"({"layers": 10, "heads": 64, "mlp": "gelu", "gpu": "A100", "num_gpus": 16,
            "zero_stage": 3, "micro_batch": 1, "global_batch": 64, "attn_impl": "unfused",
            "software": "DeepSpeed ZeRO-3 2021", "hidden": )",
                              hidden, R"(, "recompute": ")", recompute, "\"}"))
            .at(0);
    };
    const auto more = [](PublishedRun run) {
        const double all = seconds(run);
        run.software.keeps_values = 0;
        return all - seconds(run);
    };
    EXPECT_EQ(more(gpt(8192, "full")), 0);  // 0.8e9 values a layer
    EXPECT_EQ(more(gpt(16384, "none")), 0);
    const PublishedRun large = gpt(16384, "full");
    const simulate::Physics physics;
    const double bytes = 15.0 / 16 * 2 * 12 * 16384.0 * 16384,
                 rate = std::min(large.cluster.link_bandwidth * physics.link,
                                 8 * large.cluster.network_bandwidth * physics.network),
                 latency = 2 * physics.latency + 15 * 2 * physics.hop;  // of these years
    EXPECT_NEAR(more(large) / (10 * 4 * (bytes / rate + 4 * latency)), 1, 1e-6);
}

// torchtitan keeps a stage's weights between its microbatches and reduces its gradients after the last one.
TEST(Step, PipelinesOfFsdpGatherOnceAStep) {
    const auto sharded = [](int batch) {
        PublishedRun run = llama_8b(concat(R"("num_gpus": 64, "pp": 2, "micro_batch": 1, "zero_stage": 3,
            "software": "torchtitan 2025", "global_batch": )",
                                           batch));
        run.cluster.network_bandwidth /= 10;  // so that compute does not hide it
        const double all = seconds(run);
        run.zero = 1;
        const auto others = step_time(run, {});
        return all - (others.total() - others.dp);
    };
    EXPECT_GT(sharded(256), 0.1);
    EXPECT_NEAR(sharded(1024), sharded(256), 1e-9);
}

// torch.compile is asked for; a program of PyTorch that no line of the table knows was taken for Megatron-Core.
TEST(Rows, ProgramsOfPyTorchAreEagerUnlessCompiled) {
    for (const auto& [software, name] :
         std::map<const char*, const char*>{{"PyTorch FSDP 2024", "pytorch-eager"},
                                            {"DeepSpeed 0.14, ZeRO-2", "pytorch-eager"},
                                            {"Lit-GPT 2023", "pytorch-eager"},
                                            {"torchtitan 2024-12, eager", "pytorch-eager"},
                                            {"FSDP2, torch.compile", "pytorch-compiled"},
                                            {"torchtitan 2025-06", "pytorch-compiled"},
                                            {"llm.c (CUDA)", "llm.c"},
                                            {"Megatron-LM FSDP", "megatron-core"},
                                            {"NeMo 25.02", "megatron-core"}})
        EXPECT_EQ(llama_8b(concat(R"("num_gpus": 8, "software": ")", software, "\"")).software.name, name) << software;
}

// Values of Llama 3 8B: a layer's products, and the embedding or the head.
constexpr double kLayer = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336;
constexpr double kHead = 4096.0 * 128256;

double data_parallel(PublishedRun run) {
    run.software.overlaps_dp = false;
    return step_time(run, {}).dp;
}

// 8 GPUs of a node, ring: 7/8 of the bytes at 0.78 of 450 GB/s. Layers are gathered as codes of a byte, the head in 16
// bits.
TEST(Step, NeMoGathersCodesOfEightBits) {
    const auto run = [](const char* precision, const char* software) {
        return llama_8b(concat(R"("num_gpus": 8, "micro_batch": 1, "global_batch": 8, "zero_stage": 1, "precision": ")",
                               precision, R"(", "software": ")", software, "\""));
    };
    const simulate::Physics physics;
    const double saved = 7.0 / 8 * 32 * kLayer / (450e9 * physics.link);
    PublishedRun codes = run("fp8", "NeMo 25.04");
    ASSERT_TRUE(codes.software.gathers_codes);
    PublishedRun wide = codes;
    wide.software.gathers_codes = false;
    EXPECT_NEAR(data_parallel(wide) - data_parallel(codes), saved, 1e-9);
    // Products of 16 bits have no codes, nor have those of 4 here.
    for (const char* precision : {"bf16", "nvfp4"}) {
        codes = run(precision, "NeMo 25.04");
        codes.cluster = hardware::cluster_named("b200");
        wide = codes;
        wide.software.gathers_codes = false;
        EXPECT_EQ(data_parallel(wide), data_parallel(codes)) << precision;
    }
    EXPECT_TRUE(run("fp8", "DGXC v24.11.1").software.gathers_codes);
    for (const char* other : {"Megatron-LM 0.14", "Megatron-Core 2024", "NeMo AutoModel (PyTorch FSDP2) 2025"})
        EXPECT_FALSE(run("fp8", other).software.gathers_codes) << other;
}

// 64 GPUs of 8 nodes: each bucket costs a reduce-scatter and a gather a ring's latency of 63 steps. Megatron-LM's
// default are 64 M values here, NeMo's 128 Mi.
TEST(Step, NeMoHasLargeBuckets) {
    PublishedRun run =
        llama_8b(R"("num_gpus": 64, "micro_batch": 1, "global_batch": 64, "zero_stage": 1, "software": "NeMo 25.04")");
    PublishedRun small = run;
    small.software.bucket_values = 0;
    const simulate::Physics physics;
    const double values = 32 * kLayer + kHead, ring = physics.latency + 63 * physics.hop;
    EXPECT_NEAR(data_parallel(small) - data_parallel(run), 2 * (values / 64e6 - values / (128.0 * 1024 * 1024)) * ring,
                1e-9);
}

// Kernels of a loss that read 16-bit logits two or three times in all and write their gradient once.
TEST(Step, FusedLossesMoveFewBytes) {
    const auto bytes = [](const char* software) {
        return llama_8b(concat(R"("num_gpus": 8, "software": ")", software, "\"")).software.logit_bytes;
    };
    EXPECT_EQ(bytes("llm.c"), 2 * (2 + 1));
    EXPECT_EQ(bytes("PyTorch 2.8, torch.compile 2025"), 2 * (3 + 1));
    EXPECT_EQ(bytes("PyTorch 2.0, torch.compile 2023"), 24);
}

// Qwen3-235B, whose embedding and loss count as layers: 32 stages of 3 chunks hold 94 + 2. More chunks than that are
// layers of a chunk: 94 layers over 32 stages have 2 chunks of a layer at least.
TEST(Step, EmbeddingAndLossMayBeLayersOfTheirChunks) {
    const auto chunks = [](int vpp) {
        return runs_of(concat(R"({"model": "Qwen3-235B", "layers": 94, "hidden": 4096, "ffn": 12288, "heads": 64,
            "kv_heads": 4, "head_dim": 128, "gpu": "H800", "num_gpus": 256, "pp": 32, "micro_batch": 1,
            "global_batch": 2048, "software": "Megatron-Core 2025", "vpp": )",
                              vpp, "}"))
            .at(0)
            .virtual_stages;
    };
    EXPECT_EQ(chunks(2), 2);
    EXPECT_EQ(chunks(3), 3);
    EXPECT_EQ(chunks(4), 2);
}

TEST(Step, ARowThatSaysHowIsTakenAtItsWord) {
    const auto named = [](const char* recompute, const char* attention) {
        return llama_8b(concat(R"("num_gpus": 8, "software": "MaxText 2025", "recompute": ")", recompute,
                               R"(", "attn_impl": ")", attention, "\""));
    };
    EXPECT_EQ(named("full", "").recompute, Recompute::full);
    EXPECT_EQ(named("minimal", "").recompute, Recompute::norms);
    EXPECT_EQ(named("none (assumed)", "").recompute, Recompute::operations);  // the policy of its recipes
    EXPECT_EQ(named("none", "").recompute, Recompute::none);
    EXPECT_EQ(named("none", "unfused").software.attention, simulate::Attention::unfused);
    EXPECT_EQ(named("full", "fa2").software.attention, simulate::Attention::flash2);
    EXPECT_EQ(named("full", "flash1").software.attention, simulate::Attention::flash1);
    PublishedRun eager = llama_8b(R"("num_gpus": 8, "software": "PyTorch eager", "attn_impl": "flash3")");
    EXPECT_EQ(eager.software.attention, simulate::Attention::newest);
}

// Llama 3 405B (Llama Team 2024, table 4), which no fit has seen: 43, 41 and 38 % MFU.
TEST(Step, Llama3WithinItsInterval) {
    const auto error = [](int gpus, int cp, int seq, int batch, double reported) {
        const PublishedRun run =
            runs_of(concat(R"({"model": "Llama-3.1-405B", "layers": 126, "hidden": 16384,
            "ffn": 53248, "heads": 128, "kv_heads": 8, "vocab": 128256, "mlp": "swiglu", "gpu": "H100", "tp": 8,
            "pp": 16, "vpp": 7, "zero_stage": 2, "micro_batch": 1, "precision": "bf16", "software": "Llama team 2024",
            "num_gpus": )",
                           gpus, R"(, "cp": )", cp, R"(, "seq_len": )", seq, R"(, "global_batch": )", batch,
                           R"(, "tflops_per_gpu": )", reported, "}"))
                .at(0);
        return std::abs(std::log(seconds(run) / run.seconds)) / half_width(run);
    };
    EXPECT_LT(error(8192, 1, 8192, 2048, 430), 1);
    EXPECT_LT(error(16384, 1, 8192, 2048, 400), 1);
    EXPECT_LT(error(16384, 16, 131072, 128, 380), 1);
}

TEST(Memory, StateIsTheTextbooks) {
    PublishedRun run =
        llama_8b(R"("num_gpus": 8, "micro_batch": 1, "global_batch": 64, "software": "Megatron-LM core")");
    const double n = run.model.product_flops() / 6 + run.model.vocab * run.model.hidden;
    const auto state = [&](int zero) {
        run.zero = zero;
        const Memory m = memory(run);
        return (m.weights + m.gradients + m.optimizer) / n;
    };
    EXPECT_NEAR(state(0), 18, 1e-9);
    EXPECT_NEAR(state(1), 6 + 12.0 / 8, 1e-9);
    EXPECT_NEAR(state(2), 2 + 16.0 / 8, 1e-9);
    EXPECT_NEAR(state(3), 18.0 / 8, 1e-9);
}

// torchtitan's benchmarks of Llama 3.1 8B: 82.4 GiB on 8 H100 without compilation and 77.0 with it, December 2024; 83.9
// with 32,768 tokens and whole layers recomputed; 48.0 on 32 H200 in June 2025, with a compiled loss.
TEST(Memory, PyTorchRunsAreAsMeasured) {
    const auto gib = [](const char* fields) { return memory(llama_8b(fields)).total() / (1 << 30); };
    EXPECT_NEAR(gib(R"("num_gpus": 8, "zero_stage": 3, "micro_batch": 2, "recompute": "selective op-level",
        "software": "torchtitan 2024-12, eager")"),
                82.4, 82.4 * 0.05);
    EXPECT_NEAR(gib(R"("num_gpus": 8, "zero_stage": 3, "micro_batch": 2, "recompute": "selective op-level",
        "software": "torchtitan 2024-12, compile")"),
                77.0, 77.0 * 0.05);
    EXPECT_NEAR(gib(R"("num_gpus": 32, "zero_stage": 3, "micro_batch": 2, "recompute": "selective op-level",
        "software": "torchtitan 2025-06 compile")"),
                48.0, 48.0 * 0.05);
}

// Three rows of which one is of another system, one has a problem and one is guessed: the middle of the rest, by hand.
TEST(Memory, ErrorsAreThoseOfTheRows) {
    std::vector<PublishedRun> runs;
    for (const double factor : {1.0 / 0.9, 1.0 / 1.2, 1.0 / 1.06, 1.0 / 0.96, 2.0, 3.0, 4.0}) {
        runs.push_back(llama_8b(R"("num_gpus": 8, "micro_batch": 1, "software": "Megatron-LM 0.14")"));
        runs.back().memory_bytes = factor * memory(runs.back()).total();
    }
    runs[4].software.name = "nanotron";
    runs[5].problem = "refused";
    runs[6].estimated = true;
    const MemoryErrors errors = memory_errors(runs, "megatron-core");
    EXPECT_EQ(errors.rows, 4);
    EXPECT_NEAR(errors.mean, (0.1 + 0.2 + 0.06 + 0.04) / 4, 1e-9);
    EXPECT_NEAR(errors.median, (0.06 + 0.1) / 2, 1e-9);
    EXPECT_NEAR(errors.bias, (-0.04 + 0.06) / 2, 1e-9);
    EXPECT_EQ(memory_errors(runs).rows, 5);
    EXPECT_EQ(memory_errors(runs, "xla").rows, 0);
    // The rows that the program carries.
    EXPECT_GT(memory_errors(calibration_runs(), "megatron-core").rows, 10);
    EXPECT_LT(memory_errors(calibration_runs()).median, 0.1);
}

// The 8.86B and 1.34B models of the nanotron sweep (Ultrascale Playbook, 2025).
PublishedRun nanotron(bool small, int ranks, int tp, int pp, double micro_batch, int zero) {
    PublishedRun run = runs_of(concat(small ? R"({"layers": 16, "hidden": 2048, "ffn": 8192, "tied": true, )"
                                            : R"({"layers": 32, "hidden": 4096, "ffn": 14336, "tied": false, )",
                                      R"("heads": 32, "vocab": 131072, "mlp": "swiglu", "seq_len": 4096, "gpu": "H100",
        "global_batch": 256, "schedule": "1f1b", "software": "nanotron 2025-02", "zero_stage": )",
                                      zero, R"(, "num_gpus": )", ranks, R"(, "tp": )", tp, R"(, "pp": )", pp,
                                      R"(, "micro_batch": )", micro_batch, "}"))
                           .at(0);
    return run;
}

TEST(Nanotron, BlocksGoToStagesByCost) {
    // Worked out by hand: the head of the small model costs as much as four of its layers, that of the large one 2.2.
    const auto layers = [](const std::vector<Stage>& stages) {
        std::vector<int> counts;
        for (const Stage& stage : stages) counts.push_back(stage.layers);
        return counts;
    };
    std::vector<Stage> stages = stages_by_cost(nanotron(false, 8, 1, 1, 1, 0).model, 4);
    EXPECT_EQ(layers(stages), (std::vector<int>{9, 9, 8, 6}));
    EXPECT_TRUE(stages[3].head);
    stages = stages_by_cost(nanotron(true, 8, 1, 1, 1, 0).model, 8);
    EXPECT_EQ(layers(stages), (std::vector<int>{3, 3, 2, 3, 2, 3, 0, 0}));
    EXPECT_TRUE(stages[6].head);
    EXPECT_EQ(stages[7].blocks, 2);  // the cast and the loss
}

TEST(Nanotron, LayoutsThatItsEngineRefuses) {
    EXPECT_NE(nanotron(true, 64, 1, 16, 1, 0).problem.find("without a block"), std::string::npos);
    EXPECT_NE(nanotron(false, 128, 1, 8, 4, 0).problem.find("at least pp - 1 = 7 microbatches, got 4"),
              std::string::npos);
    EXPECT_EQ(nanotron(false, 128, 1, 8, 2, 0).problem, "");
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
        const PublishedRun run = nanotron(false, row.ranks, row.tp, row.pp, row.micro_batch, row.zero);
        EXPECT_EQ(run.problem, "");
        EXPECT_NEAR(memory(run).total() / (row.gigabytes * 1e9), 1, 0.12)
            << row.ranks << " ranks, tp " << row.tp << ", pp " << row.pp;
    }
}

// Rows of the sweep without a pipeline, in which gradients are most of what is sent: twins that differ in their ZeRO
// stage alone, on 32 to 256 GPUs. With buckets of 25 MB of f32 gradients and a ring's latency for each, ZeRO-1 was up
// to 9 times too slow.
TEST(Nanotron, StepsOfDataParallelismAreAsMeasured) {
    struct Row {
        int ranks;
        double micro_batch;
        int zero;
        double tokens_per_s;  // of a GPU
        double tolerance;
    };
    for (const Row& row : {Row{32, 2, 1, 36990, 0.12}, Row{32, 1, 1, 35951, 0.12}, Row{32, 1, 0, 35368, 0.12},
                           Row{256, 1, 0, 15700, 0.12}, Row{256, 1, 1, 11327, 0.3}}) {
        const PublishedRun run = nanotron(true, row.ranks, 1, 1, row.micro_batch, row.zero);
        EXPECT_NEAR(seconds(run) * row.tokens_per_s * row.ranks / run.tokens(), 1, row.tolerance)
            << row.ranks << " ranks, micro batch " << row.micro_batch << ", ZeRO-" << row.zero;
    }
}

TEST(Fit, FindsTheConstantsThatMadeTheTimes) {
    simulate::Physics truth;
    truth.hopper_16 *= 1.08;
    std::vector<PublishedRun> runs;
    for (const int tp : {1, 2, 4, 8}) {
        for (const double seq : {2048.0, 8192.0, 32768.0}) {
            PublishedRun run = llama_8b(R"("num_gpus": 32, "micro_batch": 1, "global_batch": 512, "zero_stage": 1,
                "family": "made up", "software": "NeMo 25.02")");
            run.tp = tp;
            run.dp = 32 / tp;
            run.seq = seq;
            run.seconds = step_time(run, truth).total();
            runs.push_back(run);
        }
    }
    std::vector<const PublishedRun*> all;
    for (const PublishedRun& run : runs) all.push_back(&run);
    const simulate::Physics found = fit(all, {});
    EXPECT_NEAR(found.hopper_16 / truth.hopper_16, 1, 0.03);           // one family holds it against the prior
    EXPECT_NEAR(found.ampere_16, simulate::Physics{}.ampere_16, 1e6);  // no run says anything of it
    EXPECT_LT(means_of(runs, leave_out(runs, [](const PublishedRun&) { return "one"; }, {})).families, 0.1);
    const std::string path = testing::TempDir() + "site.json";
    std::ofstream(path) << site_of(found).dump();
    EXPECT_EQ(simulate::read_physics(path).hopper_16, found.hopper_16);
    std::ofstream(path) << R"({"constants": {"hoper_16": 1e12}})";
    EXPECT_THROW(simulate::read_physics(path), DataError);
    std::ofstream(path) << R"({"constants": {"hopper_16": 3e12}})";
    EXPECT_THROW(simulate::read_physics(path), DataError);
}

// Every 40th row of nanotron's sweep (Ultrascale Playbook, 2025): ranks, tp, pp, micro batch, ZeRO stage, tokens a
// second of a GPU. Pipelines over nodes stall or do not; 63 % of all rows were inside when one width served them all.
TEST(Intervals, HoldLayoutsThatStall) {
    struct Row {
        bool small;
        int ranks, tp, pp;
        double micro_batch;
        int zero;
        double tokens_per_s;
    };
    const Row kRows[] = {
        {true, 8, 8, 1, 16, 0, 28101},   {true, 16, 1, 8, 1, 1, 22949},   {true, 32, 4, 1, 16, 1, 32106},
        {true, 32, 8, 1, 1, 0, 7161},    {true, 64, 1, 8, 1, 1, 19089},   {true, 64, 8, 1, 1, 1, 6624},
        {true, 128, 2, 1, 4, 1, 25002},  {true, 128, 4, 1, 1, 1, 12269},  {true, 128, 8, 8, 2, 1, 1824},
        {true, 256, 1, 1, 1, 0, 15700},  {true, 256, 1, 2, 1, 0, 3241},   {true, 256, 32, 4, 8, 1, 153},
        {true, 512, 4, 4, 1, 1, 207},    {false, 16, 4, 1, 4, 1, 7290},   {false, 32, 2, 4, 2, 1, 6599},
        {false, 32, 4, 2, 1, 0, 665},    {false, 64, 16, 1, 16, 0, 2298}, {false, 64, 16, 2, 1, 0, 93},
        {false, 128, 8, 8, 8, 1, 3275},  {false, 128, 16, 1, 1, 0, 915},  {false, 256, 4, 1, 2, 0, 4626},
        {false, 256, 4, 16, 1, 1, 1307}, {false, 256, 16, 8, 8, 1, 157},  {false, 512, 4, 2, 2, 1, 934},
        {false, 512, 32, 4, 8, 1, 115}};
    int inside = 0, rows = 0;
    for (const Row& row : kRows) {
        const PublishedRun run = nanotron(row.small, row.ranks, row.tp, row.pp, row.micro_batch, row.zero);
        ASSERT_EQ(run.problem, "");
        const double measured = run.tokens() / row.tokens_per_s / row.ranks;
        inside += std::abs(std::log(seconds(run) / measured)) <= half_width(run) ? 1 : 0;
        ++rows;
    }
    EXPECT_GE(inside, 0.7 * rows);
    EXPECT_LE(inside, 0.9 * rows);
    const auto width = [](int ranks, int tp, int pp) { return half_width(nanotron(false, ranks, tp, pp, 1, 0)); };
    EXPECT_EQ(width(8, 1, 8), width(64, 8, 1));  // no pipeline, no group over nodes
    EXPECT_LT(width(64, 8, 1), width(64, 4, 2));
    EXPECT_EQ(width(64, 16, 1), width(64, 4, 2));
    EXPECT_LT(width(64, 4, 2), width(256, 4, 2));
}

// A page of a house that the constants were fitted to is a source of its own.
TEST(Intervals, HaveALeastWidthForSourcesNeverSeen) {
    const auto width = [](const char* family, Source source) {
        PublishedRun run = llama_8b(R"("num_gpus": 8, "software": "torchtitan 2025-06")");
        run.family = family;
        run.house = "torchtitan";
        return half_width(run, source);
    };
    EXPECT_LT(width("torchtitan", Source::as_fitted), 0.2);
    EXPECT_DOUBLE_EQ(width("torchtitan", Source::left_out), width("torchtitan-a100", Source::as_fitted));
    const double least = width("never seen", Source::as_fitted);
    for (const char* device : {"v100", "a100", "h100", "b200", "mi300x", "tpu-v5p"})
        for (const char* software : {"Megatron-LM", "PyTorch eager", "MaxText 2025"}) {
            PublishedRun run = llama_8b(concat(R"("num_gpus": 8, "software": ")", software, "\""));
            run.cluster = hardware::cluster_named(device);
            EXPECT_DOUBLE_EQ(half_width(run), std::max(least, simulate::half_width(kinds_of(run), false)))
                << device << ' ' << software;
        }
}

TEST(Intervals, OfAProgramKnownInFull) {
    using simulate::half_width;
    EXPECT_DOUBLE_EQ(half_width({"hopper", "tp in a node"}, true), 0.09);
    EXPECT_DOUBLE_EQ(half_width({"hopper", "experts"}, false), 0.28);
    EXPECT_DOUBLE_EQ(half_width({"hopper"}, false), half_width({"hopper", "kind without a width"}, false));
    // The widest of several is more than 80 of 100 need.
    EXPECT_DOUBLE_EQ(half_width({"ampere", "full recompute", "unfused attention"}, false),
                     0.75 * half_width({"ampere", "full recompute"}, false));
    const std::vector<std::string> mixture = {"hopper", "experts", "tp in a node", "pp interleaved"};
    EXPECT_GE(half_width(mixture, false), half_width(mixture, true));
    // 17.9 % on average over sources never seen: 80 of 100 are within 1.6 times that.
    EXPECT_NEAR(half_width({"ampere", "full recompute"}, false), 1.6 * 0.179, 0.002);
    EXPECT_DOUBLE_EQ(half_width({"ampere", "full recompute"}, true), 0.12);
    // A generation that no fit has seen is no narrower than any that one has.
    for (const char* seen : {"ampere", "hopper", "blackwell"})
        EXPECT_GT(half_width({"trainium"}, false), half_width({seen}, false)) << seen;
}

}  // namespace
}  // namespace tutti::published
