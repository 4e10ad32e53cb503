// Whole runs in this process: resume bit for bit, the same run under any accumulation and recompute policy, prediction
// of memory, steps that are not finite. Tests that need a separate process are in tests/.
#include "tutti/train/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/infer/generate.h"
#include "tutti/infer/stored_model.h"
#include "tutti/rehearsal/present.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;

class TrainerTest : public SmallRun {
  protected:
    TrainOptions options(const std::string& out, const std::vector<std::string>& set = {}, int ranks = 1) const {
        std::vector<std::string> all = {"train.steps=8", "optimizer.warmup_steps=2", "checkpoint.every=3"};
        all.insert(all.end(), set.begin(), set.end());
        return SmallRun::options(out, all, ranks);
    }

    // A run that changes its layout after every step ends as that of one rank.
    void resumes_under_any_other_layout(std::vector<std::string> set);

    static Json totals(const TrainOptions& o) { return Json::parse(read_file(o.out + "/run.json")); }
    static int64_t workspace_bytes(const TrainOptions& o) {
        return totals(o).at("memory").at("workspace").get<int64_t>();
    }

    // Counts of the first step of a run equal the rehearsal: memory of every rank by purpose, and communication by
    // group and operation, of the first one.
    static void expect_as_rehearsed(const TrainOptions& o, const std::string& what) {
        const auto json = totals(o);
        const auto& rehearsed = json.at("rehearsed");
        EXPECT_EQ(json.at("memory"), rehearsed.at("memory")) << what;
        EXPECT_EQ(json.at("communication"), rehearsed.at("communication")) << what;
        ASSERT_EQ(json.at("ranks").size(), to_size(o.ranks)) << what;
        EXPECT_EQ(json.at("ranks")[0].at("memory"), json.at("memory")) << what;
        engine::Machine machine = engine::machine_of(o.run, comm::local_rank({}, 0, o.ranks), "");
        for (int rank = 0; rank < o.ranks; ++rank) {
            const auto r = rehearsal::rehearse(o.run, rehearsal::target_of(machine), o.ranks, rank);
            EXPECT_EQ(json.at("ranks")[to_size(rank)].at("memory"), rehearsal::to_json(r.memory.at_peak))
                << what << ", rank " << rank;
        }
    }

    // Every logged value that is not a time (nor traffic, of which saving has its part), by step.
    static std::vector<std::string> metrics(const TrainOptions& o) {
        return logged(o, [](const std::string& line) {
            auto json = Json::parse(line);
            for (const char* key : {"step_ms", "tokens_per_s", "mfu", "hfu", "mem_peak_bytes", "comm_bytes", "comm",
                                    "ranks", "seconds", "time"})
                json.erase(key);
            return json.dump();
        });
    }
};

TEST_F(TrainerTest, LearnsAndLogsEveryStepOnce) {
    const auto o = options("run", {"train.steps=30", "precision.compute=bf16"});
    const auto outcome = train(o);
    const auto lines = metrics(o);
    ASSERT_EQ(lines.size(), 30u);
    const double first = Json::parse(lines.front()).at("loss").get<double>();
    EXPECT_NEAR(first, std::log(256), 0.3);       // untrained: nearly uniform over 256 bytes
    EXPECT_LT(outcome.loss, std::log(10) + 0.4);  // ten symbols, drawn uniformly: ln 10 is the best possible
    EXPECT_GT(outcome.loss, std::log(10) - 0.4);
    for (const char* name : {"config.toml", "run.json", "report.html"})
        EXPECT_TRUE(fs::exists(o.out + "/" + name)) << name;
}

TEST_F(TrainerTest, ResumesAtAnyStepBitForBit) {
    for (const char* compute : {"f32", "bf16"}) {
        const std::vector<std::string> set = {concat("precision.compute=", compute), "model.dropout=0.1"};
        const auto whole = options(concat("whole", compute), set);
        train(whole);
        for (int64_t stop = 1; stop < 8; ++stop) {
            auto parts = options(concat("parts", compute, stop), set);
            int64_t asked = 0;
            parts.stop_requested = [&] { return ++asked == stop; };
            const auto first = train(parts);
            EXPECT_TRUE(first.preempted);
            EXPECT_EQ(first.step, stop);
            parts.stop_requested = [] { return false; };
            EXPECT_EQ(train(parts).step, 8);
            EXPECT_EQ(metrics(parts), metrics(whole)) << compute << ", stopped after step " << stop;
            EXPECT_EQ(weights(parts), weights(whole)) << compute << ", stopped after step " << stop;
        }
    }
}

// Eight steps, each under another layout, which resumes the checkpoint of the one before.
void TrainerTest::resumes_under_any_other_layout(std::vector<std::string> set) {
    set.insert(set.end(),
               {"precision.compute=f32", "train.micro_batch=1", "train.global_batch=4", "checkpoint.every=1"});
    const auto whole = options("whole", set);
    const auto one_rank = train(whole);
    const std::pair<int, std::vector<std::string>> layouts[] = {
        {2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
        {4, {"parallel.cp=2", "parallel.zero=3"}},
        {1, {}},
        {4, {"parallel.tp=2", "parallel.cp=2", "parallel.sequence_parallel=false"}},
        {2, {"parallel.cp=2", "parallel.zero=0", "parallel.cp_method=all_gather"}},
        {4, {"parallel.pp=2", "parallel.tp=2", "parallel.zero=2"}},
        {8, {"parallel.tp=2", "parallel.cp=2", "parallel.zero=3"}},
        {8, {"parallel.cp=4", "parallel.cp_ulysses=2", "parallel.dp_replicate=2", "parallel.zero=1"}}};
    TrainOutcome outcome;
    for (const auto& [ranks, axes] : layouts) {
        std::vector<std::string> all = set;
        all.insert(all.end(), axes.begin(), axes.end());
        auto o = options("parts", all, ranks);
        o.stop_requested = [] { return true; };
        outcome = train(o);
    }
    EXPECT_EQ(outcome.step, 8);
    EXPECT_NEAR(outcome.loss, one_rank.loss, 1e-5 * one_rank.loss);
    const auto lines = metrics(whole), of_parts = metrics(options("parts", set));
    ASSERT_EQ(lines.size(), of_parts.size());
    for (size_t i = 0; i < lines.size(); ++i) {
        const auto a = Json::parse(lines[i]), b = Json::parse(of_parts[i]);
        EXPECT_NEAR(b.at("loss").get<double>(), a.at("loss").get<double>(), 1e-5 * a.at("loss").get<double>()) << i;
        EXPECT_NEAR(b.at("grad_norm").get<double>(), a.at("grad_norm").get<double>(),
                    1e-4 * a.at("grad_norm").get<double>())
            << i;
    }
}

TEST_F(TrainerTest, ResumesUnderAnyOtherLayout) { resumes_under_any_other_layout({}); }

TEST_F(TrainerTest, ConvolutionsResumeUnderAnyOtherLayout) {
    resumes_under_any_other_layout({"model.preset=lfm2-tiny", "model.conv_layers=0"});
}

// Keys, values and the states of convolutions lie on other ranks, and the tokens are those of one.
TEST_F(TrainerTest, ASampleIsThatOfOneRankUnderAnyLayout) {
    for (const std::vector<std::string>& model : std::vector<std::vector<std::string>>{
             {"model.kv_heads=2"}, {"model.preset=lfm2-tiny", "model.conv_layers=0"}}) {
        const auto sample = [&](const std::string& name, int ranks, const std::vector<std::string>& axes) {
            std::vector<std::string> all = {"precision.compute=f32", "train.micro_batch=1", "log.sample_tokens=30"};
            all.insert(all.end(), model.begin(), model.end());
            all.insert(all.end(), axes.begin(), axes.end());
            const auto o = options(concat(name, model.size()), all, ranks);
            train(o);
            return totals(o).at("sample").get<std::string>();
        };
        const std::string of_one = sample("one", 1, {});
        EXPECT_GE(of_one.size(), 30u);
        EXPECT_EQ(sample("tp", 2, {"parallel.tp=2"}), of_one);
        EXPECT_EQ(sample("pp", 2, {"parallel.pp=2"}), of_one);
        EXPECT_EQ(sample("cp", 2, {"parallel.cp=2"}), of_one);
        EXPECT_EQ(sample("all", 8, {"parallel.tp=2", "parallel.pp=2", "parallel.cp=2"}), of_one);
    }
}

TEST_F(TrainerTest, RecomputePolicyAndSavingInTheBackgroundChangeNoBit) {
    const auto stored = options("none", {"model.layers=3", "model.dropout=0.1"});
    train(stored);
    for (const char* policy : {"full", "sqrt", "every:2"}) {
        const auto o = options(policy, {"model.layers=3", "model.dropout=0.1", "checkpoint.async=false",
                                        concat("recompute.policy=", policy)});
        train(o);
        EXPECT_EQ(metrics(o), metrics(stored)) << policy;
        EXPECT_EQ(weights(o), weights(stored)) << policy;
    }
}

// With products that our own makes on every ISA, in two microbatches.
const std::vector<std::string> kWide = {"model.width=512",   "model.head_dim=256", "model.ffn=512",
                                        "train.seq_len=288", "model.layers=1",     "train.steps=3"};

// Weights that stay packed are those of their step: of one rank, of several, in the head's chunks, with forwards that
// run again.
TEST_F(TrainerTest, PackedWeightsChangeNoBit) {
    struct Case {
        std::vector<std::string> set;
        int ranks = 1;
    };
    const std::vector<std::string> gpt2 = {"model.preset=gpt2-124m", "model.width=32",        "model.heads=2",
                                           "model.kv_heads=2",       "model.ffn=128",         "model.vocab=300",
                                           "model.layers=2",         "model.max_positions=64"};
    for (const Case& c :
         {Case{{}}, Case{{"recompute.policy=full", "model.tie_embeddings=false"}}, Case{gpt2}, Case{kWide},
          Case{{"parallel.zero=2", "train.micro_batch=1", "train.seq_len=32", "train.global_batch=8"}, 2},
          Case{{"model.vocab=80000", "train.seq_len=256", "train.micro_batch=4", "train.steps=2"}}}) {
        const auto make = [&](const char* packing) {
            std::vector<std::string> all = c.set;
            all.push_back(concat("train.packed_weights=", packing));
            return options(concat(packing, c.set.size(), c.ranks), all, c.ranks);
        };
        const auto never = make("never"), always = make("always");
        train(never);
        train(always);
        EXPECT_EQ(metrics(always), metrics(never)) << c.set.size();
        EXPECT_EQ(weights(always), weights(never)) << c.set.size();
        if (c.set == kWide) {  // they were kept
            EXPECT_GT(workspace_bytes(always), workspace_bytes(never));
        }
    }
}

TEST_F(TrainerTest, AThreadThatCommunicatesChangesNoBit) {
    for (const int zero : {1, 3}) {
        const auto make = [&](bool thread) {
            return options(concat("zero", zero, thread),
                           {"train.micro_batch=1", concat("parallel.zero=", zero),
                            concat("comm.progress_thread=", thread ? "true" : "false")},
                           2);
        };
        const auto without = make(false), with = make(true);
        train(without);
        train(with);
        EXPECT_EQ(metrics(with), metrics(without)) << zero;
        EXPECT_EQ(weights(with), weights(without)) << zero;
    }
}

// The mean over the global batch must not depend on how it is cut: f32 loss and norm within 1e-5 relative.
TEST_F(TrainerTest, AccumulationDoesNotChangeTheRun) {
    const auto whole = options("one", {"precision.compute=f32", "train.micro_batch=4"});
    train(whole);
    for (int64_t micro : {1, 2}) {
        const auto cut = options(concat("cut", micro), {"precision.compute=f32", concat("train.micro_batch=", micro)});
        train(cut);
        const auto a = metrics(whole), b = metrics(cut);
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i)
            for (const char* key : {"loss", "grad_norm"}) {
                const double x = Json::parse(a[i]).at(key).get<double>(), y = Json::parse(b[i]).at(key).get<double>();
                EXPECT_NEAR(x, y, 1e-5 * std::abs(x)) << key << " of step " << i + 1;
            }
    }
}

// With masked targets, sequences have different weights; the mean is over the valid tokens of the global batch. The
// reference is one microbatch, whose mean is taken in one piece.
TEST_F(TrainerTest, TheMeanIsOverValidTokensHoweverTheBatchIsCut) {
    std::ofstream records(path("records.jsonl"));
    for (uint64_t i = 0; i < 200; ++i)
        records << R"({"prompt": ")" << std::string(uniform_below(random_key(4, "prompt"), i, 30), 'p')
                << R"(", "completion": ")" << std::string(1 + uniform_below(random_key(4, "completion"), i, 5), 'c')
                << "\"}\n";
    records.close();
    const auto run = [&](const char* out, int64_t micro) {
        auto o = options(out, {"precision.compute=f32", concat("train.micro_batch=", micro), "data.documents=respected",
                               "data.eod=0", "data.train=" + path("records.jsonl")});
        train(o);
        return metrics(o);
    };
    const auto whole = run("whole", 4), cut = run("cut", 1);
    ASSERT_EQ(whole.size(), cut.size());
    int64_t tokens = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
        const auto a = Json::parse(whole[i]), b = Json::parse(cut[i]);
        for (const char* key : {"loss", "grad_norm"})
            EXPECT_NEAR(a.at(key).get<double>(), b.at(key).get<double>(), 1e-5 * a.at(key).get<double>()) << key;
        EXPECT_EQ(a.at("tokens"), b.at("tokens"));
        tokens = a.at("tokens").get<int64_t>();
    }
    EXPECT_GT(tokens, 0);
    EXPECT_LT(tokens, 8 * 4 * 16 / 2);  // of 8 steps: most are prompts
}

// One rank of three throws after a random step, again and again: the others stop, the run fails with its error, the
// next start continues, and the end equals that of an undisturbed run.
TEST_F(TrainerTest, ExceptionsOfRanksLoseNothing) {
    const std::vector<std::string> set = {"train.global_batch=6", "train.steps=40", "checkpoint.every=1",
                                          "parallel.zero=2"};
    const auto whole = options("whole", set, 3);
    train(whole);
    auto o = options("thrown", set, 3);
    std::mt19937 random(20261121);
    for (int attempt = 0; attempt < 20; ++attempt) {
        std::atomic<int> calls{1 + static_cast<int>(random() % 11)};  // of all ranks, in any order
        o.stop_requested = [&] {
            check(--calls != 0, "a rank of the test gives up");
            return false;
        };
        try {
            train(o);
            EXPECT_GT(calls, 0) << "the failure of a rank was not reported";
        } catch (const Error& e) {
            EXPECT_NE(std::string(e.what()).find("a rank of the test gives up"), std::string::npos) << e.what();
        }
    }
    o.stop_requested = [] { return false; };
    train(o);
    EXPECT_EQ(weights(o), weights(whole));
    EXPECT_EQ(metrics(o), metrics(whole));
}

// On one rank, for everything that changes what a step holds.
TEST_F(TrainerTest, AStepIsAsRehearsed) {
    std::vector<std::string> wide_packed = kWide;
    wide_packed.emplace_back("train.packed_weights=always");
    const std::vector<std::vector<std::string>> cases = {
        {},
        {"precision.compute=f32"},
        {"precision.compute=f32", "recompute.policy=full"},
        {"recompute.policy=sqrt", "model.layers=4"},
        {"optimizer.name=sgd"},
        {"model.dropout=0.1"},
        {"model.tie_embeddings=false", "model.qkv_bias=true", "model.output_bias=true", "model.mlp_bias=true"},
        {"model.head_norm=true", "model.head_dim=24", "model.qkv_bias=true"},
        {"model.head_norm=true", "precision.compute=f32", "recompute.policy=full", "model.dropout=0.1"},
        {"model.window=5"},
        {"recompute.policy=selective", "model.layers=4"},
        {"parallel.zero=3", "model.layers=4"},
        {"parallel.zero=2", "train.micro_batch=1", "model.layers=4"},
        {"offload.optimizer=true", "offload.activations=true", "model.layers=4"},
        {"offload.activations=true", "recompute.policy=every:2", "model.layers=4"},
        {"offload.activations=true", "recompute.policy=selective", "precision.compute=f32", "model.dropout=0.1"},
        {"offload.optimizer=true", "offload.params=true", "offload.activations=true", "parallel.zero=3"},
        {"data.documents=respected", "data.eod=10"},
        {"model.preset=lfm2-tiny", "model.layers=4"},
        {"model.preset=lfm2-tiny", "model.layers=4", "recompute.policy=selective", "model.conv_bias=true"},
        {"model.preset=lfm2-tiny", "model.layers=4", "recompute.policy=full", "precision.compute=f32"},
        {"model.preset=lfm2-tiny", "model.layers=4", "offload.activations=true", "parallel.zero=3"},
        {"model.preset=lfm2-tiny", "model.layers=4", "data.documents=respected", "data.eod=10"},
        {"train.packed_weights=always"},
        wide_packed,
        {"train.packed_weights=always", "recompute.policy=full", "model.tie_embeddings=false"},
        {"train.packed_weights=always", "model.vocab=80000", "train.seq_len=256", "train.micro_batch=4",
         "train.steps=2"},  // chunks of the head's loss
        {"model.preset=gpt2-124m", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.head_dim=16",
         "model.ffn=128", "model.vocab=300", "model.layers=2", "model.max_positions=64"}};
    for (size_t i = 0; i < cases.size(); ++i) {
        const auto o = options(concat("memory", i), cases[i]);
        train(o);
        expect_as_rehearsed(o, concat("case ", i));
    }
}

// Gradients that are summed over more than data parallelism: norms over the ranks of tp, copies of key heads, a tied
// matrix over the stages of a pipeline. ZeRO-0 adds them in the order of the others.
TEST_F(TrainerTest, EveryStageOfZeroHasTheSameBitsBesideOtherAxes) {
    const std::pair<int, std::vector<std::string>> layouts[] = {
        {4, {"parallel.tp=2"}},
        {8, {"parallel.tp=2", "parallel.cp=2"}},
        {8, {"parallel.tp=2", "parallel.dp_replicate=2"}},
        {6, {"parallel.pp=2", "train.global_batch=6"}},
        {8, {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=zb-h1"}}};
    for (const auto& [ranks, layout] : layouts) {
        std::vector<std::string> first;
        for (const char* zero : {"0", "1", "2", "3"}) {
            std::vector<std::string> set = {"train.steps=3",         "train.micro_batch=1",      "train.global_batch=8",
                                            "precision.compute=f32", "parallel.accumulate=full", "checkpoint.every=0"};
            set.insert(set.end(), layout.begin(), layout.end());
            set.push_back(concat("parallel.zero=", zero));
            const auto o = options(concat("bits", ranks, layout[0], layout.size(), zero), set, ranks);
            train(o);
            const auto lines = logged(o, [](const std::string& line) {
                const auto json = Json::parse(line);
                return concat(json.at("loss").dump(), ' ', json.at("grad_norm").dump());
            });
            if (first.empty()) first = lines;
            EXPECT_EQ(lines, first) << layout[0] << ", zero " << zero;
        }
    }
}

// The same of four ranks: shards with their padding, the buffers of units, what arrives of a later microbatch.
TEST_F(TrainerTest, AStepOfManyRanksIsAsRehearsed) {
    for (const char* zero : {"0", "1", "2", "3"})
        for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
                 {"train.global_batch=4"},
                 {"train.global_batch=8", "model.tie_embeddings=false"},
                 {"train.global_batch=8", "parallel.accumulate=full", "precision.compute=f32"},
                 {"train.global_batch=8", "parallel.dp_replicate=2", "recompute.policy=full"},
                 {"train.global_batch=8", "offload.activations=true", "offload.optimizer=true"},
                 {"train.global_batch=24", "recompute.policy=selective"},
                 {"train.global_batch=8", "data.documents=respected", "data.eod=10"},
                 {"train.global_batch=8", "train.seq_len=32", "train.packed_weights=always"},
                 {"train.global_batch=4", "parallel.tp=2"},
                 {"train.global_batch=4", "parallel.tp=2", "parallel.sequence_parallel=false", "recompute.policy=full"},
                 {"train.global_batch=4", "parallel.tp=2", "parallel.tp_overlap=3", "recompute.policy=selective"},
                 {"train.global_batch=4", "parallel.tp=2", "parallel.tp_overlap=2", "parallel.sequence_parallel=false",
                  "offload.activations=true"},
                 {"train.global_batch=8", "parallel.tp=2", "parallel.tp_overlap=2", "train.packed_weights=always"},
                 {"train.global_batch=4", "parallel.cp=2", "train.seq_len=32", "recompute.policy=selective"},
                 {"train.global_batch=2", "parallel.tp=2", "parallel.cp=2", "offload.activations=true"},
                 {"train.global_batch=4", "parallel.cp=2", "parallel.cp_method=ulysses", "offload.activations=true"},
                 {"train.global_batch=4", "parallel.cp=4", "parallel.cp_ulysses=2", "data.documents=respected",
                  "data.eod=10"},
                 {"train.global_batch=8", "parallel.cp=2", "parallel.cp_method=all_gather", "model.window=5"},
                 {"train.global_batch=4", "parallel.cp=4", "model.window=5", "data.documents=respected", "data.eod=10"},
                 {"train.global_batch=4", "model.preset=lfm2-tiny", "parallel.tp=2"},
                 {"train.global_batch=4", "model.preset=lfm2-tiny", "parallel.cp=2", "recompute.policy=selective"},
                 {"train.global_batch=4", "model.preset=lfm2-tiny", "parallel.cp=4", "parallel.cp_ulysses=2",
                  "data.documents=respected", "data.eod=10"},
                 {"train.global_batch=8", "model.preset=lfm2-tiny", "parallel.pp=2", "parallel.schedule=zb-v"},
                 {"train.global_batch=8", "parallel.pp=2"},
                 {"train.global_batch=8", "parallel.pp=4", "parallel.schedule=zb-h2", "model.tie_embeddings=false"},
                 {"train.global_batch=6", "parallel.pp=2", "parallel.schedule=interleaved",
                  "parallel.virtual_stages=2"},
                 {"train.global_batch=8", "parallel.pp=2", "parallel.schedule=zb-v", "recompute.policy=full"},
                 {"train.global_batch=16", "parallel.pp=2", "parallel.schedule=dualpipe", "offload.activations=true"},
                 {"train.global_batch=8", "parallel.pp=2", "parallel.schedule=dualpipe-v", "parallel.tp=2"},
                 {"train.global_batch=8", "parallel.pp=2", "parallel.schedule=zb-h1", "recompute.policy=selective"},
                 {"train.global_batch=8", "parallel.unsharded_stages=1"},
                 {"train.global_batch=8", "parallel.pp=2", "train.eval_every=1", "data.valid_fraction=0.2",
                  "parallel.unsharded_stages=1"},
                 {"train.global_batch=16", "parallel.pp=2", "parallel.schedule=dualpipe",
                  "parallel.unsharded_stages=2"},
                 {"train.global_batch=8", "parallel.pp=2", "parallel.schedule=zb-v", "recompute.policy=full",
                  "parallel.unsharded_stages=1"},
                 {"train.global_batch=8", "parallel.strategy=parameter_server"}}) {
            if (more.back() == "parallel.strategy=parameter_server" && std::string(zero) != "0") continue;
            if (more.back() == "train.packed_weights=always" && std::string(zero) == "3") continue;
            if (more.back().starts_with("parallel.unsharded_stages") && std::string(zero) != "3") continue;
            std::vector<std::string> set = {"train.micro_batch=1", "train.steps=2", "model.layers=4",
                                            concat("parallel.zero=", zero)};
            set.insert(set.end(), more.begin(), more.end());
            const auto o = options(concat("ranks", zero), set, 4);
            fs::remove_all(o.out);
            train(o);
            expect_as_rehearsed(o, concat("ZeRO-", zero, ", ", more[0], " ", more.size() > 1 ? more[1] : ""));
        }
}

// Rules, types of their state and layouts as they come: what is legal is as rehearsed, what is not names a legal
// choice.
TEST_F(TrainerTest, AnyTypesOfStateAreAsRehearsed) {
    std::mt19937 random(49);
    const auto pick = [&](const std::string& key, const std::vector<std::string>& of) {
        return concat(key, '=', of[random() % of.size()]);
    };
    const std::vector<std::vector<std::string>> layouts = {
        {"parallel.dp_shard=4"},
        {"parallel.dp_replicate=2"},
        {"parallel.tp=2"},
        {"parallel.tp=2", "parallel.sequence_parallel=false"},
        {"parallel.cp=2"},
        {"parallel.pp=2", "parallel.schedule=zb-v"},
        {"model.preset=moe-tiny", "model.moe.top_k=8", "parallel.ep=2"},
        {"offload.optimizer=true"},
        {"offload.params=true"},
        {"parallel.strategy=parameter_server"}};
    int legal = 0, refused = 0;
    for (int i = 0; i < 48; ++i) {
        std::vector<std::string> set = {"train.micro_batch=1",
                                        "train.global_batch=8",
                                        "train.steps=2",
                                        "model.layers=4",
                                        pick("optimizer.name", {"adamw", "adamw", "sgd", "lion", "muon"}),
                                        pick("optimizer.m", {"f32", "bf16", "u8"}),
                                        pick("optimizer.v", {"f32", "f32", "bf16", "u8"}),
                                        pick("precision.compute", {"bf16", "bf16", "f32"}),
                                        pick("precision.master", {"f32", "f32", "none"}),
                                        pick("precision.gradients", {"f32", "bf16"}),
                                        pick("precision.reduce", {"auto", "auto", "bf16", "f32"}),
                                        pick("parallel.accumulate", {"auto", "full"}),
                                        pick("parallel.zero", {"0", "1", "2", "3"})};
        const std::vector<std::string>& layout = layouts[to_size(i) % layouts.size()];
        set.insert(set.end() - 9, layout.begin(), layout.end());
        const std::string what = joined(set, " ");
        SCOPED_TRACE(what);
        try {
            const auto o = options(concat("types", i), set, 4);
            train(o);
            expect_as_rehearsed(o, what);
            ++legal;
        } catch (const UsageError& error) {
            const std::string why = error.what();
            EXPECT_TRUE(why.find("set ") != std::string::npos || why.find("leave it out") != std::string::npos ||
                        why.find("choose ") != std::string::npos)
                << why;
            ++refused;
        }
    }
    EXPECT_GE(legal, 12);
    EXPECT_GE(refused, 12);
}

TEST_F(TrainerTest, SkipsStepsThatAreNotFiniteAndStopsWhenAllAre) {
    // A first update of 1e30 makes every later forward overflow.
    const auto o = options(
        "diverges", {"optimizer.lr=1e30", "optimizer.schedule=constant", "optimizer.warmup_steps=0", "optimizer.clip=0",
                     "train.steps=20", "train.max_skipped=3", "precision.compute=f32", "checkpoint.every=1"});
    try {
        train(o);
        FAIL() << "should have stopped";
    } catch (const Error& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find("3 steps in a row were not finite"), std::string::npos) << message;
        EXPECT_NE(message.find("optimizer.lr"), std::string::npos) << message;
        EXPECT_EQ(e.exit_code(), 4);
    }
    const auto lines = metrics(o);
    const auto last = Json::parse(lines.back());
    EXPECT_EQ(last.at("skipped"), 3);
    EXPECT_TRUE(last.at("loss").is_null() || last.at("grad_norm").is_null());
    EXPECT_FALSE(last.at("skip_reason").get<std::string>().empty());
}

// A rate of 1e30 from step 5 on: step 5 is finite and ruins the weights, so the checkpoint of step 5 is useless. The
// checkpoint of step 4, proved good by step 5, is not pruned, and the message names it.
TEST_F(TrainerTest, ARuinedRunKeepsItsLastGoodCheckpoint) {
    const auto good = options("ruined", {"train.steps=4", "checkpoint.every=1", "checkpoint.keep=1"});
    train(good);
    const auto ruined = options("ruined", {"train.steps=30", "checkpoint.every=1", "checkpoint.keep=1",
                                           "optimizer.lr=1e30", "optimizer.schedule=constant",
                                           "optimizer.warmup_steps=0", "optimizer.clip=0", "train.max_skipped=5"});
    std::string message;
    try {
        train(ruined);
    } catch (const Error& e) {
        message = e.what();
    }
    const std::string proven = good.out + "/checkpoints/step-0000000004";
    EXPECT_NE(message.find("resume from " + proven), std::string::npos) << message;
    EXPECT_TRUE(fs::exists(proven + "/MANIFEST.json"));
    auto again = options("ruined", {"train.steps=6", "checkpoint.every=1"});
    again.resume = proven;
    EXPECT_EQ(train(again).skipped, 0);
}

TEST_F(TrainerTest, RefusesAnotherModelSeedOrData) {
    const auto o = options("run");
    train(o);
    const auto message = [&](const TrainOptions& other) {
        try {
            train(other);
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    EXPECT_NE(message(options("run", {"model.ffn=64"})).find("model.ffn = 64"), std::string::npos);
    EXPECT_NE(message(options("run", {"train.seed=7"})).find("train.seed = 7"), std::string::npos);
    std::ofstream(path("text.txt"), std::ios::app) << "more";
    const char* other_data = "the training data is not what this run was trained on";
    EXPECT_NE(message(options("run")).find(other_data), std::string::npos);

    // The same tokens with other targets.
    const auto tokens = read_file(path("text.txt")).substr(0, 4000);
    folder_.write("masked.bin", tokens);  // two bytes an id
    folder_.write("masked.mask", std::string(2000, '\1'));
    const auto masked = options("masked", {"data.train=" + path("masked.bin"), "model.vocab=32768"});
    train(masked);
    EXPECT_EQ(message(masked), "no error");
    folder_.write("masked.mask", std::string(1999, '\1') + '\0');
    EXPECT_NE(message(masked).find(other_data), std::string::npos);
    // Earlier versions wrote the fingerprint of the tokens alone.
    for (const auto& step : fs::directory_iterator(masked.out + "/checkpoints")) {
        if (!step.is_directory()) continue;
        const std::string path = step.path() / checkpoint::kManifestName;
        auto manifest = checkpoint::parse_manifest(read_file(path), path);
        manifest.data_fingerprint.resize(16);
        std::ofstream(path) << checkpoint::write_manifest(manifest);
    }
    EXPECT_EQ(message(masked), "no error");
}

// The evaluation that a stop has cut off is made before the first step, which is then as rehearsed (TearDown), also
// where the last unit of a forward has weights of the first.
TEST_F(TrainerTest, AStepBehindAnEvaluationGathersAsRehearsed) {
    auto o = options("run",
                     {"model.tie_embeddings=true", "parallel.zero=3", "train.steps=3", "train.eval_every=1",
                      "train.eval_batches=100", "data.valid_fraction=0.5"},
                     2);
    o.stop_requested = [] { return true; };
    EXPECT_EQ(train(o).step, 1);
    EXPECT_EQ(read_file(o.out + "/metrics.jsonl").find("eval_loss"), std::string::npos) << "it was not cut off";
    o.stop_requested = [] { return false; };
    EXPECT_EQ(train(o).step, 3);
}

TEST_F(TrainerTest, AFinishedRunIsLeftAsItIs) {
    const auto o = options("run");
    const auto first = train(o);
    const auto read = [&](const char* name) {
        std::ifstream in(o.out + "/" + name);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    std::map<std::string, std::string> before;
    for (const char* name : {"run.json", "metrics.jsonl", "report.html", "config.toml"}) before[name] = read(name);
    const auto second = train(o);
    EXPECT_EQ(second.step, 8);
    EXPECT_EQ(second.checkpoint, first.checkpoint);
    for (const auto& [name, text] : before) EXPECT_EQ(read(name.c_str()), text) << name;
}

TEST_F(TrainerTest, ResumeModes) {
    auto o = options("run");
    o.resume = "strict";
    EXPECT_THROW(train(o), DataError);  // nothing there
    o.resume = "never";
    const auto first = train(o);
    EXPECT_THROW(train(o), UsageError);  // a run is there
    o.resume = first.checkpoint;
    EXPECT_EQ(train(o).step, 8);
    o.resume = path("nowhere");
    EXPECT_THROW(train(o), Error);
}

TEST_F(TrainerTest, EvaluatesAndGeneratesFromACheckpoint) {
    const auto o = options("run", {"data.valid_fraction=0.2", "train.eval_every=4"});
    const auto outcome = train(o);
    EXPECT_TRUE(std::isfinite(outcome.eval_loss));
    infer::LoadedModel loaded = infer::load_model(o.out, {.device = "cpu", .threads = 1});
    EXPECT_EQ(loaded.stored.step, 8);
    const auto text = [&](infer::SamplingOptions sampling) {
        sampling.max_positions = loaded.max_positions;
        std::vector<int32_t> made;
        infer::generate(*loaded.ctx, *loaded.model, {{97, 98}}, sampling, [&](size_t, int32_t token) {
            made.push_back(token);
            return true;
        });
        return made;
    };
    EXPECT_EQ(text({.max_tokens = 40, .seed = 5}), text({.max_tokens = 40, .seed = 5}));  // past the window of 16
    EXPECT_NE(text({.max_tokens = 40, .seed = 5}), text({.max_tokens = 40, .seed = 6}));
    EXPECT_EQ(text({.max_tokens = 9, .temperature = 0}), text({.max_tokens = 9, .temperature = 1, .top_k = 1}));
    EXPECT_EQ(text({.max_tokens = 9, .temperature = 0}), text({.max_tokens = 9, .temperature = 1, .top_p = 1e-9}));
}

}  // namespace
}  // namespace tutti::train
