// Multi-token prediction under every layout: the same run as one rank, and memory and traffic as rehearsed. A Llama
// with a tied matrix and two depths, and a small DeepSeek-V3 whose module has experts.
#include <gtest/gtest.h>

#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

class LaterTokens : public SmallRun, public ::testing::WithParamInterface<bool> {  // whether it is the DeepSeek-V3
  protected:
    TrainOptions options_of(const std::string& out, const std::vector<std::string>& layout, int ranks) const {
        std::vector<std::string> set = {concat("model.preset=", GetParam() ? "deepseek-v3-tiny" : "llama-tiny"),
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
        const std::vector<std::string> own =
            GetParam()
                ? std::vector<std::string>{"model.mtp_depth=1",       "model.kv_heads=4",
                                           "model.rope_dims=6",       "model.kv_latent=20",
                                           "model.q_latent=12",       "model.value_dim=5",
                                           "model.moe.layers=\"1\"",  "model.moe.ffn=16",
                                           "model.moe.shared_ffn=16", "model.rope_scaling.original_max_positions=4"}
                : std::vector<std::string>{"model.mtp_depth=2", "model.kv_heads=2", "data.documents=respected",
                                           "data.eod=10"};
        set.insert(set.end(), own.begin(), own.end());
        set.insert(set.end(), layout.begin(), layout.end());
        return options_without_model(out, set, ranks);
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
        {4, {"parallel.tp=2", "parallel.ep=4", "parallel.tp_overlap=2"}},
        {4, {"parallel.tp=2", "parallel.ep=2", "parallel.etp=2", "parallel.zero=3"}}};
    for (const auto& [ranks, layout] : layouts) {
        if (!GetParam() && joined(layout, " ").find("parallel.ep=") != std::string::npos) continue;
        expect_those_of_one_rank(options_of("verify", layout, ranks), joined(layout, " "));
    }
}

// TearDown compares what the runs counted with what was rehearsed.
TEST_P(LaterTokens, TrainsAsRehearsed) {
    train(options_of("one", {"train.steps=2"}, 1));
    train(options_of("tp_pp", {"train.steps=2", "parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1"}, 4));
    train(options_of("cp_zero", {"train.steps=2", "parallel.cp=2", "parallel.zero=3"}, 4));
}

INSTANTIATE_TEST_SUITE_P(Models, LaterTokens, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "deepseek_v3" : "llama"; });

}  // namespace
}  // namespace tutti::train
