// Every rule between fields: the exact line that it adds, and that its neighbour value is accepted.
#include "tutti/spec/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/toml.h"

namespace tutti::spec {
namespace {

// The problems of a run; "" when there are none.
std::string refusal_of(const RunSpec& run, int ranks = 1) {
    try {
        validate(run, ranks);
    } catch (const UsageError& error) {
        EXPECT_EQ(error.exit_code(), 2);
        return error.what();
    }
    return "";
}

// The problems of a run that is legal but for the given overrides.
std::string problems_of(std::vector<std::string> overrides, int ranks = 1) {
    overrides.insert(overrides.begin(), "data.train=a.txt");
    return refusal_of(parse_text("", "c.toml", overrides), ranks);
}

TEST(Validate, TheDefaultsWithDataAreLegal) { EXPECT_EQ(problems_of({}), ""); }

TEST(Validate, HeadsAndWidth) {
    EXPECT_EQ(
        problems_of({"model.preset=gpt2-124m", "model.width=1536"}),
        "[model] heads * head_dim = 12 * 64 = 768: in gpt2 it must equal width = 1536; for example head_dim = 128");
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.width=1536", "model.head_dim=128"}), "");
    EXPECT_EQ(
        problems_of({"model.preset=gpt2-124m", "model.heads=5", "model.kv_heads=5"}),
        "[model] heads * head_dim = 5 * 64 = 320: in gpt2 it must equal width = 768; heads must divide width, nearest: "
        "heads = 4 or 6");
    EXPECT_EQ(problems_of({"model.heads=5", "model.kv_heads=5"}), "");  // Qwen3 has such
    // Only values that the fields allow are suggested.
    EXPECT_EQ(problems_of({"train.global_batch=2147483647", "train.micro_batch=2147483646"}).find("2147483648"),
              std::string::npos);
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.kv_heads=5"}),
              "[model] kv_heads = 5: the family gpt2 has no grouped queries; it must equal heads = 12");
    EXPECT_EQ(problems_of({"model.kv_heads=3"}), "[model] kv_heads = 3: must divide heads = 4; nearest: 2 or 4");
    EXPECT_EQ(problems_of({"model.kv_heads=2"}), "");
    EXPECT_EQ(problems_of({"model.width=132", "model.head_dim=33"}),
              "[model] head_dim = 33: must be even, RoPE rotates pairs; nearest: 32 or 34");
    EXPECT_EQ(problems_of({"model.heads=0"}), "[model] heads = 0: the family llama needs at least 1");
    EXPECT_EQ(problems_of({"model.rope_theta=0"}), "[model] rope_theta = 0.0: must be > 0");
    EXPECT_EQ(problems_of({"model.norm_eps=0"}), "[model] norm_eps = 0.0: must be > 0");
}

TEST(Validate, WindowOfSomeLayers) {
    const auto problems = [](const std::string& layers) {
        return problems_of({"model.window=5", "model.layers=6", "model.window_layers=\"" + layers + "\""});
    };
    EXPECT_EQ(problems("0,2-3,5"), "");
    EXPECT_EQ(problems("0-4"), "");
    EXPECT_EQ(problems("5"), "");
    EXPECT_EQ(problems("0-5"), "[model] window_layers = \"0-5\": these are all layers; leave it out");
    EXPECT_EQ(problems("3,2,0"), "[model] window_layers = \"3,2,0\": write it as \"0,2-3\"");
    EXPECT_EQ(problems("4-1"), "[model] window_layers = \"4-1\": write it as \"1-4\"");
    EXPECT_EQ(problems("0,1-2,2"), "[model] window_layers = \"0,1-2,2\": write it as \"0-2\"");
    EXPECT_EQ(problems("2,6"), "[model] window_layers = \"2,6\": the layers are 0 to 5");
    EXPECT_EQ(problems_of({"model.window_layers=\"2\""}),
              "[model] window_layers = \"2\": has no effect while window = 0; set window or leave it out");
    for (const std::string wrong : {"x", "1,", ",1", "1-", "-1", "1--2", "1 ", "99999999999999999999", "all"})
        EXPECT_EQ(problems(wrong), "[model] window_layers: \"" + wrong +
                                       "\" is not a list of layers; write numbers and ranges from 0, as in \"0,2-5\"");
}

TEST(Validate, ConvolutionsOfSomeLayers) {
    const auto problems = [](std::vector<std::string> changes, int ranks = 1) {
        changes.insert(changes.begin(), "model.preset=lfm2-tiny");
        return problems_of(changes, ranks);
    };
    EXPECT_EQ(problems({}), "");
    EXPECT_EQ(problems({"model.conv_layers=0-3"}), "");
    EXPECT_EQ(problems({"model.conv_layers=", "model.conv_kernel=0"}), "");
    EXPECT_EQ(problems({"model.conv_layers=3,0-1"}), "[model] conv_layers = \"3,0-1\": write it as \"0-1,3\"");
    EXPECT_EQ(problems({"model.conv_layers=0,4"}), "[model] conv_layers = \"0,4\": the layers are 0 to 3");
    EXPECT_EQ(problems({"model.conv_layers=all"}),
              "[model] conv_layers: \"all\" is not a list of layers; write numbers and ranges from 0, as in \"0,2-5\"");
    EXPECT_EQ(
        problems({"model.conv_kernel=0"}),
        "[model] conv_kernel = 0: conv_layers = \"0-1,3\" have a convolution, which needs at least 1; LFM2 has 3");
    EXPECT_EQ(
        problems({"model.conv_layers="}),
        "[model] conv_kernel = 3, conv_bias = false: have no effect while conv_layers is empty; name the layers or "
        "leave both out");
    EXPECT_EQ(problems({"model.head_norm=false"}),
              "[model] head_norm = false: the family lfm2 always has it; set true");
    EXPECT_EQ(problems({"model.window=5"}), "[model] window = 5: the family lfm2 does not use it; it must be 0");
    EXPECT_EQ(problems_of({"model.conv_kernel=3"}),
              "[model] conv_kernel = 3, conv_bias = false: have no effect while delta_layers is empty; name the layers "
              "or leave both out");
    EXPECT_EQ(problems({"parallel.cp=2", "train.seq_len=8"}, 2), "");
    EXPECT_EQ(problems({"parallel.cp=2", "train.seq_len=4"}, 2),
              "[train] seq_len = 4: a rank of [parallel] cp = 2 has 1 tokens in a row; a convolution needs [model] "
              "conv_kernel - 1 = 2 of them");
    EXPECT_EQ(problems({"parallel.tp=2", "model.width=129"}, 2),
              "[parallel] tp = 2: must divide [model] width = 129; nearest: tp = 1 or 3");
}

TEST(Validate, DeltaRuleOfSomeLayers) {
    const auto problems = [](std::vector<std::string> changes, int ranks = 1) {
        changes.insert(changes.begin(), "model.preset=qwen3-next-tiny");
        return problems_of(changes, ranks);
    };
    EXPECT_EQ(problems({}), "");
    EXPECT_EQ(problems({"model.delta_layers=0-3"}), "");
    EXPECT_EQ(problems({"model.conv_kernel=0"}),
              "[model] conv_kernel = 0: delta_layers = \"0-2\" have a convolution, which needs at least 1; Qwen3-Next "
              "has 4");
    EXPECT_EQ(problems({"model.delta_value_dim=0"}),
              "[model] delta_value_dim = 0: delta_layers = \"0-2\" need at least 1");
    EXPECT_EQ(problems({"model.delta_key_heads=3"}),
              "[model] delta_key_heads = 3: must divide delta_value_heads = 4; nearest: 2 or 4");
    EXPECT_EQ(problems_of({"model.delta_key_dim=8"}),
              "[model] delta_key_dim = 8: delta_layers = \"\" name no layer; set 0");
    EXPECT_EQ(problems({"parallel.tp=4"}, 4),
              "[parallel] tp = 4: must divide [model] delta_key_heads = 2; nearest: tp = 2");
    EXPECT_EQ(problems({"parallel.cp=2", "train.seq_len=8"}, 2),
              "[train] seq_len = 8: a rank of [parallel] cp = 2 has 2 tokens in a row; a convolution needs [model] "
              "conv_kernel - 1 = 3 of them");
}

TEST(Validate, ScansOfSomeLayers) {
    const auto problems = [](const char* preset, std::vector<std::string> changes, int ranks = 1) {
        changes.insert(changes.begin(), concat("model.preset=", preset));
        return problems_of(changes, ranks);
    };
    const char* const granite = "granite4-tiny";
    EXPECT_EQ(problems(granite, {}), "");
    EXPECT_EQ(problems(granite, {"parallel.tp=4"}, 4), "");
    EXPECT_EQ(problems(granite, {"model.scan_state=0"}), "[model] scan_state = 0: layers with a scan need at least 1");
    EXPECT_EQ(problems(granite, {"model.scan_groups=3"}),
              "[model] scan_groups = 3: must divide scan_heads = 8; nearest: 2 or 4");
    EXPECT_EQ(problems(granite, {"model.scan_step_min=0.5", "model.scan_step_max=0.25"}),
              "[model] scan_step_max = 0.25: must be at least scan_step_min = 0.5, or 0 for no bound");
    EXPECT_EQ(
        problems(granite, {"model.conv_kernel=0"}),
        "[model] conv_kernel = 0: scan_layers = \"0-1,3\" have a convolution, which needs at least 1; Mamba-2 has "
        "4");
    EXPECT_EQ(
        problems(granite, {"parallel.tp=4", "parallel.sequence_parallel=false", "train.seq_len=30"}, 4),
        "[train] seq_len = 30: tp = 4 ranks share the norm of a group of heads, [model] scan_groups = 1; it must be "
        "a multiple of tp * cp = 4; nearest: seq_len = 28 or 32");
    EXPECT_EQ(problems_of({"model.scan_heads=8"}), "[model] scan_heads = 8: no layer has a scan; set 0");
    EXPECT_EQ(problems("nemotron-h-tiny", {"model.pattern=M*-EE"}),
              "[model] pattern = \"M*-EE\": has 5 letters for layers = 4; required: one for each");
    EXPECT_EQ(problems("nemotron-h-tiny", {"model.pattern=M*-X", "model.moe.experts=8"}),
              "[model] pattern = \"M*-X\": the letters are M, *, - and E: a scan, attention, an MLP, experts\n"
              "[model] pattern = \"M*-X\": without an E there are no moe.experts");
    EXPECT_EQ(problems_of({"model.gate=relu2"}),
              "[model] gate = \"relu2\": the square of ReLU is that of models with a pattern; set another gate");
    EXPECT_EQ(
        problems("falcon-h1-tiny", {"model.multipliers=1,2"}),
        "[model] multipliers = \"1,2\": \"1,2\" has 2 numbers; required: 12, of key, attention_in, attention_out, "
        "scan_in, scan_out, z, x, B, C, dt, gate, down, or \"\"");
}

TEST(Validate, FieldsThatTheFamilyDoesNotHave) {
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.rope_theta=10000"}),
              "[model] rope_theta = 10000.0: the family gpt2 does not use it; it must be 0.0");
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.kv_heads=4"}),
              "[model] kv_heads = 4: the family gpt2 has no grouped queries; it must equal heads = 12");
    EXPECT_EQ(problems_of({"model.preset=mlp-8192", "model.heads=4", "model.tie_embeddings=true", "data.train=[]"}),
              "[model] heads = 4: the family mlp does not use it; it must be 0\n"
              "[model] tie_embeddings = true: the family mlp does not use it; it must be false");
    EXPECT_EQ(problems_of({"model.preset=mlp-8192"}),
              "[data] train, valid, valid_fraction: the family mlp makes its own inputs; leave them out");
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.window=5", "model.head_norm=true"}),
              "[model] head_norm = true: the family gpt2 does not use it; it must be false\n"
              "[model] window = 5: the family gpt2 does not use it; it must be 0");
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.window_layers=1"}),
              "[model] window_layers = \"1\": the family gpt2 does not use it; it must be \"\"");
    EXPECT_EQ(
        problems_of({"model.rope_scaling.factor=8", "model.rope_scaling.beta_fast=16"}),
        "[model] rope_scaling: type = \"llama3\" does not use every key that is set; leave out those of the other "
        "types");
    EXPECT_EQ(problems_of({"model.rope_scaling.factor=8", "model.rope_scaling.type=linear"}), "");
    EXPECT_EQ(problems_of({"model.rope_scaling.low_freq_factor=2"}),
              "[model] rope_scaling: its other keys have no effect while factor = 0; set factor or leave them out");
    EXPECT_EQ(problems_of({"model.rope_scaling.factor=8", "model.rope_scaling.low_freq_factor=4"}),
              "[model] rope_scaling.high_freq_factor = 4.0: must be above low_freq_factor = 4.0");
}

// Weights that are 1 whatever the router says teach it nothing, and are no order to drop by.
TEST(Validate, Router) {
    const auto problems = [](std::vector<std::string> set) {
        set.insert(set.begin(), {"data.train=a.txt", "model.preset=moe-tiny"});
        return problems_of(set);
    };
    EXPECT_TRUE(problems({"model.moe.top_k=1"}).starts_with("[model] moe.top_k = 1: with normalise = true"));
    EXPECT_TRUE(problems({"model.moe.top_k=1", "model.moe.score=sigmoid"}).starts_with("[model] moe.top_k = 1"));
    EXPECT_EQ(problems({"model.moe.top_k=1", "model.moe.normalise=false"}), "");
    EXPECT_EQ(problems({"model.moe.top_k=2", "model.moe.capacity_factor=1.0"}), "");
    const std::vector<std::string> one = {"model.moe.experts=1", "model.moe.top_k=1", "model.moe.normalise=false",
                                          "model.moe.capacity_factor=0.5"};
    EXPECT_TRUE(problems(one).starts_with("[model] moe.drop = \"probability\": the one expert"));
    EXPECT_EQ(problems({one[0], one[1], one[2], one[3], "model.moe.drop=position"}), "");
}

TEST(Validate, Data) {
    EXPECT_EQ(problems_of({"data.train=[]"}), "[data] train = []: name at least one text or token file");
    EXPECT_EQ(problems_of({"data.valid=b.txt", "data.valid_fraction=0.1"}),
              "[data] valid_fraction = 0.1: must be 0.0 when valid names files; give one of the two");
    EXPECT_EQ(problems_of({"model.vocab=255"}), "[model] vocab = 255: must be >= 256 for [data] tokenizer = \"bytes\"");
    EXPECT_EQ(problems_of({"model.vocab=65", "data.train=tokens.bin"}), "");  // token files bring their own ids
    EXPECT_EQ(problems_of({"model.vocab=65", "data.train=tokens.bin", "data.format=text"}),
              "[model] vocab = 65: must be >= 256 for [data] tokenizer = \"bytes\"");
    EXPECT_EQ(problems_of({"data.tokenizer=tokenizer.json", "model.vocab=255"}), "");  // the file says how many
    EXPECT_EQ(problems_of({"data.tokenizer="}), "[data] tokenizer = \"\": must be bytes or the path of a tokenizer");
    EXPECT_EQ(problems_of({"train.eval_every=10"}),
              "[train] eval_every = 10: needs validation data; set [data] valid or valid_fraction");
    EXPECT_EQ(problems_of({"train.eval_every=10", "data.valid_fraction=0.1"}), "");
}

TEST(Validate, BatchAndSequence) {
    EXPECT_EQ(
        problems_of({"train.global_batch=30"}),
        "[train] global_batch = 30: must be a multiple of micro_batch * data-parallel ranks = 8 * 1 = 8; nearest: "
        "global_batch = 24 or 32, or micro_batch = 6 or 10");
    EXPECT_EQ(problems_of({"train.global_batch=4"}),
              "[train] global_batch = 4: must be a multiple of micro_batch * data-parallel ranks = 8 * 1 = 8; nearest: "
              "global_batch = 8, or micro_batch = 4");
    EXPECT_EQ(problems_of({"train.seq_len=1025"}),
              "[train] seq_len = 1025: must be at most [model] max_positions = 1024");
    EXPECT_EQ(problems_of({"train.seq_len=1024"}), "");
}

TEST(Validate, Optimizer) {
    EXPECT_EQ(problems_of({"optimizer.lr=1e-5"}), "[optimizer] min_lr = 3e-5: must be at most lr = 1e-5");
    EXPECT_EQ(problems_of({"optimizer.lr=1e-5", "optimizer.schedule=constant"}), "");
    EXPECT_EQ(problems_of({"train.steps=19"}), "");  // a run may end inside its warm-up: a first try of three steps
    EXPECT_EQ(
        problems_of({"optimizer.decay_steps=5"}),
        "[optimizer] decay_steps = 5: only schedule = \"wsd\" uses it, not \"cosine\"; set 0 or schedule = \"wsd\"");
    EXPECT_EQ(problems_of({"optimizer.schedule=wsd", "optimizer.decay_steps=281"}),
              "[optimizer] decay_steps = 281: must be at most [train] steps - warmup_steps = 280");
    EXPECT_EQ(problems_of({"optimizer.schedule=wsd", "optimizer.decay_steps=280"}), "");
}

TEST(Validate, RecomputePolicy) {
    for (const char* good : {"none", "full", "sqrt", "every:1", "every:4"}) {
        EXPECT_EQ(problems_of({concat("recompute.policy=", good)}), "");
    }
    for (const char* bad : {"every:0", "every:5", "every:", "every:2x", "every:-1", "every: 2", "every", "half", ""}) {
        EXPECT_EQ(problems_of({concat("recompute.policy=", bad)}),
                  concat("[recompute] policy = \"", bad,
                         "\": must be none, selective, full, sqrt or every:N with N from ", "1 to [model] layers = 4"));
    }
}

TEST(Validate, MeshMustFitTheRanks) {
    EXPECT_EQ(problems_of({"parallel.tp=2"}),
              "[parallel] dp_replicate * tp * cp * pp = 1 * 2 * 1 * 1 = 2: must divide the number of ranks, 1, as "
              "dp_shard = -1 takes the remaining ones; nearest: --ranks 2");
    EXPECT_EQ(
        problems_of({"parallel.dp_shard=3", "train.global_batch=24"}, 4),
        "[parallel] dp_replicate * tp * cp * pp = 1 * 1 * 1 * 1 = 1, times dp_shard = 3: must equal the number of "
        "ranks, 4");
    EXPECT_EQ(problems_of({"parallel.dp_shard=0"}), "[parallel] dp_shard = 0: must be -1 or at least 1");
    EXPECT_EQ(problems_of({"parallel.dp_shard=1"}), "");
    EXPECT_EQ(problems_of({"parallel.accumulate=shard"}),
              "[parallel] accumulate = \"shard\": zero = 1 keeps whole gradients; set zero = 2 or 3, or accumulate = "
              "\"auto\"");
    EXPECT_EQ(problems_of({"parallel.accumulate=shard", "parallel.zero=2"}), "");
    EXPECT_EQ(problems_of({"parallel.unsharded_stages=2"}),
              "[parallel] unsharded_stages = 2: with zero = 1 weights are whole at all times; set unsharded_stages = 0 "
              "or zero = 3");
    EXPECT_EQ(problems_of({"parallel.unsharded_stages=2", "parallel.zero=3"}), "");
}

TEST(Validate, TensorParallelismMustDivideWhatItSharesOut) {
    for (const char* good : {"parallel.tp=2", "parallel.tp=4"}) EXPECT_EQ(problems_of({good}, 4), "");
    EXPECT_EQ(problems_of({"parallel.tp=4", "model.kv_heads=2"}, 4), "");  // copies
    EXPECT_EQ(problems_of({"parallel.tp=8"}, 8), "[parallel] tp = 8: must divide [model] heads = 4; nearest: tp = 4");
    EXPECT_EQ(problems_of({"parallel.tp=2", "model.ffn=449"}, 2),
              "[parallel] tp = 2: must divide [model] ffn = 449; nearest: tp = 1 or 449");
    EXPECT_EQ(problems_of({"parallel.tp=4", "model.heads=12", "model.kv_heads=6"}, 4),
              "[parallel] tp = 4: must divide [model] kv_heads = 6, or be a multiple of it");
    EXPECT_EQ(problems_of({"parallel.tp=2", "train.seq_len=255"}, 2),
              "[train] seq_len = 255: with [parallel] sequence_parallel = true it must be a multiple of tp * cp = 2; "
              "nearest: seq_len = 254 or 256, or set sequence_parallel = false");
    EXPECT_EQ(problems_of({"parallel.tp=2", "train.seq_len=255", "parallel.sequence_parallel=false"}, 2), "");
    EXPECT_EQ(problems_of({"parallel.tp=2", "parallel.tp_overlap=4"}, 2), "");
    EXPECT_EQ(problems_of({"parallel.tp_overlap=4"}, 2),
              "[parallel] tp_overlap = 4: with tp = 1 no product communicates; set tp_overlap = 1");
    EXPECT_EQ(
        problems_of({"parallel.tp=2", "parallel.tp_overlap=4", "train.device=\"cuda\""}, 2),
        "[parallel] tp_overlap = 4: [train] device = \"cuda\" makes no products in pieces yet; set tp_overlap = 1");
}

TEST(Validate, ContextParallelismNeedsTwoChunksForEachRank) {
    EXPECT_EQ(problems_of({"parallel.cp=4"}, 4), "");
    EXPECT_EQ(problems_of({"parallel.cp=4", "train.seq_len=250"}, 4),
              "[train] seq_len = 250: must be a multiple of 2 cp = 8; nearest: seq_len = 248 or 256");
    EXPECT_EQ(problems_of({"parallel.cp=2", "parallel.tp=4", "train.seq_len=252"}, 8),
              "[train] seq_len = 252: with [parallel] sequence_parallel = true it must be a multiple of tp * cp = 8; "
              "nearest: seq_len = 248 or 256, or set sequence_parallel = false");
}

TEST(Validate, UlyssesSharesOutHeads) {
    const auto problems = [](std::vector<std::string> set) {
        set.insert(set.begin(), {"parallel.cp=4", "model.heads=8", "model.kv_heads=2", "model.width=256"});
        return problems_of(set, 4);
    };
    EXPECT_EQ(problems({"parallel.cp_method=ulysses"}), "");
    EXPECT_EQ(problems({"parallel.cp_method=ulysses", "train.seq_len=252"}), "");  // any multiple of cp
    EXPECT_EQ(problems({"parallel.cp_method=ulysses", "train.seq_len=250"}),
              "[train] seq_len = 250: must be a multiple of cp = 4; nearest: seq_len = 248 or 252");
    EXPECT_EQ(problems({"parallel.cp_method=all_gather", "train.seq_len=252"}),
              "[train] seq_len = 252: must be a multiple of 2 cp = 8; nearest: seq_len = 248 or 256");
    EXPECT_EQ(problems({"parallel.cp_ulysses=2", "train.seq_len=252"}), "");
    EXPECT_EQ(problems({"parallel.cp_ulysses=3"}),
              "[parallel] cp_ulysses = 3: must divide cp = 4; nearest: cp_ulysses = 2 or 4");
    EXPECT_EQ(problems({"parallel.cp_ulysses=2", "parallel.cp_method=ulysses"}),
              "[parallel] cp_ulysses = 2: with cp_method = \"ulysses\" all of cp = 4 exchange heads; leave cp_ulysses "
              "at 0, or set cp_method to ring or all_gather, which the other ranks of cp use");
    EXPECT_EQ(problems({"parallel.cp_method=ulysses", "model.heads=6"}),
              "[parallel] cp_ulysses = 4: must divide [model] heads = 6; nearest: cp_ulysses = 3 or 6");
    EXPECT_EQ(
        problems({"parallel.cp_method=ulysses", "model.heads=12", "model.kv_heads=3", "model.width=192"}),
        "[parallel] cp_ulysses = 4: must divide the 3 key and value heads of a rank ([model] kv_heads = 3), or be "
        "a multiple of them");
    EXPECT_EQ(problems_of({"parallel.cp=4", "parallel.cp_method=ulysses", "parallel.tp=2"}, 8),
              "[parallel] cp_ulysses = 4: must divide [model] heads = 4 / tp = 2; nearest: cp_ulysses = 2");
    EXPECT_EQ(problems({"parallel.cp=1", "parallel.cp_ulysses=2"}),
              "[parallel] cp_ulysses = 2: must divide cp = 1; nearest: cp_ulysses = 1");
}

TEST(Validate, APipelineNeedsAKnownScheduleAndLayers) {
    EXPECT_EQ(problems_of({"parallel.pp=4"}, 4), "");
    EXPECT_EQ(problems_of({"parallel.pp=2", "parallel.schedule=orders/mine.csv"}, 2), "");
    EXPECT_EQ(
        problems_of({"parallel.pp=2", "parallel.schedule=1b1f"}, 2),
        "[parallel] schedule = \"1b1f\": must be one of naive, gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, "
        "interleaved-zb, zb-v, v-half, v-min, chimera, dualpipe, dualpipe-v, auto, pipedream, or the name of a .csv "
        "file");
    EXPECT_EQ(
        problems_of({"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=3"}, 2),
        "[parallel] pp = 2 with virtual_stages = 3: 6 stages for [model] layers = 4; required: at least a layer for "
        "each stage, or stage_layers, by which the first and the last may have none");
    EXPECT_EQ(
        problems_of({"parallel.pp=2", "parallel.strategy=parameter_server", "parallel.zero=0"}, 2),
        "[parallel] strategy = \"parameter_server\": a parameter server has no pipeline; set pp = 1 or strategy = "
        "\"collective\"");
    for (const char* axis : {"tp", "cp"})
        EXPECT_EQ(
            problems_of({concat("parallel.", axis, "=2"), "parallel.strategy=parameter_server", "parallel.zero=0"}, 2),
            concat("[parallel] strategy = \"parameter_server\": ", axis,
                   " = 2: the server sums over data-parallel ranks alone; set ", axis,
                   " = 1, or strategy = \"collective\""));
}

TEST(Validate, PipeDreamUpdatesWithoutWaiting) {
    const auto problems = [](std::vector<std::string> set) {
        set.insert(set.begin(),
                   {"parallel.schedule=pipedream", "parallel.pp=2", "model.tie_embeddings=false", "optimizer.clip=0"});
        return problems_of(set, 2);
    };
    EXPECT_EQ(problems({}), "");
    EXPECT_EQ(
        problems({"optimizer.clip=1"}),
        "[parallel] schedule = \"pipedream\": [optimizer] clip = 1.0: the norm of the whole gradient is not known "
        "when a stage updates; set 0.0");
    EXPECT_EQ(
        problems({"model.tie_embeddings=true"}),
        "[parallel] schedule = \"pipedream\": [model] tie_embeddings = true: the stages that hold the matrix would "
        "update it differently; set false");
    EXPECT_EQ(
        problems({"parallel.zero=2"}),
        "[parallel] schedule = \"pipedream\": [parallel] zero = 2: weights in several versions must be whole; set 0 "
        "or 1");
}

TEST(Validate, RefusesWhatDoesNotExistYet) {
    const std::pair<const char*, const char*> requests[] = {
        {"parallel.ep=2", "[parallel] ep = 2: the model has no experts; set it to 1"},
        {"parallel.strategy=parameter_server",
         "[parallel] strategy = \"parameter_server\": the server keeps the whole state; set zero = 0, not 1"},
        {"offload.params=true",
         "[offload] params = true: [parallel] zero = 1 keeps all weights on every rank; set zero = 3, which gathers "
         "them unit by unit"},
        {"precision.fp8=mxfp8",
         "[precision] fp8 = \"mxfp8\": 8-bit products are chosen by precision.recipe; set recipe, and leave fp8 out"},
    };
    for (const auto& [request, message] : requests) EXPECT_EQ(problems_of({request}), message);
}

// A llama of 4 blocks whose sizes groups of 128 divide, also with tp = 2.
TEST(Validate, RecipesOfProducts) {
    const auto problems = [](std::vector<std::string> overrides, int ranks = 1) {
        const std::vector<std::string> model = {"data.train=a.txt",       "model.family=llama", "model.width=256",
                                                "model.layers=4",         "model.heads=4",      "model.kv_heads=4",
                                                "model.head_dim=64",      "model.ffn=512",      "train.seq_len=256",
                                                "train.micro_batch=2",    "model.vocab=256",    "train.device=cpu",
                                                "model.max_positions=256"};
        overrides.insert(overrides.begin(), model.begin(), model.end());
        return refusal_of(parse_text("", "c.toml", overrides), ranks);
    };
    for (const char* recipe : {"tensor", "delayed", "block", "mxfp8"}) {
        const std::string r = concat("precision.recipe=", recipe);
        EXPECT_EQ(problems({r}), "");
        EXPECT_EQ(problems({r, "parallel.tp=2"}, 2), "");
        EXPECT_EQ(problems({r, "model.ffn=500"}), "");  // a CPU takes any size
        EXPECT_EQ(problems({r, "train.device=cuda"}), "");
    }
    const std::string block = "[precision] recipe = \"block\": ";
    EXPECT_EQ(problems({"precision.recipe=block", "model.layers=2"}),
              block +
                  "[model] layers = 2: the first bf16_first = 1 and the last bf16_last = 1 blocks keep their products "
                  "in bf16, and none is left; nearest: bf16_first = 0 and bf16_last = 1");
    EXPECT_EQ(problems({"precision.recipe=block", "model.layers=2", "precision.bf16_first=0"}), "");
    EXPECT_EQ(problems({"precision.recipe=block", "model.ffn=384", "parallel.tp=2"}, 2),
              block +
                  "a rank of [parallel] tp = 2 has 192 of [model] ffn = 384, a cut inside of a group of 128; "
                  "nearest: ffn = 256 or 512; or set tp = 1");
    EXPECT_EQ(problems({"precision.recipe=mxfp8", "model.ffn=384", "parallel.tp=2"}, 2), "");
    EXPECT_EQ(problems({"precision.recipe=block", "parallel.tp=4"}, 4),
              block +
                  "a rank of [parallel] tp = 4 has 64 of [model] heads * head_dim = 256, a cut inside of a group of "
                  "128; nearest: heads = 8; or set tp = 1\n" +
                  block +
                  "a rank of [parallel] tp = 4 has 64 of [model] kv_heads * head_dim = 256, a cut inside of a group of "
                  "128; nearest: kv_heads = 8; or set tp = 1");
    EXPECT_EQ(problems({"precision.recipe=block", "parallel.cp=2"}, 2),
              block +
                  "[train] seq_len = 256: [parallel] cp = 2 cuts it into runs of 64 tokens, inside of groups of 128; "
                  "nearest: seq_len = 512");
    EXPECT_EQ(problems({"precision.recipe=block", "model.ffn=321", "train.device=cuda"}),
              block +
                  "[model] ffn = 321: products of codes need multiples of 128; nearest: ffn = 256 or 384; or set "
                  "[precision] emulate = true");
    EXPECT_EQ(problems({"precision.recipe=block", "model.ffn=321", "train.device=cuda", "precision.emulate=true"}), "");
    EXPECT_EQ(problems({"precision.recipe=block", "precision.scales=f32"}),
              block +
                  "scales = \"f32\": groups have powers of two; set scales = \"pow2\", or recipe = \"tensor\" or "
                  "\"delayed\"");
    EXPECT_EQ(problems({"precision.recipe=block", "precision.scale_over=rank"}),
              block +
                  "scale_over = \"rank\": only recipe = \"tensor\" takes a scale over ranks before a cast; set "
                  "scale_over = \"tensor\"");
    EXPECT_EQ(
        problems({"precision.recipe=tensor", "parallel.tp=2", "parallel.tp_overlap=2"}, 2),
        "[precision] recipe = \"tensor\": [parallel] tp_overlap = 2: a tensor is quantized as a whole, and products "
        "in pieces have a part of its rows; set tp_overlap = 1");
    const std::string gather = "precision.gather=weights", refused = "gather = \"weights\": ";
    for (const char* recipe : {"tensor", "delayed", "block"})
        EXPECT_EQ(problems({concat("precision.recipe=", recipe), gather, "parallel.zero=3"}, 2), "");
    EXPECT_EQ(problems({"precision.recipe=block", gather, "parallel.zero=2"}, 2),
              block + refused +
                  "[parallel] zero = 2 keeps whole weights, which products of several steps read; set zero = 3, or "
                  "gather = \"none\"");
    EXPECT_EQ(problems({"precision.recipe=mxfp8", gather, "parallel.zero=3"}, 2),
              "[precision] recipe = \"mxfp8\": " + refused +
                  "the products y = x w^T and dx = dy w read codes of w in groups of 1 x 32 along other dims, and both "
                  "would be as many bytes as bf16; set gather = \"none\", or recipe = \"block\"");
    EXPECT_EQ(
        problems({"precision.recipe=tensor", "precision.scales=f32", gather, "parallel.zero=3"}, 2),
        "[precision] recipe = \"tensor\": " + refused +
            "a factor that is no power of two is not exact in what products make of codes; set scales = \"pow2\", "
            "or gather = \"none\"");
    const auto sequences = [&](const char* recipe, std::vector<std::string> more) {
        more.insert(more.end(), {concat("precision.recipe=", recipe), "precision.gather=sequences"});
        return problems(more, 2);
    };
    const std::string tensor = "[precision] recipe = \"tensor\": gather = \"sequences\": ";
    EXPECT_EQ(sequences("tensor", {"parallel.tp=2"}), "");
    EXPECT_EQ(sequences("delayed", {"parallel.tp=2"}), "");
    EXPECT_EQ(
        sequences("block", {"parallel.tp=2"}),
        block +
            "gather = \"sequences\": the products y = x w^T and dw = dy^T x read codes of x in groups along other "
            "dims, and both would be as many bytes as bf16; set gather = \"weights\" or \"none\", or recipe = "
            "\"tensor\" or \"delayed\"");
    EXPECT_EQ(sequences("tensor", {"parallel.tp=2", "parallel.sequence_parallel=false"}),
              tensor +
                  "[parallel] tp = 2 with sequence_parallel = false gathers no sequences; set tp > 1 and "
                  "sequence_parallel = true, or gather = \"none\"");
    EXPECT_EQ(sequences("tensor", {"parallel.tp=2", "precision.scale_over=rank"}),
              tensor + "codes of several ranks need one scale; set scale_over = \"tensor\", or gather = \"none\"");
    EXPECT_EQ(problems({gather, "parallel.zero=3"}, 2),
              "[precision] " + refused + "recipe = \"none\" has no codes; set a recipe, or gather = \"none\"");
}

TEST(Validate, ARecordedMicrobatchRepeatsTheSame) {
    EXPECT_EQ(problems_of({"train.cuda_graphs=true", "train.device=cuda", "parallel.zero=0"}), "");
    const std::pair<const char*, const char*> requests[] = {
        {"train.device=cpu", "[train] device = \"cpu\": only a GPU has graphs; set auto"},
        {"parallel.zero=2", "[parallel] zero = 2: buffers are allocated and freed in a step; set 0 or 1"},
        {"offload.activations=true",
         "[offload] any = true: copies pass through the host; set optimizer, params and activations to false"},
        {"log.trace=true", "[log] trace = true: nothing of a microbatch can be seen from the host; set false"},
        {"model.dropout=0.1", "[model] dropout = 0.1: its masks differ from step to step; set 0.0"},
        {"data.documents=respected",
         "[data] documents = \"respected\": the number of targets, which gradients are scaled by, differs from step to "
         "step; set packed"}};
    for (const auto& [request, problem] : requests)
        EXPECT_EQ(problems_of({"train.cuda_graphs=true", "data.eod=10", request}),
                  concat("[train] cuda_graphs = true: ", problem));
}

TEST(Validate, PackedWeightsStayWhereTheyAre) {
    EXPECT_EQ(problems_of({"train.packed_weights=always", "parallel.zero=2"}), "");
    EXPECT_EQ(problems_of({"parallel.zero=3", "train.device=cuda"}), "");
    EXPECT_EQ(problems_of({"train.packed_weights=always", "parallel.zero=3"}),
              "[train] packed_weights = \"always\": with [parallel] zero = 3 weights are freed after use; set auto, or "
              "zero to "
              "2 or less");
    EXPECT_EQ(problems_of({"train.packed_weights=always", "train.device=cuda"}),
              "[train] packed_weights = \"always\": [train] device = \"cuda\" packs no weights; set auto");
}

TEST(Validate, Tf32NeedsAGpu) {
    EXPECT_EQ(problems_of({"precision.compute=tf32", "train.device=cuda"}), "");
    EXPECT_EQ(problems_of({"precision.compute=tf32", "train.device=cpu"}),
              "[precision] compute = \"tf32\": [train] device = \"cpu\" has no TF32; set compute to f32, bf16 or f16");
}

TEST(Validate, LossScalesArePowersOfTwo) {
    for (const char* good : {"auto", "dynamic", "1", "65536", "0.5", "1.8446744073709552e19"})
        EXPECT_EQ(problems_of({concat("precision.loss_scale=", good)}), "");
    const std::pair<const char*, const char*> wrong[] = {
        {"1000", "; nearest: 512 or 1024"},           {"3", "; nearest: 2 or 4"},
        {"0", "; nearest: 1.1754943508222875e-38"},   {"-4", "; nearest: 1.1754943508222875e-38"},
        {"nan", "; nearest: 1.1754943508222875e-38"}, {"1e300", "; nearest: 1.7014118346046923e38"}};
    RunSpec run = parse_text("", "c.toml", {"data.train=a.txt"});
    for (const auto& [given, nearest] : wrong) {
        run.precision.loss_scale = given;
        EXPECT_EQ(refusal_of(run),
                  concat("[precision] loss_scale = \"", given, "\": must be auto | dynamic | a power of two", nearest));
    }
    run.precision.loss_scale = "dynamik";
    EXPECT_EQ(refusal_of(run),
              "[precision] loss_scale = \"dynamik\": must be one of auto | dynamic | a power of two; the nearest is "
              "\"dynamic\"");
    EXPECT_EQ(problems_of({"precision.loss_scale_initial=1000", "precision.loss_scale_least=3"}),
              "[precision] loss_scale_initial = 1000.0: must be a power of two; nearest: 512 or 1024\n"
              "[precision] loss_scale_least = 3.0: must be a power of two; nearest: 2 or 4");
    EXPECT_EQ(problems_of({"precision.loss_scale_initial=8", "precision.loss_scale_least=16"}),
              "[precision] loss_scale_least = 16.0: must be at most loss_scale_initial = 8.0");
}

TEST(Validate, F16NeedsMastersAndAStepThatCanBeSkipped) {
    EXPECT_EQ(problems_of({"precision.compute=f16"}), "");
    EXPECT_EQ(problems_of({"precision.compute=f16", "precision.master=none"}),
              "[precision] master = \"none\": weights of compute = \"f16\" need masters: only bf16 is rounded "
              "stochastically; set master = \"f32\", or compute = \"bf16\"");
    const auto pipedream = [](const std::string& setting) {
        return problems_of({"parallel.schedule=pipedream", "optimizer.clip=0", setting});
    };
    const std::string reason =
        "a stage updates before all know whether gradients overflow, so no step can be skipped; set ";
    EXPECT_EQ(pipedream("precision.loss_scale=1"), "");
    EXPECT_EQ(pipedream("precision.compute=f16"),
              "[parallel] schedule = \"pipedream\": [precision] compute = \"f16\": " + reason + "bf16 or f32");
    EXPECT_EQ(pipedream("precision.loss_scale=1024"),
              "[parallel] schedule = \"pipedream\": [precision] loss_scale = \"1024\": " + reason + "auto");
    EXPECT_EQ(pipedream("precision.loss_scale=dynamic"),
              "[parallel] schedule = \"pipedream\": [precision] loss_scale = \"dynamic\": " + reason + "auto");
}

TEST(Validate, DirectoriesOfTheRunHaveNoTilde) {
    for (const char* section : {"checkpoint", "offload"}) {
        const std::string key = concat(section, ".dir=");
        EXPECT_EQ(
            problems_of({key + "~/run"}),
            concat("[", section, "] dir = \"~/run\": ~ is not expanded; write the path of the home directory, or ",
                   "./~ for a directory of this name"));
        EXPECT_EQ(problems_of({key + "./~/run"}), "");
        EXPECT_EQ(problems_of({key + "~run"}), "");
    }
}

TEST(Validate, ATraceBeginsInsideTheRun) {
    EXPECT_EQ(problems_of({"log.trace=true", "log.trace_first=7", "train.steps=7"}), "");
    EXPECT_EQ(problems_of({"log.trace=true", "log.trace_first=8", "train.steps=7"}),
              "[log] trace_first = 8: must be at most [train] steps = 7, or 0");
    EXPECT_EQ(problems_of({"log.trace_first=8", "train.steps=7"}), "");
}

TEST(Validate, ReportsAllAtOnceAndOnlyThose) {
    RunSpec run;  // made by a program, not read: the ranges of single fields hold here too
    run.data.train = {"a.txt"};
    run.train.steps = -1;
    run.train.global_batch = 0;
    run.model = preset("gpt2-124m");
    run.model.width = int64_t{1} << 62;
    run.model.head_dim = int64_t{1} << 62;
    run.precision.compute = "f23";
    EXPECT_EQ(refusal_of(run),
              "[model] width = 4611686018427387904: must be in [1, 1048576]\n"
              "[model] head_dim = 4611686018427387904: must be in [0, 65536]\n"
              "[train] steps = -1: must be in [1, 1000000000000000]\n"
              "[train] global_batch = 0: must be in [1, 2147483647]\n"
              "[precision] compute = \"f23\": must be one of bf16 | f16 | f32 | tf32; the nearest is \"f32\"");
    // Then the rules between keys, which are asked about legal values alone.
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.width=1048576", "train.global_batch=4",
                           "parallel.accumulate=shard"}),
              "[model] heads * head_dim = 12 * 64 = 768: in gpt2 it must equal width = 1048576; heads must divide "
              "width, nearest: heads = 8 or 16\n"
              "[train] global_batch = 4: must be a multiple of micro_batch * data-parallel ranks = 8 * 1 = 8; nearest: "
              "global_batch = 8, or micro_batch = 4\n"
              "[parallel] accumulate = \"shard\": zero = 1 keeps whole gradients; set zero = 2 or 3, or accumulate = "
              "\"auto\"");
}

// --- Values at and beyond the ends of their ranges: an error that names the key, and never a signal ------------------

// Values just below and above a field's range, then values at its ends and 0, which are legal or beyond it too.
std::vector<int64_t> extremes(const Range& r, int64_t) {
    constexpr auto kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> all = {kLeast, -1, 0, 1, kMost};
    if (std::isfinite(r.low)) all.insert(all.end(), {static_cast<int64_t>(r.low) - 1, static_cast<int64_t>(r.low)});
    if (std::isfinite(r.high)) all.insert(all.end(), {static_cast<int64_t>(r.high), static_cast<int64_t>(r.high) + 1});
    return all;
}
std::vector<double> extremes(const Range& r, double) {
    std::vector<double> all = {-1, 0, 1, NAN, INFINITY, 5e-324, std::numeric_limits<double>::max()};
    if (std::isfinite(r.low)) all.insert(all.end(), {r.low - 1, r.low});
    if (std::isfinite(r.high)) all.insert(all.end(), {r.high, r.high + 1});
    return all;
}
std::vector<bool> extremes(const Range&, bool) { return {false, true}; }
std::vector<std::string> extremes(const Range& r, const std::string&) {
    std::vector<std::string> all = {"", "no such value", "0", "0-99999", "every:0"};
    all.insert(all.end(), r.choices.begin(), r.choices.end());
    return all;
}
std::vector<std::vector<std::string>> extremes(const Range&, const std::vector<std::string>&) {
    return {{}, {""}, {"a.txt"}};
}
std::vector<std::vector<ParameterGroup>> extremes(const Range&, const std::vector<ParameterGroup>&) {
    return {{}, {{"norm", 0, 1}}, {{"(", {}, 1}}, {{"", {}, 1}}, {{"a", -1, 1}}, {{"b", {}, NAN}}};
}
std::vector<std::vector<StageSpec>> extremes(const Range&, const std::vector<StageSpec>&) {
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    return {{},
            {{0, {}}},
            {{7, {}}},
            {{0, {}}, {0, {}}},
            {{5, {}}, {5, {}}, {0, {}}},
            {{kMost, {}}, {0, {}}},
            {{1, {{"train.global_batch", int64_t{2147483647}}}}, {0, {}}}};
}
std::vector<Family> extremes(const Range&, Family) {
    return {Family::gpt2, Family::llama, Family::lfm2, Family::mlp, static_cast<Family>(17)};
}

// A dense model and a mixture over several ranks: every axis is read by some rule.
std::vector<RunSpec> legal_runs() {
    return {parse_text("", "dense", {"data.train=a.txt", "parallel.cp=2", "parallel.cp_method=ulysses"}),
            parse_text("", "mixture",
                       {"data.train=a.txt", "model.preset=moe-tiny", "parallel.tp=2", "parallel.ep=2", "parallel.pp=2",
                        "parallel.cp=2", "model.moe.groups=2", "model.moe.top_groups=2", "parallel.zero=3"})};
}

TEST(Validate, LatentAttention) {
    const auto of_v3 = [](std::vector<std::string> set) {
        set.insert(set.begin(), "model.preset=deepseek-v3-tiny");
        return problems_of(set);
    };
    EXPECT_EQ(of_v3({}), "");
    EXPECT_EQ(
        of_v3({"model.rope_dims=0"}),
        "[model] kv_latent = 48: the heads share a key of rope_dims = 0 channels, from 2 to below head_dim = 32; set "
        "rope_dims");
    EXPECT_EQ(of_v3({"model.value_dim=33"}),
              "[model] value_dim = 33: must be at most head_dim = 32; nearest: value_dim = 32");
    EXPECT_EQ(of_v3({"model.kv_heads=2"}),
              "[model] kv_heads = 2: with kv_latent each head has its own keys; it must equal heads = 4");
    EXPECT_EQ(
        of_v3({"model.window=4"}),
        "[model] kv_latent = 48: latent attention has no head_norm, width_norm, qkv_bias, output_bias, query_growth, "
        "window, nope_layers or sinks; leave them out");
    EXPECT_EQ(problems_of({"model.q_latent=4", "model.value_dim=8"}),
              "[model] q_latent = 4: has no effect while kv_latent = 0; set kv_latent or leave it out\n"
              "[model] value_dim = 8: values are as wide as keys while kv_latent = 0; set kv_latent or leave it out");
    EXPECT_EQ(of_v3({"model.moe.group_best=3"}), "[model] moe.group_best = 3: a group has 2 experts");
    EXPECT_EQ(of_v3({"model.moe.groups=1", "model.moe.top_groups=1"}),
              "[model] moe.group_best = 2: has no effect while groups = 1; set groups or leave it out");
    EXPECT_EQ(of_v3({"model.moe.group_best=0"}),
              "[model] moe.top_k = 3: must be a multiple of top_groups = 2, since a group is judged by its top_k / "
              "top_groups best experts; or set group_best");
    EXPECT_EQ(problems_of({"model.preset=gpt2-124m", "model.kv_latent=8"}),
              "[model] kv_latent = 8: the family gpt2 does not use it; it must be 0");
}

TEST(Validate, NamesTheKeyOfEveryValueOutOfItsRange) {
    for (const RunSpec& legal : legal_runs()) {
        ASSERT_EQ(refusal_of(legal, 8), "");
        RunSpec run = legal;
        int refused = 0;
        for_each_field(run, [&](const Field& field, auto& value) {
            const auto usual = value;
            for (const auto& extreme : extremes(field.range, usual)) {
                value = extreme;
                const std::string problems = refusal_of(run, 8);
                if (!range_problem(field, value)) continue;
                ++refused;
                EXPECT_TRUE(problems.starts_with(field.name() + " = ")) << problems;
                EXPECT_EQ(problems.find('\n'), std::string::npos) << problems;
                if (field.section != "model") continue;
                EXPECT_EQ(model_problems(run.model), std::vector{problems});
            }
            value = usual;
        });
        EXPECT_GT(refused, 250);
        EXPECT_EQ(run, legal);
    }
}

TEST(Validate, GradientsAreSentAsTheyAreStoredOrRoundedOnce) {
    EXPECT_EQ(problems_of({"precision.gradients=bf16", "parallel.zero=0"}), "");
    EXPECT_EQ(problems_of({"precision.gradients=bf16", "precision.reduce=bf16", "parallel.zero=3"}), "");
    EXPECT_EQ(problems_of({"precision.reduce=bf16", "parallel.zero=1"}), "");
    EXPECT_EQ(problems_of({"precision.reduce=bf16", "parallel.zero=0"}),
              "[precision] reduce = \"bf16\": zero = 0 sums gradients where they are stored; set zero = 1, 2 or 3, or "
              "gradients = \"bf16\"");
    EXPECT_EQ(problems_of({"precision.gradients=bf16", "precision.reduce=f32"}),
              "[precision] gradients = \"bf16\": reduce = \"f32\": they are sent as they are stored; set reduce = "
              "\"auto\", or gradients = \"f32\"");
    EXPECT_EQ(problems_of({"precision.gradients=bf16", "parallel.strategy=parameter_server", "parallel.zero=0"}),
              "[precision] gradients = \"bf16\": a parameter server adds gradients in f32; set strategy = "
              "\"collective\", or gradients = \"f32\"");
    EXPECT_NE(problems_of({"precision.gradients=bf16", "train.cuda_graphs=true", "train.device=cuda"})
                  .find("adds to gradients in f32; set cuda_graphs = false, or gradients = \"f32\""),
              std::string::npos);
}

TEST(Validate, AnyTwoValuesAtTheEndsOfTheirRangesAreNoSignal) {
    const std::vector<RunSpec> legal = legal_runs();
    std::mt19937_64 random(36);
    std::vector<std::string> paths;
    for_each_field(legal[0], [&](const Field& field, const auto&) { paths.push_back(field.path()); });
    for (int i = 0; i < 3000; ++i) {
        RunSpec run = legal[to_size(i) % 2];
        const std::string one = paths[random() % paths.size()], other = paths[random() % paths.size()];
        std::string wrong;  // the first of the two that is out of its range
        for_each_field(run, [&](const Field& field, auto& value) {
            if (field.path() != one && field.path() != other) return;
            const auto values = extremes(field.range, value);
            value = values[random() % values.size()];
            if (wrong.empty() && range_problem(field, value)) wrong = field.name();
        });
        const std::string problems = refusal_of(run, i % 3 == 0 ? 1 : 8);
        EXPECT_TRUE(problems.starts_with(wrong)) << problems;
    }
    for (const int ranks : {0, -1, std::numeric_limits<int>::min()})
        EXPECT_NE(refusal_of(legal[0], ranks), "") << ranks;
}

}  // namespace
}  // namespace tutti::spec
