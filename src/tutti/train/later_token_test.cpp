// Multi-token prediction under every layout: the same run as one rank, memory and traffic as rehearsed, and the losses
// of the later tokens in the log. Models with each mixer in the block: a Llama with a tied matrix and two depths,
// latent attention and experts (DeepSeek-V3), gated attention behind layers with the delta rule (Qwen3-Next), the delta
// rule itself, layers that are one part each (Nemotron 3), and attention beside a scan (Falcon-H1).
#include <gtest/gtest.h>

#include "tutti/report/run_history.h"
#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

struct Model {
    const char *name, *preset;
    int64_t depths;
    bool experts;
    std::vector<std::string> settings;
};

const std::vector<std::string> kDelta = {"model.kv_heads=2",        "model.rope_dims=6",
                                         "model.delta_key_heads=2", "model.delta_value_heads=4",
                                         "model.delta_key_dim=6",   "model.delta_value_dim=5"};
const std::vector<std::string> kScan = {"model.kv_heads=2", "model.scan_heads=4", "model.scan_head_dim=6",
                                        "model.scan_state=5"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const std::vector<Model>& models() {
    static const std::vector<Model> all = {
        {"llama", "llama-tiny", 2, false, {"model.kv_heads=2", "data.documents=respected", "data.eod=10"}},
        {"deepseek_v3",
         "deepseek-v3-tiny",
         1,
         true,
         {"model.kv_heads=4", "model.rope_dims=6", "model.kv_latent=20", "model.q_latent=12", "model.value_dim=5",
          "model.moe.layers=\"1\"", "model.moe.ffn=16", "model.moe.shared_ffn=16",
          "model.rope_scaling.original_max_positions=4"}},
        {"qwen3_next", "qwen3-next-tiny", 1, true,
         kDelta + std::vector<std::string>{"model.delta_layers=\"0\"", "model.moe.layers=\"1\"", "model.moe.ffn=16",
                                           "model.moe.shared_ffn=16", "data.documents=respected", "data.eod=10"}},
        {"delta_rule", "qwen3.5-tiny", 2, false,
         kDelta + std::vector<std::string>{"model.delta_layers=\"0-1\"", "data.documents=respected", "data.eod=10"}},
        {"nemotron_h", "nemotron-h-tiny", 2, true,
         kScan + std::vector<std::string>{"model.layers=4", "model.moe.ffn=16", "model.moe.latent=12",
                                          "model.moe.shared_ffn=16"}},
        {"falcon_h1", "falcon-h1-tiny", 2, false,
         kScan + std::vector<std::string>{"model.scan_layers=\"0-1\"", "data.documents=respected", "data.eod=10"}}};
    return all;
}

class LaterTokens : public SmallRun, public ::testing::WithParamInterface<size_t> {
  protected:
    static const Model& model() { return models()[GetParam()]; }
    TrainOptions options_of(const std::string& out, const std::vector<std::string>& layout, int ranks) const {
        const std::vector<std::string> set = {concat("model.preset=", model().preset),
                                              concat("model.mtp_depth=", model().depths),
                                              "model.width=32",
                                              "model.layers=2",
                                              "model.heads=4",
                                              "model.head_dim=8",
                                              "model.ffn=48",
                                              "model.init_std=0.1",
                                              "model.mtp_weight=0.7",
                                              "precision.compute=f32",
                                              "optimizer.warmup_steps=0",
                                              "train.micro_batch=1"};
        return options_without_model(out, set + model().settings + layout, ranks);
    }
};

TEST_P(LaterTokens, LayoutsFollowOneRank) {
    const std::pair<int, std::vector<std::string>> layouts[] = {
        {2, {"parallel.zero=3", "recompute.policy=full"}},
        {2, {"parallel.tp=2"}},
        {2, {"parallel.tp=2", "parallel.sequence_parallel=true", "recompute.policy=selective"}},
        {2, {"parallel.cp=2", "parallel.cp_method=ring"}},
        {2, {"parallel.cp=2", "parallel.cp_method=all_gather"}},
        {2, {"parallel.cp=2", "parallel.cp_method=ulysses"}},
        {2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
        {2, {"parallel.pp=2", "parallel.schedule=zb-v", "parallel.virtual_stages=2", "model.layers=4"}},
        {8, {"parallel.tp=2", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=1f1b"}},
        {4, {"parallel.pp=2", "parallel.zero=2", "parallel.schedule=1f1b"}},
        {2, {"parallel.pp=2", "parallel.zero=2", "parallel.schedule=gpipe"}},
        {4, {"parallel.pp=2", "parallel.zero=2", "parallel.schedule=looped-bfs", "parallel.reductions=5"}},
        {2, {"parallel.zero=2", "precision.gradients=bf16"}},
        {4, {"parallel.tp=2", "parallel.ep=4", "parallel.tp_overlap=2"}},
        {4, {"parallel.tp=2", "parallel.ep=2", "parallel.etp=2", "parallel.zero=3"}}};
    for (const auto& [ranks, layout] : layouts) {
        if (!model().experts && joined(layout, " ").find("parallel.ep=") != std::string::npos) continue;
        expect_those_of_one_rank(options_of("verify", layout, ranks), concat(model().name, ' ', joined(layout, " ")));
    }
}

// TearDown compares what the runs counted with what was rehearsed.
TEST_P(LaterTokens, TrainsAsRehearsedAndLogsTheLossOfEachDepth) {
    const auto losses_of = [&](const std::string& out, const std::vector<std::string>& layout, int ranks) {
        const TrainOptions o = options_of(out, std::vector<std::string>{"train.steps=2"} + layout, ranks);
        train(o);
        return report::read_run(o.out).steps;
    };
    const auto one = losses_of("one", {"log.tensorboard=true"}, 1);
    ASSERT_EQ(one.size(), 2U);
    for (const report::LoggedStep& step : one) EXPECT_EQ(std::ssize(step.mtp_losses), model().depths);
    std::string events;
    for (const auto& entry : std::filesystem::directory_iterator(path("one") + "/tensorboard"))
        events += read_file(entry.path().string());
    for (size_t k = 0; k < to_size(model().depths); ++k)
        EXPECT_NE(events.find("train/" + report::name_of_mtp_loss(k)), std::string::npos) << k;
    for (const auto& [out, layout, ranks] :
         {std::tuple<const char*, std::vector<std::string>, int>{
              "tp_pp", {"parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1"}, 4},
          {"cp_zero", {"parallel.cp=2", "parallel.zero=3"}, 4}}) {
        const auto many = losses_of(out, layout, ranks);
        ASSERT_EQ(many.size(), one.size());
        for (size_t i = 0; i < one.size(); ++i)
            for (size_t k = 0; k < one[i].mtp_losses.size(); ++k)
                EXPECT_NEAR(many[i].mtp_losses.at(k), one[i].mtp_losses[k], 2e-4 * one[i].mtp_losses[k])
                    << out << ", step " << i + 1 << ", depth " << k + 1;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, LaterTokens, ::testing::Range<size_t>(0, models().size()),
                         [](const auto& param) { return models()[param.param].name; });

}  // namespace
}  // namespace tutti::train
