// Every row of spec/variants.h under every layout: the same run as one rank, and memory and traffic as rehearsed. The
// models are the rows' tiny presets, made smaller, with windows and contexts that a sequence of 16 tokens exceeds.
#include "tutti/spec/variants.h"

#include <gtest/gtest.h>

#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

std::string tiny_preset_of(const std::string& variant) {
    for (const std::string& name : spec::preset_names())
        if (spec::preset(name).variant == variant && name.ends_with("-tiny")) return name;
    return "none of " + variant;
}

class Variants : public SmallRun, public ::testing::WithParamInterface<std::string> {
  protected:
    TrainOptions options_of(const std::string& out, const std::vector<std::string>& layout, int ranks) const {
        const spec::ModelSpec preset = spec::preset(tiny_preset_of(GetParam()));
        std::vector<std::string> set = {"model.preset=" + preset.preset,
                                        "model.width=32",
                                        concat("model.layers=", preset.pattern.empty() ? 2 : 4),
                                        "model.heads=4",
                                        concat("model.kv_heads=", preset.kv_latent > 0 ? 4 : 2),
                                        "model.head_dim=8",
                                        "model.ffn=48",
                                        "model.init_std=0.1",
                                        "precision.compute=f32",
                                        "optimizer.warmup_steps=0",
                                        "train.micro_batch=1"};
        const auto add = [&](bool has, const char* setting) {
            if (has) set.emplace_back(setting);
        };
        add(preset.rope_dims > 0, "model.rope_dims=6");
        add(preset.kv_latent > 0, "model.kv_latent=20");
        add(preset.q_latent > 0, "model.q_latent=12");
        add(preset.value_dim > 0, "model.value_dim=5");
        add(preset.moe.experts > 0, "model.moe.ffn=16");
        add(preset.moe.experts > 0 && preset.pattern.empty(), "model.moe.layers=\"1\"");
        add(preset.moe.latent > 0, "model.moe.latent=12");
        for (const char* setting : {"model.scan_heads=4", "model.scan_head_dim=6", "model.scan_state=5"})
            add(spec::has_scan(preset), setting);
        add(!preset.scan_layers.empty(), preset.scan_beside ? "model.scan_layers=\"0-1\"" : "model.scan_layers=\"0\"");
        add(preset.moe.shared_ffn > 0, "model.moe.shared_ffn=16");
        for (const char* setting : {"model.delta_layers=\"0\"", "model.delta_key_heads=2", "model.delta_value_heads=4",
                                    "model.delta_key_dim=6", "model.delta_value_dim=5"})
            add(!preset.delta_layers.empty(), setting);
        add(preset.gate_limit > 0, "model.gate_limit=0.3");
        add(preset.window > 0, "model.window=5");
        add(!preset.window_layers.empty(), "model.window_layers=\"0\"");
        add(!preset.nope_layers.empty(), "model.nope_layers=\"1\"");
        add(preset.score_cap > 0, "model.score_cap=0.5");
        add(preset.logit_cap > 0, "model.logit_cap=0.5");
        add(preset.rope_scaling.factor > 0 && preset.rope_scaling.type != "linear",
            "model.rope_scaling.original_max_positions=4");
        set.insert(set.end(), layout.begin(), layout.end());
        return options_without_model(out, set, ranks);
    }
};

TEST_P(Variants, LayoutsFollowOneRank) {
    const std::pair<int, std::vector<std::string>> layouts[] = {
        {2, {"parallel.zero=3", "recompute.policy=full"}},
        {2, {"parallel.tp=2"}},
        {2, {"parallel.tp=2", "parallel.sequence_parallel=true", "recompute.policy=selective"}},
        {2, {"parallel.cp=2", "parallel.cp_method=ring"}},
        {2, {"parallel.cp=2", "parallel.cp_method=all_gather"}},
        {2, {"parallel.cp=2", "parallel.cp_method=ulysses"}},
        {2, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
        {8, {"parallel.tp=2", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=1f1b"}},
        {4, {"parallel.tp=2", "parallel.zero=3", "precision.compute=bf16"}},
        {4, {"parallel.tp=2", "parallel.ep=4", "parallel.tp_overlap=2"}},
        {4, {"parallel.tp=2", "parallel.ep=2", "parallel.etp=2", "parallel.zero=3"}},
        {4, {"parallel.ep=2", "parallel.cp=2", "parallel.cp_method=all_gather", "parallel.zero=2"}}};
    for (const auto& [ranks, layout] : layouts) {
        const bool divides_experts = joined(layout, " ").find("parallel.ep=") != std::string::npos;
        if (divides_experts && spec::preset(tiny_preset_of(GetParam())).moe.experts == 0) continue;
        expect_those_of_one_rank(options_of("verify", layout, ranks), GetParam() + ' ' + joined(layout, " "));
    }
}

// A factor that a mixer, a router or a block for later tokens leaves out or applies twice would change bits.
TEST_P(Variants, ALossScaleHasTheBitsOfOne) {
    compares_rehearsal_ = false;
    const std::pair<int, std::vector<std::string>> layouts[] = {
        {1, {"precision.compute=bf16", "recompute.policy=full"}}, {4, {"parallel.tp=2", "parallel.pp=2"}}};
    for (const auto& [ranks, layout] : layouts) {
        const auto state_with = [&](const std::string& scale) {
            std::vector<std::string> set = layout;
            set.insert(set.end(),
                       {"train.steps=3", "model.mtp_depth=1", "model.mtp_weight=0.5", "precision.loss_scale=" + scale});
            const TrainOptions o = options_of(concat("scale", ranks, '-', scale), set, ranks);
            EXPECT_EQ(train(o).step, 3);
            return weights(o);
        };
        EXPECT_TRUE(state_with("4096.0") == state_with("1")) << GetParam() << ' ' << joined(layout, " ");
    }
}

// TearDown compares what the runs counted with what was rehearsed.
TEST_P(Variants, TrainsAsRehearsed) {
    train(options_of("one", {"train.steps=2"}, 1));
    train(options_of("tp_pp", {"train.steps=2", "parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1"}, 4));
    train(options_of("cp_zero", {"train.steps=2", "parallel.cp=2", "parallel.zero=3"}, 4));
}

INSTANTIATE_TEST_SUITE_P(All, Variants, ::testing::ValuesIn(spec::variant_names()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace tutti::train
