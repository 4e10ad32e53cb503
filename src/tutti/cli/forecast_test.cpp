// One question, one door: `train --dry-run`, `rehearse`, `simulate` and `plan` take the same names, options and files,
// and give one answer.
#include "tutti/cli/forecast.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
#include "tutti/cli/testing/run.h"

namespace tutti::cli::forecast_test {
namespace {

struct Forecast : CommandTest {
    Json answer(const std::string& command, std::vector<std::string> words) {
        words.emplace_back("--json");
        EXPECT_EQ(run_words(command, words), 0) << command << ": " << err;
        return out.empty() ? Json() : Json::parse(out);
    }
    void refused(const std::string& command, const std::vector<std::string>& words, const std::string& part) {
        EXPECT_EQ(run_words(command, words), 2) << command << ' ' << joined(words, " ");
        EXPECT_TRUE(says(part)) << err;
    }
};

const std::vector<std::string> kTiny = {"--model", "llama-tiny",         "--set", "train.global_batch=8",
                                        "--set",   "train.micro_batch=1"};

std::vector<std::string> operator+(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

using Words = std::vector<std::string>;

TEST_F(Forecast, EveryMachineHasOneNameAndOneMemoryInAllCommands) {
    for (const char* name : {"h100", "a100", "a100-80gb", "l40s", "mi300x", "tpu-v5p"}) {
        const Words words = kTiny + Words{"--cluster", name, "--gpus", "4"};
        const auto rehearsed = answer("rehearse", words)["capacity_bytes"].get<int64_t>();
        EXPECT_EQ(answer("train", words + Words{"--dry-run"})["capacity_bytes"].get<int64_t>(), rehearsed) << name;
        EXPECT_EQ(answer("simulate", words)["capacity_bytes"].get<int64_t>(), rehearsed) << name;
        const Json finalist = answer("plan", words + Words{"--seq-len", "64", "--top", "1"})["finalists"][0];
        if (finalist["rehearsed"].is_null()) continue;  // no kernels for this vendor
        EXPECT_EQ(finalist["rehearsed"]["capacity_bytes"].get<int64_t>(), rehearsed) << name;
    }
    const std::string file = write("ours.toml", "base = \"h100\"\nname = \"ours\"\nmemory_gb = 80\n");
    EXPECT_EQ(answer("simulate", kTiny + Words{"--cluster", file})["capacity_bytes"],
              answer("rehearse", kTiny + Words{"--for", "h100"})["capacity_bytes"]);
}

TEST_F(Forecast, TimeAndMemoryOfALayoutAreTheSameEverywhere) {
    const std::string config = write("c.toml",
                                     "[model]\npreset = \"llama-tiny\"\n[train]\nglobal_batch = 16\nmicro_batch = 2\n"
                                     "seq_len = 128\n[parallel]\ntp = 2\nzero = 1\n");
    const Words words = {config, "--cluster", "h100", "--ranks", "8"};
    const Json simulated = answer("simulate", words), mine = answer("plan", words + Words{"--top", "2"})["mine"];
    EXPECT_EQ(simulated["step_time_s"], mine["step_time_s"]);
    EXPECT_EQ(simulated["peak_bytes"], mine["peak_bytes"]);
    const Json best = answer("plan", words + Words{"--top", "1", "--emit", path("best.toml")})["finalists"][0];
    const Json again = answer("simulate", Words{path("best.toml"), "--cluster", "h100", "--ranks", "8"});
    for (const char* rate : {"tokens_per_s", "mfu_causal", "mfu_full", "hfu"})
        EXPECT_EQ(again[rate], best["predicted"][rate]) << rate;
    EXPECT_EQ(simulated["peak_bytes"], answer("rehearse", words)["peak_bytes"]);
    EXPECT_EQ(simulated["step_time_s"], simulated["rehearsed"]["step_time_s"]);
    EXPECT_GT(mine["changes"].size(), 3u);
    // The change that helps most is what simulate says of it.
    const Json first = mine["changes"][0];
    Words changed = words;
    for (const Json& set : first["set"].elements()) changed = changed + Words{"--set", set.text()};
    EXPECT_EQ(answer("simulate", changed)["step_time_s"], first["step_time_s"]);
}

// Eight ranks of a node offload their optimizer; a save copies masters, weights and moments.
TEST_F(Forecast, TheHostsMemoryIsTheSameEverywhere) {
    const Words words = kTiny + Words{"--cluster", "h100",
                                      "--ranks",   "16",
                                      "--set",     "train.global_batch=16",
                                      "--set",     "offload.optimizer=true"};
    const Json rehearsed = answer("rehearse", words), host = rehearsed["host_memory"];
    EXPECT_EQ(host, answer("simulate", words)["host_memory"]);
    EXPECT_EQ(host["offloaded_bytes"].get<double>(), 8 * rehearsed["offloaded_bytes"].get<double>());
    EXPECT_EQ(host["saves_bytes"].get<double>(), 8 * rehearsed["saved_bytes"].get<double>());
    EXPECT_EQ(
        host["needed_bytes"].get<double>(),
        host["offloaded_bytes"].get<double>() + host["saves_bytes"].get<double>() + host["system_bytes"].get<double>());
    EXPECT_TRUE(host["fits"].get<bool>());
    const Json small = answer("rehearse", words + Words{"--set-cluster", "host.memory_gb=0.01"})["host_memory"];
    EXPECT_FALSE(small["fits"].get<bool>());
    // Of a pipeline the rank that offloads most counts, here not the one with the most memory: the head, which the last
    // stage has, is most of the state, and the first has most activations.
    const Words pipeline = words + Words{"--set", "parallel.pp=4",     "--set", "train.seq_len=1024",
                                         "--set", "model.vocab=65536", "--set", "model.max_positions=1024"};
    double most = 0;
    for (const char* rank : {"0", "4", "8", "12"})
        most = std::max(most, answer("rehearse", pipeline + Words{"--rank", rank})["offloaded_bytes"].get<double>());
    for (const char* command : {"rehearse", "simulate"})
        EXPECT_EQ(answer(command, pipeline)["host_memory"]["offloaded_bytes"].get<double>(), 8 * most) << command;
}

// One rank alone gathers each unit from its host for the forward and for the backward of a microbatch.
TEST_F(Forecast, OffloadedWeightsCrossTheLinkOfOneRankToo) {
    const Words words{"--model", "llama3.2-1b",          "--cluster", "h100",
                      "--set",   "train.seq_len=2048",   "--set",     "train.micro_batch=1",
                      "--set",   "train.global_batch=8", "--set",     "parallel.zero=3",
                      "--set",   "offload.params=true"};
    const double weights = 2 * 1.236e9, link = 64e9;  // in bf16; bytes a second
    EXPECT_GT(answer("simulate", words)["step_time_s"].get<double>(), 0.9 * 8 * 2 * weights / link);
}

// What the machine of a question cannot do is refused by every command, before it counts anything.
TEST_F(Forecast, WhatAMachineLacksIsRefusedEverywhere) {
    const auto on = [&](const char* cluster, const Words& more, const std::string& part) {
        const Words words = kTiny + Words{"--cluster", cluster, "--ranks", "4"} + more;
        refused("simulate", words, part);
        refused("rehearse", words, part);
        refused("train", words + Words{"--dry-run"}, part);
    };
    on("v100", {}, "v100 has no bf16 products (it has fp16, fp32)");
    refused("bench", {"gemm", "--cluster", "gtx580"}, "gtx580 has no bf16 products, it has fp32; give its --dtype");
    on("tpu-v4", {"--set", "precision.compute=f16"}, "tpu-v4 has no fp16 products (it has bf16)");
    on("trainium2", {"--set", "offload.optimizer=true"}, "its bandwidth to the host is not known");
    refused("plan", kTiny + Words{"--cluster", "v100", "--ranks", "4", "--seq-len", "64"}, "v100 has no bf16 products");
    const Words half = kTiny + Words{"--cluster", "v100", "--set", "precision.compute=f16"};
    EXPECT_EQ(answer("simulate", half)["peak_bytes"], answer("rehearse", half)["peak_bytes"]);
}

// Four data-parallel pipelines of two ranks, 0 and 4, 1 and 5, ...: all wait for the slowest one.
TEST_F(Forecast, TheSlowestRankDecides) {
    const Words words = kTiny + Words{"--cluster", "h100", "--ranks", "8", "--set", "parallel.pp=2"};
    const auto seconds = [&](const Words& slow) {
        return answer("simulate", words + slow)["step_time_s"].get<double>();
    };
    const double even = seconds({}), one = seconds({"--slow", "1=3"});
    EXPECT_GT(one, 1.5 * even);
    EXPECT_EQ(seconds({"--slow", "0=2", "--slow", "1=3"}), one);
    EXPECT_EQ(seconds({"--slow", "1=3", "--slow", "7=2"}), one);
    EXPECT_NEAR(seconds({"--slow", "0=0.5"}), even, 1e-4 * even);  // that of rank 1
    refused("simulate", words + Words{"--slow", "1=3", "--slow", "1=2"}, "rank 1 has a factor already");
}

TEST_F(Forecast, NeedsNoDataAndNoWeights) {
    const std::string config = write("c.toml", "[train]\nmicro_batch = 2\n");
    for (const char* command : {"rehearse", "simulate"})
        EXPECT_EQ(run_words(command, {config, "--cluster", "h100"}), 0) << err;
    EXPECT_EQ(run_words("train", {config, "--dry-run"}), 0) << err;
    EXPECT_EQ(run_words("train", {config, "--out", path("run")}), 2);
    EXPECT_TRUE(says("[data] train")) << err;
    // A directory with the config of a model and nothing else.
    std::filesystem::create_directory(path("model"));
    write("model/config.json",
          R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": false})");
    EXPECT_EQ(run_words("rehearse", {"--model", path("model"), "--cluster", "h100"}), 0) << err;
    EXPECT_TRUE(says("would refuse")) << err;
    EXPECT_EQ(run_words("simulate", {"--model", path("model"), "--cluster", "h100"}), 0) << err;
}

TEST_F(Forecast, AnMlpHasAStepTime) {
    const Json mlp = answer("simulate", {"--model", "mlp-8192", "--cluster", "h100", "--set", "train.global_batch=8192",
                                         "--set", "train.micro_batch=8192", "--set", "train.seq_len=1"});
    EXPECT_GT(mlp["mfu_causal"].get<double>(), 0.2);
    EXPECT_LT(mlp["mfu_causal"].get<double>(), 0.9);
    // 26.4 TFLOP, lecture 11 of CS231n.
    EXPECT_NEAR(mlp["flops_per_s_per_rank"].get<double>() * mlp["step_time_s"].get<double>(), 26.4e12, 0.1e12);
}

// Llama 3 405B, table 4 of its report: 430 of 989.4 TFLOP/s are 43.5 %.
TEST_F(Forecast, AShortTableOfPublishedRunsShowsItsRows) {
    const std::string row =
        R"({"id": "llama3-1", "family": "llama-3", "model": "Llama-3.1-405B", "layers": 126, "hidden": 16384,
            "ffn": 53248, "heads": 128, "kv_heads": 8, "vocab": 128256, "mlp": "swiglu", "gpu": "H100", "tp": 8, "pp": 16,
            "vpp": 7, "zero_stage": 2, "micro_batch": 1, "precision": "bf16", "num_gpus": 8192, "seq_len": 8192,
            "global_batch": 2048, "tflops_per_gpu": 430})";
    const std::string table = write("rows.json", concat("{\"rows\": [", row, "]}"));
    ASSERT_EQ(run_words("simulate", {"--table", table}), 0) << err;
    const size_t at = out.find("llama3-1 ");
    ASSERT_NE(at, std::string::npos) << out;
    const std::string line = out.substr(at, out.find('\n', at) - at);
    EXPECT_TRUE(line.ends_with(" 43.5 %")) << line;
    const Json predicted = answer("simulate", {"--table", table})["rows"][0];
    EXPECT_EQ(predicted["id"], "llama3-1");
    EXPECT_NE(line.find(format_percent(predicted["mfu_full"].get<double>())), std::string::npos) << line;
    std::string many = row;
    for (int i = 0; i < 40; ++i) many += ", " + row;
    ASSERT_EQ(run_words("simulate", {"--table", write("many.json", concat("{\"rows\": [", many, "]}"))}), 0) << err;
    EXPECT_EQ(out.find("llama3-1 "), std::string::npos) << out;
    const std::string two = write("two.json", concat("[", row, ", ", row, "]"));
    EXPECT_EQ(run_words("simulate", {"--table", two, "--fit", two + ".site"}), 3);
    EXPECT_EQ(missing("--fit needs 3 rows or more with a measured time, ", err), "");
    EXPECT_EQ(missing("got 2 of 2", err), "");
    EXPECT_EQ(run_words("simulate", {"--table", write("none.json", R"([{"id": "no-sizes"}])")}), 3);
    EXPECT_EQ(missing("none of 1 row can be predicted; the first: no-sizes: ", err), "");
}

TEST_F(Forecast, APipelineHasOneLineOfCommunication) {
    ASSERT_EQ(run_words("simulate", kTiny + Words{"--cluster", "h100", "--ranks", "4", "--set", "parallel.pp=4"}), 0)
        << err;
    EXPECT_NE(out.find("group pp  "), std::string::npos) << out;
    EXPECT_EQ(out.find("group pp 0>1"), std::string::npos) << out;
}

TEST_F(Forecast, VariesKeysOfTheRunAndOfTheCluster) {
    const Words words = kTiny + Words{"--cluster", "h100", "--ranks", "16", "--set", "train.global_batch=64"};
    const Json rows =
        answer("simulate", words + Words{"--vary", "parallel.zero=0,3", "--vary", "network.gbs=5,50"})["variations"];
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_GT(rows[0]["peak_bytes"].get<int64_t>(), rows[1]["peak_bytes"].get<int64_t>());
    EXPECT_GE(rows[2]["step_time_s"].get<double>(), rows[3]["step_time_s"].get<double>());
    EXPECT_EQ(rows[3]["set"], "network.gbs=50");
    EXPECT_EQ(answer("simulate", words + Words{"--set-cluster", "network.gbs=5"})["step_time_s"],
              rows[2]["step_time_s"]);
    // An illegal value has a line of its own; where none is legal, the error is the answer, and nothing else is
    // printed.
    EXPECT_TRUE(answer("simulate", words + Words{"--vary", "parallel.tp=3,1"})["variations"][0].contains("error"));
    for (const char* vary :
         {"parallel.tp=3", "parallel.tp=3,5", "parallel.tpp=1,2", "parallel.tp", "=1", "parallel.tp="})
        refused("simulate", words + Words{"--vary", vary}, vary == std::string("=1") ? "no key" : "tp");
    refused("simulate", words + Words{"--set-cluster", "network.gb=5"}, "network.gbs");
    refused("rehearse", kTiny + Words{"--set-cluster", "network.gbs=5"},
            "--set-cluster has an effect only with --cluster");
    refused("rehearse", kTiny + Words{"--cluster", "cpu-avx2", "--set-cluster", "network.gbs=5"}, "no data sheet");
    refused("simulate", kTiny + Words{"--cluster", "cpu-avx2"}, "tutti bench calibrate");
    refused("simulate", {"--cluster", "h100"}, "give a CONFIG or --model");
    refused("rehearse", {}, "CONFIG is missing");
    refused("rehearse", {"--model", "llama-tinny"}, "the nearest is \"llama-tiny\"");
}

TEST_F(Forecast, PlansWithoutPartsWithAMarginAndBeyondThePositions) {
    const Words words = {"--model", "llama-tiny",     "--cluster", "h100",  "--gpus",
                         "8",       "--global-batch", "16",        "--top", "3"};
    const Json plan = answer("plan", words + Words{"--without", "tp,pp,recompute"});
    for (const Json& finalist : plan["finalists"].elements()) {
        EXPECT_EQ(finalist["axes"]["tp"].get<int64_t>(), 1);
        EXPECT_EQ(finalist["axes"]["pp"].get<int64_t>(), 1);
        EXPECT_EQ(finalist["axes"]["recompute"], "none");
    }
    refused("plan", words + Words{"--without", "offloading"}, "the nearest is offload");
    const Json close = answer("plan", words + Words{"--margin", "0.25"});
    EXPECT_TRUE(says("is left free"));
    const Json far = answer("plan", words + Words{"--seq-len", "100000"});
    EXPECT_EQ(far["seq_len"].get<int64_t>(), 100000);
    EXPECT_TRUE(says("planned with 100000"));
    const Json why = answer("plan", words + Words{"--why-not", "tp 4 ZeRO-1", "--svg", path("why.svg")})["why_not"];
    EXPECT_GT(why["slower"].get<double>(), 0);
    EXPECT_NE(read_file(path("why.svg")).find("</svg>"), std::string::npos);
    refused("plan", words + Words{"--why-not", "ttp 4"}, "no part of a layout");
}

TEST_F(Forecast, SpeaksMegatron) {
    const Words words = {"--model", "llama3-8b", "--cluster", "h100",      "--gpus", "16",         "--global-batch",
                         "32",      "--top",     "1",         "--seq-len", "8192",   "--emit-for", "megatron"};
    ASSERT_EQ(run_words("plan", words + Words{"--emit", path("train.sh")}), 0) << err;
    EXPECT_NE(read_file(path("train.sh")).find("--tensor-model-parallel-size"), std::string::npos);
    const Json again = answer("plan", {"--from-megatron", path("train.sh"), "--cluster", "h100", "--top", "1"});
    EXPECT_EQ(again["gpus"].get<int64_t>(), 16);
    EXPECT_TRUE(again["mine"]["fits"].get<bool>());
    // Megatron's memory for it, and the error of such forecasts: Memory.ErrorsAreThoseOfTheRows checks the figure.
    const Json& theirs = again["mine"]["peer_memory"];
    EXPECT_NEAR(theirs["of_ours"].get<double>() * again["mine"]["peak_bytes"].get<double>() /
                    theirs["peak_bytes"].get<double>(),
                1, 1e-6);
    EXPECT_GT(theirs["published_rows"].get<int64_t>(), 10);
    EXPECT_TRUE(says("published rows such forecasts are"));
    EXPECT_EQ(run_words("plan", {"--from-megatron", path("none.sh"), "--cluster", "h100"}), 3);
    const std::string bare = write("bare.sh", "pretrain_gpt.py --num-layers 2\n");
    refused("plan", {"--from-megatron", bare, "--cluster", "h100"}, "give --ranks");
}

// A flavor of torchtitan's is a preset, so that its file has a model.
TEST_F(Forecast, SpeaksTorchtitan) {
    const std::string file = write("titan.toml",
                                   "[model]\nname = \"qwen3\"\nflavor = \"0.6B\"\n[training]\nlocal_batch_size = 2\n"
                                   "global_batch_size = 16\nseq_len = 2048\n");
    const Words words = {"--from-torchtitan", file, "--cluster", "h100", "--gpus", "8", "--top", "1"};
    const Json plan = answer("plan", words);
    EXPECT_EQ(plan["model"].text(), "qwen3-0.6b");
    EXPECT_EQ(plan["global_batch"].get<int64_t>(), 16);
    EXPECT_TRUE(plan["mine"]["peer_memory"].contains("published_rows"));
    refused("plan", words + Words{"--model", "llama3-8b"}, "has a model; leave out --model");
}

TEST_F(Forecast, DrawsTheMemoryOverAStep) {
    ASSERT_EQ(run_words("rehearse", kTiny + Words{"--cluster", "h100", "--svg", path("memory.svg")}), 0) << err;
    const std::string svg = read_file(path("memory.svg"));
    EXPECT_NE(svg.find("backward of model.layers"), std::string::npos);
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
}

// The lines of the source that a step's page shows.
std::vector<std::string> lines_of(const std::string& page) {
    std::vector<std::string> lines;
    const std::string begin = "id=\"code\">";
    std::string code = page.substr(page.find(begin) + begin.size());
    code.resize(code.find("</pre>"));
    for (size_t at = code.find("<div>"); at != std::string::npos; at = code.find("<div>", at + 1))
        lines.push_back(code.substr(at + 5, code.find("</div>", at) - at - 5));
    return lines;
}

// The page of a step: every rank's spans, memory and operations, in one file that asks for no other.
TEST_F(Forecast, WritesAStepAsAPage) {
    const Words words = kTiny + Words{"--ranks", "4", "--set", "parallel.tp=2", "--set", "parallel.pp=2"};
    ASSERT_EQ(run_words("rehearse", words + Words{"--cluster", "h100", "--html", path("step.html")}), 0) << err;
    const std::string page = read_file(path("step.html"));
    EXPECT_EQ(page.find("http"), std::string::npos);
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const size_t from = page.find(begin) + begin.size();
    const Json data = Json::parse(page.substr(from, page.find("</script>", from) - from));
    ASSERT_EQ(data["ranks"].size(), 4u);
    EXPECT_GT(data["grids"].size(), 4u);
    for (const Json& rank : data["ranks"].elements()) {
        std::set<std::string> meanings, groups;
        for (const Json& span : rank["spans"].elements()) {
            EXPECT_LE(span["begin"].get<double>(), span["end"].get<double>());
            meanings.insert(span["meaning"].get<std::string>());
            groups.insert(span["group"].get<std::string>());
            if (span["meaning"] == "communication") {
                EXPECT_GE(span["ranks"].size(), 2u);
            }
            if (span["name"] == "optimizer") {
                EXPECT_NE(lines_of(page)[span["line"].get<size_t>()].find("optimizer"), std::string::npos);
            }
        }
        for (const char* meaning : {"forward", "backward", "optimizer", "communication"})
            EXPECT_TRUE(meanings.contains(meaning)) << meaning;
        EXPECT_TRUE(groups.contains("tp"));
        EXPECT_GT(rank["memory"].size(), 10u);
    }
    refused("rehearse", words + Words{"--html", path("no.html")}, "name one, such as --cluster h100");
}

}  // namespace
}  // namespace tutti::cli::forecast_test
