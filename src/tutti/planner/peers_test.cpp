// Runs in the words of other trainers: what is written is read again as the same run, and launch scripts as people
// write them are understood.
#include "tutti/planner/peers.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/planner/peer_tables.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {
namespace {

// `model`: a preset for a peer whose config has no model.
spec::RunSpec read_again(Peer peer, const std::string& text, const std::string& model, int64_t seq_len,
                         PeerRun* read = nullptr) {
    PeerRun run = read_peer(peer, text, "emitted");
    EXPECT_EQ(joined(run.unknown), "") << text;
    std::vector<std::string> set = run.set;
    if (peer == Peer::deepspeed) {
        set.push_back("model.preset=" + model);
        set.push_back(concat("train.seq_len=", seq_len));
    } else if (!run.has_preset()) {
        set.insert(set.begin(), "model.preset=");
    }
    set.emplace_back("data.train=x.bin");
    if (read != nullptr) *read = std::move(run);
    return spec::parse_text("", "read", set);
}

// What the options say of a run: the peers have no words for the rest, or other defaults.
struct Said {
    spec::ParallelSpec parallel;
    spec::OptimizerSpec optimizer;
    std::string recompute, compute;
    int64_t layers, width, heads, kv_heads, ffn, vocab, experts, seq_len, global_batch, micro_batch;
    bool operator==(const Said&) const = default;
};

Said said(const spec::RunSpec& run, int ranks) {
    Said s{run.parallel,          run.optimizer,     run.recompute.policy,   run.precision.compute, run.model.layers,
           run.model.width,       run.model.heads,   run.model.kv_heads,     run.model.ffn,         run.model.vocab,
           run.model.moe.experts, run.train.seq_len, run.train.global_batch, run.train.micro_batch};
    spec::ParallelSpec& p = s.parallel;
    p.dp_shard = spec::data_parallel_shards(p, ranks);
    if (p.tp == 1) p.sequence_parallel = true;
    if (p.cp == 1) p.cp_method = "ring";
    if (p.pp == 1) p.schedule = "1f1b";
    if (p.schedule != "interleaved") p.virtual_stages = 1;
    if (spec::data_parallel_ranks(p, ranks) == 1) p.zero = 1;
    return s;
}

TEST(Peers, TwoHundredRandomLayoutsAreReadAsTheyAreWritten) {
    std::mt19937 random(7);
    const auto any = [&](const auto& list) { return list[random() % std::size(list)]; };
    for (const std::string& name : peer_names()) {
        const Peer peer = peer_named(name);
        int checked = 0;
        for (int attempt = 0; attempt < 200'000 && checked < 200; ++attempt) {
            const bool experts = peer == Peer::megatron && attempt % 3 == 0;
            const int gpus = any((const int[]){8, 16, 32, 64});
            const std::string preset = experts ? "mixtral-8x7b" : peer == Peer::nanogpt ? "gpt2-124m" : "llama3-8b";
            const int batch = any((const int[]){32, 64, 128});
            const int seq_len = peer == Peer::nanogpt ? 1024 : any((const int[]){2048, 8192});
            Request r = request_for(spec::preset(preset), hardware::cluster_named("h100"), gpus, batch, seq_len);
            if (peer == Peer::nanogpt) r.run.model.vocab = 50304;  // its default
            keep_to(r.limits, peer);
            spec::RunSpec run = plain_run(r);
            spec::ParallelSpec& p = run.parallel;
            const bool divided = peer != Peer::deepspeed && peer != Peer::nanogpt;  // by more than dp and tp
            p.tp = peer == Peer::nanogpt ? 1 : any((const int[]){1, 2, 4, 8});
            p.cp = divided ? any((const int[]){1, 2, 4}) : 1;
            p.pp = divided ? any((const int[]){1, 2, 4, 8}) : 1;
            p.ep = experts ? any((const int[]){1, 2, 4, 8}) : 1;
            p.zero = r.limits.zero.empty() ? static_cast<int>(random() % 4) : any(r.limits.zero);
            run.train.micro_batch = any((const int[]){1, 2, 4});
            p.sequence_parallel = peer == Peer::torchtitan || p.tp == 1 || any((const bool[]){true, false});
            if (peer == Peer::deepspeed) p.sequence_parallel = p.tp == 1;
            run.recompute.policy = divided ? any((const char* const[]){"none", "selective", "full"}) : "none";
            p.cp_method = peer == Peer::nanotron ? "ring" : any((const char* const[]){"ring", "all_gather"});
            if (p.pp > 1) p.schedule = any(r.limits.schedules);
            p.virtual_stages = p.pp == 1 || p.schedule == "1f1b" ? 1
                               : p.schedule == "interleaved"     ? 1 << (1 + random() % 2)
                                                                 : 2;
            if (gpus % (p.tp * p.cp * p.pp) != 0) continue;
            const int64_t dp = gpus / (p.tp * p.cp * p.pp);
            if (r.limits.dp_replicate.empty() && dp % 2 == 0 && p.zero > 0) p.dp_replicate = any((const int[]){1, 2});
            p.dp_shard = dp / p.dp_replicate;
            set_stages(run);
            if (peer != Peer::torchtitan) run.precision.compute = any((const char* const[]){"bf16", "f16", "f32"});
            run.optimizer.lr = any((const double[]){1e-4, 6e-4});
            run.optimizer.warmup_steps = any((const int64_t[]){0, 100, 2000});
            run.optimizer.beta2 = any((const double[]){0.95, 0.999});
            run.optimizer.weight_decay = any((const double[]){0, 0.1});
            run.optimizer.clip = any((const double[]){0.5, 1});
            if (peer != Peer::torchtitan) run.optimizer.schedule = any((const char* const[]){"cosine", "linear"});
            if (peer == Peer::nanogpt) run.optimizer.schedule = any((const char* const[]){"cosine", "constant"});
            if (peer == Peer::deepspeed && run.optimizer.schedule == "linear") run.optimizer.min_lr = 0;
            if (!allowed(r, run)) continue;
            try {
                spec::validate(run, gpus);
            } catch (const UsageError&) {
                continue;
            }
            const std::string text = emit_for(peer, run, gpus);
            ASSERT_EQ(text.find("# not the same"), std::string::npos) << text;
            PeerRun read;
            const spec::RunSpec again = read_again(peer, text, preset, r.run.train.seq_len, &read);
            ASSERT_NO_THROW(spec::validate(again, gpus)) << text;
            ASSERT_EQ(said(again, gpus), said(run, gpus)) << text << spec::to_toml(again);
            ASSERT_EQ(read.ranks, peer == Peer::torchtitan || peer == Peer::nanogpt ? 0 : gpus) << text;
            ++checked;
        }
        EXPECT_EQ(checked, 200) << name;
    }
}

// Each option of `tutti config --from` is one that a file may have: none of them is called unknown.
TEST(Peers, NoOptionOfTheTablesIsUnknown) {
    for (const std::string& name : peer_names()) {
        const Peer peer = peer_named(name);
        EXPECT_GT(options_of(peer).size(), 20U);
        for (const PeerOption& option : options_of(peer)) {
            const size_t dot = option.theirs.rfind('.');
            std::string value = "1";  // or one of the words of the option
            for (const Row& row : rows_of(peer))
                if (row.theirs == option.theirs)
                    for (const Word& word : row.given())
                        if (word.theirs != kAbsent && *word.theirs != 0) value = word.theirs;
            const std::string quoted = value == "1" ? value : concat('"', value, '"');
            std::string text = concat(option.theirs, " ", value);
            if (peer == Peer::torchtitan)
                text = dot == std::string::npos ? concat(option.theirs, " = ", quoted)
                                                : concat("[", option.theirs.substr(0, dot), "]\n",
                                                         option.theirs.substr(dot + 1), " = ", quoted);
            if (peer == Peer::nanogpt) text = concat(option.theirs, " = ", quoted);
            if (peer == Peer::nanotron || peer == Peer::deepspeed) {
                const bool list = option.theirs == "optimizer.params.betas";
                std::string key, close;
                std::istringstream keys(option.theirs);
                text = peer == Peer::deepspeed ? "{" : "";
                std::string indent;
                while (std::getline(keys, key, '.')) {
                    const bool last = keys.eof();
                    if (peer == Peer::nanotron) {
                        text += concat(indent, key, last ? concat(": ", value, "\n") : ":\n");
                        indent += "  ";
                    } else {
                        text += concat('"', key, "\": ", last ? (list ? "[1, 1]" : quoted) : "{");
                        close += '}';
                    }
                }
                text += close;
            }
            EXPECT_EQ(joined(read_peer(peer, text, "option").unknown), "") << name << ' ' << text;
        }
    }
}

TEST(Peers, ANanogptConfigAsPeopleWriteIt) {
    const PeerRun read = read_peer(Peer::nanogpt, R"(# config for training GPT-2 (124M)
# $ torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py
wandb_log = True
wandb_project = 'owt'
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
max_iters = 600000
lr_decay_iters = 600000
weight_decay = 1e-1
)",
                                   "train_gpt2.py");
    const auto has = [&](const char* s) { return std::find(read.set.begin(), read.set.end(), s) != read.set.end(); };
    for (const char* s : {"train.global_batch=480", "train.micro_batch=12", "train.steps=600000", "model.family=gpt2",
                          "model.layers=12", "model.vocab=50304", "optimizer.weight_decay=1e-1"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(read.set);
    EXPECT_EQ(joined(read.unknown), "");
}

TEST(Peers, ADeepSpeedConfigAsPeopleWriteIt) {
    const PeerRun read = read_peer(Peer::deepspeed, R"({
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "bf16": {"enabled": true}, "fp16": {"enabled": false}, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": 1000}},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                        "stage3_prefetch_bucket_size": 5e7}, "my_own": 1})",
                                   "ds_config.json");
    EXPECT_EQ(read.ranks, 8);
    EXPECT_EQ(joined(read.unknown), "my_own");
    const auto has = [&](const char* s) { return std::find(read.set.begin(), read.set.end(), s) != read.set.end(); };
    for (const char* s : {"parallel.zero=3", "offload.optimizer=true", "offload.params=false", "optimizer.beta2=0.95",
                          "optimizer.schedule=linear", "train.steps=1000", "precision.compute=bf16"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(read.set);
    EXPECT_THROW(read_peer(Peer::deepspeed, "{", "x.json"), UsageError);
    EXPECT_THROW(read_peer(Peer::deepspeed, R"({"optimizer": {"params": {"betas": [0.9]}}})", "x.json"), UsageError);
}

// What a file does not say is the peer's default, and a value without a counterpart is named (train.py, FusedAdam,
// lr_schedules.py).
TEST(Peers, DefaultsAreThoseOfThePeerAndUnknownValuesAreNamed) {
    const auto has = [](const PeerRun& read, const char* s) {
        return std::find(read.set.begin(), read.set.end(), s) != read.set.end();
    };
    const PeerRun nano = read_peer(Peer::nanogpt, "n_layer = 6\nlearning_rate = 1e-3\n", "x.py");
    for (const char* s : {"model.layers=6", "optimizer.lr=1e-3", "optimizer.min_lr=6e-5", "optimizer.warmup_steps=2000",
                          "optimizer.beta2=0.95", "train.steps=600000", "precision.compute=bf16"})
        EXPECT_TRUE(has(nano, s)) << s << " is not in " << joined(nano.set);
    const auto deepspeed = [](const std::string& text) { return read_peer(Peer::deepspeed, text, "x.json"); };
    const PeerRun adam = deepspeed(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.01}}})");
    for (const char* s :
         {"optimizer.name=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.0", "optimizer.beta2=0.999"})
        EXPECT_TRUE(has(adam, s)) << s << " is not in " << joined(adam.set);
    EXPECT_EQ(joined(deepspeed("{}").set).find("optimizer.lr"), std::string::npos) << "it was in the Python of the run";
    const PeerRun other = deepspeed(
        R"({"optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "nvme"}}})");
    EXPECT_EQ(joined(other.unknown), "zero_optimization.offload_optimizer.device nvme, optimizer.type Lamb");
    EXPECT_TRUE(has(other, "offload.params=false")) << joined(other.set);
    EXPECT_FALSE(has(other, "optimizer.name=adamw"));
    EXPECT_FALSE(has(other, "offload.optimizer=true"));
    // WarmupDecayLR sets the rate, whatever the optimizer says.
    const PeerRun decay = deepspeed(R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {
        "type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-4, "warmup_type": "linear", "total_num_steps": 50}}})");
    EXPECT_TRUE(has(decay, "optimizer.lr=0.0001")) << joined(decay.set);
    EXPECT_EQ(joined(decay.notes).find("warmup"), std::string::npos) << joined(decay.notes);
    const PeerRun cosine = deepspeed(R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "scheduler": {
        "type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.25}}})");
    EXPECT_TRUE(has(cosine, "optimizer.min_lr=0.125")) << joined(cosine.set);
    EXPECT_NE(joined(cosine.notes).find("logarithm"), std::string::npos) << joined(cosine.notes);
}

TEST(Peers, AScriptWithVariablesArraysAndTorchrun) {
    const PeerRun read = read_peer(Peer::megatron, R"(#!/bin/bash
# trains a 175B model
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-16}
TP=8
PP=${PP:-16}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr localhost
)
GPT_MODEL_ARGS=(
    --num-layers 96 --hidden-size 12288   # the model
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
)
MOE="--num-experts 8 --moe-router-topk 2"
TRAINING_ARGS="--micro-batch-size 1 \
  --global-batch-size 1536 \
  --train-iters 500000 --fp16"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage=2 \
    --use-distributed-optimizer --sequence-parallel \
    --recompute-granularity selective \
    --save ckpt --log-interval 100 --some-new-flag 3
)",
                                   "pretrain.sh");
    EXPECT_EQ(read.ranks, 128);
    EXPECT_EQ(joined(read.unknown), "--some-new-flag");
    EXPECT_FALSE(read.ignored.empty());
    const auto has = [&](const char* s) { return std::find(read.set.begin(), read.set.end(), s) != read.set.end(); };
    for (const char* s :
         {"model.layers=96", "model.width=12288", "model.ffn=49152", "model.family=gpt2", "parallel.tp=8",
          "parallel.pp=16", "parallel.schedule=interleaved", "parallel.virtual_stages=3", "parallel.zero=1",
          "recompute.policy=selective", "train.global_batch=1536", "precision.compute=f16", "model.moe.experts=8"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(read.set);
}

// What Megatron-LM's own examples have (examples/llama, examples/gpt3): pairs in quotes, FP8, a split.
TEST(Peers, AScriptWithQuotedPairsAndFp8) {
    const PeerRun read = read_peer(Peer::megatron, R"(
DATA_ARGS_LIST+=(
    "--tokenizer-type NullTokenizer"
    "--vocab-size 128256"
    "--split '99,1,0'"
)
DTYPE_ARGS+=(
    "--fp8-format hybrid"
    "--fp8-amax-history-len 1024"
    "--fp8-amax-compute-algo max"
)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 8 --eval-interval 100 --bf16 \
    --normalization LayerNorm --grad-reduce-in-bf16 ${DATA_ARGS_LIST[@]} ${DTYPE_ARGS[@]}
)",
                                   "train.sh");
    const auto has = [&](const char* s) { return std::find(read.set.begin(), read.set.end(), s) != read.set.end(); };
    for (const char* s :
         {"model.vocab=128256", "precision.recipe=delayed", "precision.amax_history=1024", "precision.amax_of=max",
          "precision.reduce=bf16", "data.valid_fraction=0.01", "model.family=gpt2"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(read.set);
    EXPECT_EQ(joined(read.unknown), "");
    const PeerRun block =
        read_peer(Peer::megatron,
                  "a.py --num-layers 2 --fp8-format e4m3 --fp8-recipe blockwise --lr-decay-style inverse", "x.sh");
    const auto sets = [&](const char* s) {
        return std::find(block.set.begin(), block.set.end(), s) != block.set.end();
    };
    EXPECT_TRUE(sets("precision.recipe=block") && sets("precision.formats=e4m3")) << joined(block.set);
    EXPECT_EQ(joined(block.unknown), "--lr-decay-style inverse");
}

// Recipes are read as they are written, with what the run keeps in bf16 and gathers.
TEST(Peers, RecipesAreReadAsTheyAreWritten) {
    const auto again = [](Peer peer, const char* recipe, const char* formats, bool ends, bool gathers) {
        Request r = request_for(spec::preset("llama3-8b"), hardware::cluster_named("h100"), 16, 32, 2048);
        keep_to(r.limits, peer);
        spec::RunSpec run = plain_run(r);
        run.parallel.zero = 3;
        run.precision.compute = "bf16";
        run.precision.recipe = recipe, run.precision.formats = formats;
        run.precision.bf16_first = ends ? 2 : 0, run.precision.bf16_last = ends ? 1 : 0;
        run.precision.amax_history = 7, run.precision.amax_of = "most_recent";
        if (gathers) run.precision.gather = "weights";
        spec::validate(run, 16);
        const std::string text = emit_for(peer, run, 16);
        EXPECT_EQ(text.find("# not the same"), std::string::npos) << text;
        const spec::PrecisionSpec read = read_again(peer, text, "llama3-8b", 2048, nullptr).precision;
        EXPECT_EQ(read.recipe, recipe) << text;
        EXPECT_EQ(spec::recipe_of(read)->dy, spec::recipe_of(run.precision)->dy) << text;
        if (recipe == std::string("delayed")) {
            EXPECT_EQ(std::pair(read.amax_history, read.amax_of), std::pair(int64_t{7}, std::string("most_recent")));
        }
        if (peer == Peer::megatron) {
            EXPECT_EQ(std::pair(read.bf16_first, read.bf16_last),
                      std::pair(run.precision.bf16_first, run.precision.bf16_last));
        }
        EXPECT_EQ(read.gather, run.precision.gather) << text;
    };
    for (const char* recipe : {"tensor", "delayed", "block", "mxfp8"})
        for (const char* formats : {"auto", "e4m3", "hybrid"})
            for (const bool gathers : {false, true}) {
                const bool two_sets = recipe == std::string("mxfp8"), delayed = recipe == std::string("delayed");
                if (two_sets && gathers) continue;
                again(Peer::megatron, recipe, formats, !delayed, gathers);
            }
    again(Peer::torchtitan, "tensor", "auto", false, false);
    again(Peer::torchtitan, "tensor", "auto", false, true);
    again(Peer::torchtitan, "mxfp8", "auto", false, false);
    const PeerRun of_zero_1 =
        read_peer(Peer::megatron,
                  "a.py --num-layers 2 --fp8-format hybrid --fp8-param-gather --use-distributed-optimizer", "x.sh");
    const auto sets = [&](const char* s) {
        return std::find(of_zero_1.set.begin(), of_zero_1.set.end(), s) != of_zero_1.set.end();
    };
    for (const char* s : {"precision.recipe=delayed", "precision.amax_history=1", "precision.amax_of=most_recent",
                          "precision.bf16_first=0", "precision.bf16_last=0"})
        EXPECT_TRUE(sets(s)) << s << " is not in " << joined(of_zero_1.set);
    EXPECT_FALSE(sets("precision.gather=weights"));
    EXPECT_NE(joined(of_zero_1.notes).find("--fp8-param-gather"), std::string::npos) << joined(of_zero_1.notes);
    EXPECT_EQ(joined(of_zero_1.unknown), "");
}

TEST(Peers, WrongValuesAreNamed) {
    const auto message = [](std::string_view text) {
        try {
            read_peer(Peer::megatron, text, "x.sh");
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_NE(message("a.py --num-layers $LAYERS").find("--num-layers $LAYERS: the script does not set this variable"),
              std::string::npos);
    EXPECT_NE(
        message("a.py --num-attention-heads many --hidden-size 8").find("--num-attention-heads many: a whole number"),
        std::string::npos);
    EXPECT_THROW(peer_named("megatronn"), UsageError);
}

TEST(Limits, AreWords) {
    Limits limits;
    leave_out(limits, "offload,cp,zb-v");
    EXPECT_FALSE(limits.offload);
    EXPECT_EQ(limits.cp, std::vector<int>{1});
    EXPECT_FALSE(Limits::in(limits.schedules, "zb-v"));
    EXPECT_TRUE(Limits::in(limits.schedules, "1f1b"));
    EXPECT_THROW(leave_out(limits, "offloads"), UsageError);
    Limits held;
    hold(held, "tp 8, pp 16 interleaved x 7, dp 2 x 64, ZeRO-1, micro batch 1, full recompute");
    EXPECT_EQ(held.tp, std::vector<int>{8});
    EXPECT_EQ(held.pp, std::vector<int>{16});
    EXPECT_EQ(held.schedules, std::vector<std::string>{"interleaved"});
    EXPECT_EQ(held.virtual_stages, std::vector<int>{7});
    EXPECT_EQ(held.dp_replicate, std::vector<int>{2});
    EXPECT_EQ(held.dp, std::vector<int>{128});
    EXPECT_EQ(held.zero, std::vector<int>{1});
    EXPECT_EQ(held.micro_batch, std::vector<int>{1});
    EXPECT_EQ(held.recompute, std::vector<std::string>{"full"});
    hold(held, "tp8 pp=4 zero3");
    EXPECT_EQ(held.tp, std::vector<int>{8});
    EXPECT_EQ(held.pp, std::vector<int>{4});
    EXPECT_EQ(held.zero, std::vector<int>{3});
    for (const char* wrong : {"", "tp", "tp x", "ttp 8", "tp 8 and pp 4", "tp 0", "dp 2 x 0", "tp 8 tp 4", "zb-v 1f1b",
                              "ZeRO-1 ZeRO-3", "none full"})
        EXPECT_THROW(hold(held, wrong), UsageError) << wrong;
}

// A run of ours is told as its row of published runs would be.
TEST(Peers, MemoryIsThatOfThePublishedRow) {
    const published::PublishedRun row = published::read_runs(R"({"rows": [{"model": "Mixtral 8x7B", "layers": 32,
        "hidden": 4096, "ffn": 14336, "moe_ffn": 14336, "num_experts": 8, "top_k": 2, "heads": 32, "kv_heads": 8,
        "head_dim": 128, "vocab": 32000, "mlp": "swiglu", "seq_len": 4096, "gpu": "H100", "num_gpus": 64, "tp": 2,
        "pp": 4, "ep": 8, "global_batch": 256, "micro_batch": 1, "zero_stage": 1, "schedule": "1f1b",
        "recompute": "selective", "precision": "bf16", "software": "Megatron-LM 0.14"}]})",
                                                             "row")
                                            .at(0);
    EXPECT_EQ(row.problem, "");
    Request r = request_for(spec::preset("mixtral-8x7b"), hardware::cluster_named("h100"), 64, 256, 4096);
    r.run.parallel.tp = 2;
    r.run.parallel.pp = 4;
    r.run.parallel.ep = 8;
    r.run.parallel.zero = 1;
    r.run.train.micro_batch = 1;
    r.run.recompute.policy = "selective";
    const std::optional<PeerMemory> theirs = memory_of(Peer::megatron, r, r.run);
    ASSERT_TRUE(theirs);
    EXPECT_EQ(theirs->system, "megatron-core");
    EXPECT_NEAR(theirs->bytes / memory(row).total(), 1, 1e-3);  // the row's vocabulary is padded
    EXPECT_GT(theirs->errors.rows, 10);
    EXPECT_LT(theirs->errors.median, 0.2);
    EXPECT_NE(render(*theirs, 1e11).find(concat("on ", theirs->errors.rows, " published rows")), std::string::npos);
    EXPECT_FALSE(memory_of(Peer::deepspeed, r, r.run));
    r.run.model = spec::preset("mamba-codestral-7b");
    EXPECT_FALSE(memory_of(Peer::megatron, r, r.run));
}

}  // namespace
}  // namespace tutti::planner
