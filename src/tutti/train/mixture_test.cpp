// A mixture of experts under every axis is the model of one rank: tutti verify, for each kind of router and of loss.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"
#include "tutti/train/verify.h"

namespace tutti::train::mixture_test {
namespace {

namespace fs = std::filesystem;

struct Layout {
    int ranks;
    std::vector<std::string> set;
};

class Mixtures : public ::testing::Test {
  protected:
    Mixtures() {
        std::string text;
        for (int i = 0; i < 500; ++i) text += concat("line ", i * i, " of a text\n");
        folder_.write("text.txt", text);
        write_records("records.jsonl", [](int i) { return 5 + i * 7 % 11; });
    }
    // Records of prompt and completion, which are packed; record i has length(i) tokens, the first as no other, so that
    // no two tokens have the same scores.
    template <class Length>
    void write_records(const char* name, const Length& length) {
        std::string lines;
        for (int i = 0; i < 40; ++i) {
            std::string completion;
            for (int j = 1; j < length(i); ++j) completion += static_cast<char>('a' + (i * i + 5 * j) % 26);
            lines +=
                concat("{\"prompt\": \"", static_cast<char>('0' + i), "\", \"completion\": \"", completion, "\"}\n");
        }
        folder_.write(name, lines);
    }

    // Eight experts of two layers, choices far apart.
    spec::RunSpec run(std::vector<std::string> set) const {
        const std::string text = concat(
            "[model]\npreset = \"moe-tiny\"\nwidth = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 8\nffn = 48\n"
            "init_std = 0.2\nmoe.ffn = 24\n[data]\ntrain = [\"",
            folder_.path("text.txt"),
            "\"]\n[train]\nseq_len = 16\nglobal_batch = 8\nmicro_batch = 1\nthreads = 1\nsteps = 6\n"
            "[optimizer]\nlr = 0.003\nwarmup_steps = 1\n[precision]\ncompute = \"f32\"\n");
        return spec::parse_text(text, "mixture.toml", set);
    }
    void expect_same(const std::vector<std::string>& model, const std::vector<Layout>& layouts) const {
        for (const Layout& layout : layouts) {
            std::vector<std::string> set = model;
            set.insert(set.end(), layout.set.begin(), layout.set.end());
            std::string trace = concat(layout.ranks, " ranks");
            for (const std::string& key : set) trace += " " + key;
            SCOPED_TRACE(trace);
            const spec::RunSpec r = run(set);
            spec::validate(r, layout.ranks);
            // One step: AdamW may turn the rounding of a gradient near 0 into a whole update.
            const VerifyOutcome o = verify({.run = r, .ranks = layout.ranks, .steps = 1});
            EXPECT_NEAR(o.steps[0].loss, o.steps[0].one_rank_loss, 1e-5 * o.steps[0].one_rank_loss);
            EXPECT_LT(o.steps[0].gradient_difference, 1e-5) << o.steps[0].gradient;
        }
    }
    TrainOptions options(const char* name, const std::vector<std::string>& set) const {
        TrainOptions o;
        o.run = run(set);
        o.out = folder_.path(name);
        return o;
    }
    ScratchFolder folder_;
};

const std::vector<Layout> kAxes = {{2, {"parallel.ep=2"}},
                                   {4, {"parallel.ep=2", "parallel.zero=0"}},
                                   {4, {"parallel.ep=4", "parallel.zero=3"}},
                                   {8, {"parallel.ep=8", "parallel.zero=2"}},
                                   {8, {"parallel.ep=4", "parallel.dp_replicate=2", "parallel.zero=3"}},
                                   {2, {"parallel.tp=2"}},
                                   {4, {"parallel.tp=2", "parallel.ep=2"}},
                                   {4, {"parallel.tp=2", "parallel.ep=4", "parallel.sequence_parallel=false"}},
                                   {4, {"parallel.cp=2", "parallel.ep=4"}},
                                   {4, {"parallel.cp=4", "parallel.cp_ulysses=2", "parallel.ep=2"}},
                                   {8, {"parallel.tp=2", "parallel.cp=2", "parallel.ep=8", "parallel.zero=3"}},
                                   {4, {"parallel.pp=2", "parallel.ep=2", "parallel.schedule=zb-h1"}},
                                   {4, {"parallel.etp=2", "parallel.ep=2"}},
                                   {4, {"parallel.etp=4", "parallel.tp=2"}}};

const std::vector<Layout> kSome = {{4, {"parallel.ep=4", "recompute.policy=full"}},
                                   {4, {"parallel.tp=2", "parallel.ep=4", "parallel.sequence_parallel=false"}},
                                   {4, {"parallel.tp=2", "parallel.cp=2", "parallel.ep=2"}}};

TEST_F(Mixtures, UnderEveryAxis) { expect_same({}, kAxes); }

TEST_F(Mixtures, WithRecomputeAndOffload) {
    expect_same(
        {},
        {{2, {"parallel.ep=2", "recompute.policy=selective"}},
         {2, {"parallel.ep=2", "recompute.policy=every:2", "parallel.zero=3", "offload.params=true"}},
         {2, {"parallel.ep=2", "offload.activations=true", "offload.optimizer=true"}},
         {4, {"parallel.pp=2", "parallel.ep=2", "offload.activations=true", "recompute.policy=full"}},
         {4, {"parallel.pp=2", "parallel.ep=2", "parallel.schedule=dualpipe-v", "model.layers=4", "parallel.zero=3"}}});
}

TEST_F(Mixtures, WithASharedExpert) {
    expect_same({"model.moe.shared_ffn=40", "model.moe.shared_gate=true", "model.moe.normalise=false"}, kAxes);
    expect_same({"model.moe.shared_ffn=40", "model.moe.layers=1"}, kSome);
}

TEST_F(Mixtures, WithABiasOfExperts) {
    const std::vector<std::string> model = {"model.moe.score=sigmoid", "model.moe.expert_bias=true",
                                            "model.moe.aux_loss=none", "model.moe.aux_coef=0",
                                            "optimizer.expert_bias_rate=0.01"};
    expect_same(model, kAxes);
    expect_same({"model.moe.groups=4", "model.moe.top_groups=2", "model.moe.scale=2.5"}, kSome);
}

TEST_F(Mixtures, WithEveryBalancingLoss) {
    for (const char* loss : {"microbatch", "sequence", "all_layers"})
        expect_same({concat("model.moe.aux_loss=", loss), "model.moe.aux_coef=0.5", "model.moe.z_coef=0.1",
                     "train.micro_batch=2"},
                    kSome);
}

// Stages send each other the loads of their layers. One layer of the four has no experts.
TEST_F(Mixtures, BalancingOverAllLayersOfAPipeline) {
    const std::vector<std::string> model = {"model.layers=4", "model.moe.layers=0,2-3", "model.moe.aux_loss=all_layers",
                                            "model.moe.aux_coef=0.5", "train.global_batch=16"};
    expect_same(model, {{2, {"parallel.pp=2", "parallel.schedule=gpipe", "recompute.policy=full"}},
                        {4, {"parallel.pp=4"}},
                        {4, {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=zb-h1"}},
                        {2, {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"}},
                        {2, {"parallel.pp=2", "parallel.schedule=zb-v"}},
                        {4, {"parallel.pp=2", "parallel.ep=2", "parallel.schedule=dualpipe-v", "parallel.zero=3"}},
                        {2, {"parallel.pp=2", "parallel.schedule=dualpipe"}}});
}

// The dropped tokens depend on the microbatch, not on the ranks of its tokens.
TEST_F(Mixtures, WithACapacity) {
    for (const char* drop : {"probability", "position"})
        expect_same({"model.moe.capacity_factor=0.7", concat("model.moe.drop=", drop), "train.micro_batch=2"}, kSome);
}

// Windows of records end in padding.
TEST_F(Mixtures, WithPaddingUnderEveryAxis) {
    const std::string records = "data.train=" + folder_.path("records.jsonl");
    expect_same({records, "model.moe.z_coef=0.1", "train.micro_batch=2", "train.global_batch=16"}, kAxes);
    for (const char* loss : {"sequence", "all_layers"})
        expect_same({records, concat("model.moe.aux_loss=", loss), "model.moe.aux_coef=0.5", "data.documents=respected",
                     "model.moe.capacity_factor=0.7", "train.micro_batch=2"},
                    kSome);
    expect_same(
        {records, "model.moe.score=sigmoid", "model.moe.expert_bias=true", "model.moe.aux_loss=none",
         "model.moe.aux_coef=0", "optimizer.expert_bias_rate=0.01", "model.mtp_depth=1", "model.mtp_weight=0.3"},
        kSome);
    // One record of 9 tokens in a window of 17: the last of four ranks has padding alone.
    write_records("nine.jsonl", [](int) { return 9; });
    expect_same({"data.train=" + folder_.path("nine.jsonl"), "model.kv_heads=4", "model.moe.capacity_factor=0.7"},
                {{4, {"parallel.tp=4"}},
                 {4, {"parallel.tp=4", "parallel.ep=4", "parallel.sequence_parallel=false", "recompute.policy=full"}},
                 {4, {"parallel.cp=4", "parallel.cp_ulysses=4"}},
                 {4, {"parallel.cp=4", "parallel.cp_ulysses=4", "parallel.ep=4", "parallel.zero=3"}}});
}

// Padding is as if it were not there: windows of one record each make the same run with 8 more places behind the
// record.
TEST_F(Mixtures, PaddingChangesNothing) {
    write_records("equal.jsonl", [](int) { return 12; });
    const std::vector<std::vector<std::string>> kinds = {
        {"model.moe.aux_loss=microbatch", "model.moe.aux_coef=0.5", "model.moe.capacity_factor=0.7"},
        {"model.moe.aux_loss=sequence", "model.moe.aux_coef=0.5", "model.moe.drop=position",
         "model.moe.capacity_factor=0.9"},
        {"model.moe.aux_loss=all_layers", "model.moe.aux_coef=0.5"},
        {"model.moe.aux_loss=global", "model.moe.aux_coef=0.5"},
        {"model.moe.aux_loss=none", "model.moe.aux_coef=0.0", "model.moe.score=sigmoid", "model.moe.expert_bias=true",
         "optimizer.expert_bias_rate=0.05"}};
    for (size_t i = 0; i < kinds.size(); ++i) {
        const auto lines_of = [&](int64_t seq_len) {
            std::vector<std::string> set = {"data.train=" + folder_.path("equal.jsonl"), "model.moe.z_coef=0.1",
                                            "train.micro_batch=2", concat("train.seq_len=", seq_len), "log.every=1"};
            set.insert(set.end(), kinds[i].begin(), kinds[i].end());
            const TrainOptions o = options(concat(i, "-", seq_len).c_str(), set);
            train(o);
            std::vector<Json> lines;
            std::ifstream in(o.out + "/metrics.jsonl");
            for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
            return lines;
        };
        const std::vector<Json> bare = lines_of(12), padded = lines_of(20);
        ASSERT_EQ(bare.size(), padded.size());
        for (size_t step = 0; step < bare.size(); ++step) {
            for (const char* key : {"tokens", "expert_load", "dropped_share"})
                EXPECT_EQ(padded[step].at(key), bare[step].at(key)) << kinds[i].front() << " " << key << " " << step;
            for (const char* key : {"loss", "aux_loss", "router_entropy", "grad_norm"}) {
                const double wanted = bare[step].at(key).get<double>();
                EXPECT_NEAR(padded[step].at(key).get<double>(), wanted, 1e-5 * wanted)
                    << kinds[i].front() << " " << key << " " << step;
            }
        }
    }
}

// The loads of a step so far depend on how many microbatches pass at once.
TEST_F(Mixtures, GlobalBalancingIsNotCompared) {
    EXPECT_THROW(verify({.run = run({"model.moe.aux_loss=global"}), .ranks = 2}), UsageError);
}

Json last_line(const std::string& directory) {
    std::ifstream in(directory + "/metrics.jsonl");
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return Json::parse(last);
}

// Checkpoints reshard over ep, the bias with them; metrics say the same under every layout.
TEST_F(Mixtures, ResumeUnderAnyOtherLayout) {
    const std::vector<std::string> model = {
        "model.moe.score=sigmoid", "model.moe.expert_bias=true", "log.every=1",
        "model.moe.z_coef=0.01",   "checkpoint.every=1",         "model.moe.shared_ffn=40"};
    const auto train_in = [&](const char* name, int ranks, std::vector<std::string> set, bool stop) {
        set.insert(set.begin(), model.begin(), model.end());
        TrainOptions o = options(name, set);
        o.ranks = ranks;
        if (stop) o.stop_requested = [] { return true; };
        return train(o);
    };
    const TrainOutcome whole = train_in("whole", 1, {}, false);
    TrainOutcome parts;
    for (const Layout& layout : std::vector<Layout>{{2, {"parallel.ep=2"}},
                                                    {4, {"parallel.tp=2", "parallel.ep=4", "parallel.zero=3"}},
                                                    {1, {}},
                                                    {4, {"parallel.pp=2", "parallel.ep=2"}},
                                                    {8, {"parallel.ep=8", "parallel.zero=3"}},
                                                    {4, {"parallel.etp=2", "parallel.cp=2", "parallel.ep=2"}}})
        parts = train_in("parts", layout.ranks, layout.set, true);
    EXPECT_EQ(parts.step, 6);
    EXPECT_NEAR(parts.loss, whole.loss, 1e-5 * whole.loss);
    const Json a = last_line(folder_.path("whole")), b = last_line(folder_.path("parts"));
    EXPECT_EQ(a.at("expert_load"), b.at("expert_load"));
    EXPECT_EQ(a.at("dropped_share"), 0.0);
    for (const char* key : {"aux_loss", "router_entropy", "grad_norm"})
        EXPECT_NEAR(a.at(key).get<double>(), b.at(key).get<double>(), 1e-4 * a.at(key).get<double>()) << key;
    double sum = 0;
    for (const auto& load : a.at("expert_load").at(1)) sum += load.get<double>();
    EXPECT_NEAR(sum, 8, 1e-3);
}

// If every token goes to every expert, loads are even, as a rehearsal assumes: memory and traffic equal the rehearsal.
TEST_F(Mixtures, EvenLoadsAreAsRehearsed) {
    for (const char* zero : {"0", "1", "3"})
        for (const Layout& layout : std::vector<Layout>{
                 {1, {}},
                 {4, {"parallel.ep=4"}},
                 {4, {"parallel.ep=2", "parallel.tp=2", "train.micro_batch=2"}},
                 {4, {"parallel.ep=4", "parallel.tp=2", "parallel.cp=2", "parallel.sequence_parallel=false"}},
                 {4, {"parallel.etp=2", "parallel.ep=2", "recompute.policy=full"}},
                 {4, {"parallel.pp=2", "parallel.ep=2", "recompute.policy=selective", "model.moe.aux_loss=sequence"}},
                 {4, {"parallel.pp=2", "parallel.ep=2", "model.moe.aux_loss=all_layers"}},
                 {2,
                  {"parallel.ep=2", "model.moe.shared_ffn=40", "model.moe.aux_loss=none", "model.moe.aux_coef=0",
                   "model.moe.expert_bias=true", "offload.activations=true"}}}) {
            std::vector<std::string> set = {"model.moe.experts=4", "model.moe.top_k=4", concat("parallel.zero=", zero),
                                            "train.steps=1"};
            set.insert(set.end(), layout.set.begin(), layout.set.end());
            TrainOptions o = options(concat("even", zero).c_str(), set);
            o.ranks = layout.ranks;
            fs::remove_all(o.out);
            train(o);
            const Json json = Json::parse(read_file(o.out + "/run.json")), &rehearsed = json.at("rehearsed");
            EXPECT_EQ(json.at("memory"), rehearsed.at("memory")) << zero << " " << layout.set.back();
            EXPECT_EQ(json.at("communication"), rehearsed.at("communication")) << zero << " " << layout.set.back();
        }
}

// A loss that is added and a bias that moves both even out loads that begin uneven.
TEST_F(Mixtures, BalancingEvensOutTheLoads) {
    const auto largest = [&](const char* name, std::vector<std::string> set) {
        set.insert(set.end(), {"train.steps=120", "model.layers=1", "model.init_std=0.02", "train.seq_len=32",
                               "train.micro_batch=8", "optimizer.lr=0.003"});
        train(options(name, set));
        double most = 0;
        const Json last = last_line(folder_.path(name));
        for (const auto& load : last.at("expert_load").at(0)) most = std::max(most, load.get<double>());
        return most;
    };
    const double none = largest("none", {"model.moe.aux_loss=none", "model.moe.aux_coef=0"});
    EXPECT_LT(largest("aux", {"model.moe.aux_coef=0.1"}), 0.8 * none);
    EXPECT_LT(largest("bias", {"model.moe.aux_loss=none", "model.moe.aux_coef=0", "model.moe.score=sigmoid",
                               "model.moe.expert_bias=true", "optimizer.expert_bias_rate=0.02"}),
              0.8 * none);
}

// A stage without experts does not add to the z-loss, and rank 0, which reports the sum, may be such a stage.
TEST_F(Mixtures, ReportTheBalancingLossesOfOneRankUnderEveryPipeline) {
    for (const char* layers : {"0", "3", "1-2"})
        for (const char* loss : {"none", "microbatch", "sequence", "all_layers"}) {
            const std::vector<std::string> model = {"model.layers=4",
                                                    concat("model.moe.layers=\"", layers, '"'),
                                                    "model.moe.z_coef=0.01",
                                                    concat("model.moe.aux_loss=", loss),
                                                    concat("model.moe.aux_coef=", loss[0] == 'n' ? "0.0" : "0.02"),
                                                    "train.steps=1",
                                                    "log.every=1"};
            const auto aux_loss = [&](const char* name, int ranks, const std::vector<std::string>& layout) {
                std::vector<std::string> set = model;
                set.insert(set.end(), layout.begin(), layout.end());
                TrainOptions o = options(concat(name, layers, loss).c_str(), set);
                o.ranks = ranks;
                train(o);
                return Json::parse(read_file(o.out + "/metrics.jsonl")).at("aux_loss").get<double>();
            };
            const double one = aux_loss("one", 1, {});
            EXPECT_GT(one, 0);
            EXPECT_NEAR(aux_loss("pp", 2, {"parallel.pp=2"}), one, 1e-6 * one) << layers << loss;
            EXPECT_NEAR(aux_loss("zb", 4, {"parallel.pp=2", "parallel.schedule=zb-v", "parallel.tp=2"}), one,
                        1e-5 * one)
                << layers << loss;
        }
}

}  // namespace
}  // namespace tutti::train::mixture_test
