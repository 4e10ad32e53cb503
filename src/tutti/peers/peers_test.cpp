// Texts of other trainers as people write them.
#include "tutti/peers/peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/peers/tables.h"
#include "tutti/spec/learning_rate.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::peers {
namespace {

// Each option of `tutti config --from` is one that a file may have: none of them is called unknown.
TEST(Peers, NoOptionOfTheTablesIsUnknown) {
    for (const std::string& name : names()) {
        const Peer peer = named(name);
        EXPECT_GT(options_of(peer).size(), 20U);
        for (const Option& option : options_of(peer)) {
            const size_t dot = option.theirs.rfind('.');
            std::string value = "1";  // or one of the words of the option
            for (const Row& row : tables_of(peer).rows)
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
            EXPECT_EQ(joined(read(peer, text, "option").unknown), "") << name << ' ' << text;
        }
    }
}

TEST(Peers, ANanogptConfigAsPeopleWriteIt) {
    const TheirRun run = read(Peer::nanogpt, R"(# config for training GPT-2 (124M)
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
    const auto has = [&](const char* s) { return std::find(run.set.begin(), run.set.end(), s) != run.set.end(); };
    for (const char* s : {"train.global_batch=480", "train.micro_batch=12", "train.steps=600000", "model.family=gpt2",
                          "model.layers=12", "model.vocab=50304", "optimizer.weight_decay=1e-1"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(run.set);
    EXPECT_EQ(joined(run.unknown), "");
}

TEST(Peers, ADeepSpeedConfigAsPeopleWriteIt) {
    const TheirRun run = read(Peer::deepspeed, R"({
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "bf16": {"enabled": true}, "fp16": {"enabled": false}, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": 1000}},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                        "stage3_prefetch_bucket_size": 5e7}, "my_own": 1})",
                              "ds_config.json");
    EXPECT_EQ(run.ranks, 8);
    EXPECT_EQ(joined(run.unknown), "my_own");
    const auto has = [&](const char* s) { return std::find(run.set.begin(), run.set.end(), s) != run.set.end(); };
    for (const char* s : {"parallel.zero=3", "offload.optimizer=true", "offload.params=false", "optimizer.beta2=0.95",
                          "optimizer.schedule=linear", "train.steps=1000", "precision.compute=bf16"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(run.set);
    EXPECT_THROW(read(Peer::deepspeed, "{", "x.json"), UsageError);
    EXPECT_THROW(read(Peer::deepspeed, R"({"optimizer": {"params": {"betas": [0.9]}}})", "x.json"), UsageError);
}

TEST(Peers, AFileWithoutAnOptionOfThePeerIsNoRun) {
    const std::pair<Peer, const char*> files[] = {{Peer::megatron, "#!/bin/bash\nls --all *.txt\n"},
                                                  {Peer::torchtitan, "[tool.black]\nline-length = 88\n"},
                                                  {Peer::nanotron, "steps:\n  - checkout\n"},
                                                  {Peer::deepspeed, "{}"},
                                                  {Peer::nanogpt, "import os\n"}};
    for (const auto& [peer, text] : files) {
        try {
            read(peer, text, "x");
            ADD_FAILURE() << text;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find("x: has no option of "), std::string::npos) << error.what();
        }
    }
}

// What a file does not say is the peer's default, and a value without a counterpart is named (train.py, FusedAdam,
// lr_schedules.py).
TEST(Peers, DefaultsAreThoseOfThePeerAndUnknownValuesAreNamed) {
    const auto has = [](const TheirRun& run, const char* s) {
        return std::find(run.set.begin(), run.set.end(), s) != run.set.end();
    };
    const TheirRun nano = read(Peer::nanogpt, "n_layer = 6\nlearning_rate = 1e-3\n", "x.py");
    for (const char* s : {"model.layers=6", "optimizer.lr=1e-3", "optimizer.min_lr=6e-5", "optimizer.warmup_steps=2000",
                          "optimizer.beta2=0.95", "train.steps=600000", "precision.compute=bf16"})
        EXPECT_TRUE(has(nano, s)) << s << " is not in " << joined(nano.set);
    for (const char* bias : {"", "bias = False\n", "bias = True\n"})
        EXPECT_EQ(joined(read(Peer::nanogpt, concat("n_layer = 6\n", bias), "x.py").notes).find("bias = False") !=
                      std::string::npos,
                  std::string(bias).find("True") == std::string::npos);
    const auto deepspeed = [](const std::string& text) { return read(Peer::deepspeed, text, "x.json"); };
    const TheirRun adam = deepspeed(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.01}}})");
    for (const char* s :
         {"optimizer.name=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.0", "optimizer.beta2=0.999"})
        EXPECT_TRUE(has(adam, s)) << s << " is not in " << joined(adam.set);
    EXPECT_EQ(joined(deepspeed(R"({"train_batch_size": 8})").set).find("optimizer.lr"), std::string::npos)
        << "it was in the Python of the run";
    const TheirRun other = deepspeed(
        R"({"optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "nvme"}}})");
    EXPECT_EQ(joined(other.unknown), "zero_optimization.offload_optimizer.device nvme, optimizer.type Lamb");
    EXPECT_TRUE(has(other, "offload.params=false")) << joined(other.set);
    EXPECT_FALSE(has(other, "optimizer.name=adamw"));
    EXPECT_FALSE(has(other, "offload.optimizer=true"));
    // WarmupDecayLR sets the rate, whatever the optimizer says.
    const TheirRun decay = deepspeed(R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "scheduler": {
        "type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-4, "warmup_type": "linear", "total_num_steps": 50}}})");
    EXPECT_TRUE(has(decay, "optimizer.lr=0.0001")) << joined(decay.set);
    EXPECT_EQ(joined(decay.notes).find("warmup"), std::string::npos) << joined(decay.notes);
    const TheirRun cosine = deepspeed(R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "scheduler": {
        "type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.25}}})");
    EXPECT_TRUE(has(cosine, "optimizer.min_lr=0.125")) << joined(cosine.set);
    EXPECT_NE(joined(cosine.notes).find("logarithm"), std::string::npos) << joined(cosine.notes);
    for (const char* wrong : {R"({"optimizer": {"params": {"betas": "x"}}})",
                              R"({"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": "x"}}})"})
        EXPECT_THROW(deepspeed(wrong), UsageError) << wrong;
    const TheirRun titan = read(Peer::torchtitan,
                                "[training]\nlocal_batch_size = 2\n[parallelism]\ndata_parallel_shard_degree = 4\n"
                                "data_parallel_replicate_degree = 3\n",
                                "x.toml");
    EXPECT_TRUE(has(titan, "train.global_batch=24")) << joined(titan.set);
    const TheirRun schedule = read(Peer::torchtitan,
                                   "[optimizer]\nlr = 1e-3\n[parallelism]\ncontext_parallel_degree = 2\n"
                                   "[training]\nglobal_batch_size = -1\n[lr_scheduler]\nmin_lr_factor = 0.25\n",
                                   "x.toml");
    for (const char* s : {"optimizer.schedule=linear", "optimizer.warmup_steps=200", "optimizer.min_lr=0.00025",
                          "train.seq_len=2048", "train.micro_batch=8", "parallel.cp_method=all_gather"})
        EXPECT_TRUE(has(schedule, s)) << s << " is not in " << joined(schedule.set);
    EXPECT_EQ(joined(schedule.set).find("global_batch"), std::string::npos) << joined(schedule.set);
    const TheirRun tron = read(Peer::nanotron,
                               "optimizer:\n  learning_rate_scheduler:\n    learning_rate: 0.002\n"
                               "    lr_warmup_style: null\n    min_decay_lr: null\n",
                               "x.yaml");
    for (const char* s :
         {"optimizer.lr=0.002", "optimizer.min_lr=0.002", "optimizer.warmup_steps=0", "optimizer.schedule=linear"})
        EXPECT_TRUE(has(tron, s)) << s << " is not in " << joined(tron.set);
    const auto megatron = [](const std::string& options) { return read(Peer::megatron, "a.py " + options, "x.sh"); };
    const TheirRun plain = megatron("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1e-4");
    for (const char* s : {"optimizer.beta2=0.999", "optimizer.weight_decay=0.01", "optimizer.schedule=linear",
                          "optimizer.min_lr=0.0", "optimizer.warmup_steps=0", "model.kv_heads=4"})
        EXPECT_TRUE(has(plain, s)) << s << " is not in " << joined(plain.set);
    EXPECT_EQ(joined(megatron("--num-layers 2").set).find("optimizer."), std::string::npos) << "it trains nothing";
}

// Where the rate stops falling before the run ends, or after it, the run here has another course.
TEST(Peers, TheEndOfADecayIsThatOfTheRun) {
    const auto noted = [](const TheirRun& run) {
        return joined(run.notes).find("the rate is least") != std::string::npos;
    };
    for (const int decay : {50, 100, 200}) {
        const std::string options =
            concat("a.py --lr 1e-4 --train-iters 100 --lr-warmup-fraction 0.1 --lr-decay-iters ", decay);
        const TheirRun run = read(Peer::megatron, options, "x.sh");
        EXPECT_EQ(noted(run), decay != 100) << options;
        EXPECT_NE(std::ranges::find(run.set, concat("optimizer.warmup_steps=", decay / 10)), run.set.end())
            << joined(run.set);
        EXPECT_EQ(noted(read(Peer::nanogpt, concat("max_iters = 100\nlr_decay_iters = ", decay), "x.py")),
                  decay != 100);
    }
    EXPECT_TRUE(noted(read(Peer::nanogpt, "max_iters = 100\n", "x.py"))) << "train.py decays for 600000 steps";
    EXPECT_FALSE(noted(read(Peer::nanogpt, "max_iters = 100\ndecay_lr = False\n", "x.py")));
}

bool has(const TheirRun& run, const std::string& set) { return std::ranges::find(run.set, set) != run.set.end(); }

// Dropout and the channels that RoPE rotates change what a step computes; Megatron's defaults of dropout are 0.1.
TEST(Peers, DropoutAndRotatedChannelsAreTheRuns) {
    const std::string sizes = "a.py --num-layers 2 --hidden-size 64 --num-attention-heads 4";
    const std::string llama = " --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear";
    const auto read_all = [&](const std::string& options) { return read(Peer::megatron, sizes + options, "x.sh"); };
    const TheirRun given =
        read_all(llama + " --kv-channels 24 --rotary-percent 0.75 --hidden-dropout 0.25 --attention-dropout 0.0");
    EXPECT_TRUE(has(given, "model.dropout=0.25") && has(given, "model.rope_dims=18")) << joined(given.set);
    EXPECT_EQ(joined(given.notes).find("dropout"), std::string::npos) << joined(given.notes);
    EXPECT_TRUE(given.ignored.empty()) << joined(given.ignored);
    const TheirRun plain = read_all(llama + " --rotary-percent 0.5");
    EXPECT_TRUE(has(plain, "model.dropout=0.1") && has(plain, "model.rope_dims=8")) << joined(plain.set);
    EXPECT_NE(joined(plain.notes).find("--attention-dropout is 0.1 by default"), std::string::npos)
        << joined(plain.notes);
    for (const std::string& whole : {llama, llama + " --rotary-percent 1.0", std::string(" --rotary-percent 0.5")})
        EXPECT_EQ(joined(read_all(whole).set).find("rope_dims"), std::string::npos) << whole;

    spec::RunSpec run = spec::parse_text("", "x", {"model.preset=phi4-mini", "data.train=x.bin"});
    run.model.dropout = 0.25;
    const TheirRun again = read(Peer::megatron, emit(Peer::megatron, run, 1), "emitted");
    EXPECT_TRUE(has(again, concat("model.rope_dims=", run.model.rope_dims)) && has(again, "model.dropout=0.25"))
        << joined(again.set);
    EXPECT_EQ(joined(again.notes).find("dropout"), std::string::npos) << joined(again.notes);
}

// A rate that stays before it falls is that of wsd.
TEST(Peers, AStablePhaseIsThatOfWsd) {
    const auto titan = [](const std::string& scheduler) {
        return read(Peer::torchtitan,
                    concat("[training]\nsteps = 1000\n[optimizer]\nlr = 0.5\n[lr_scheduler]\nwarmup_steps = 100\n",
                           "min_lr_factor = 0.1\n", scheduler),
                    "x.toml");
    };
    const TheirRun wsd = titan("decay_ratio = 0.3\n");
    EXPECT_TRUE(has(wsd, "optimizer.schedule=wsd") && has(wsd, "optimizer.decay_steps=300")) << joined(wsd.set);
    // linear_warmup_stable_decay of torchtitan, which ends a step before min_lr.
    std::vector<std::string> set = wsd.set;
    set.insert(set.begin(), {"model.preset=llama-tiny", "data.train=x.txt"});
    const spec::RunSpec run = spec::parse_text("", "x", set);
    for (int64_t step = 1; step <= 1000; ++step) {
        const double theirs = step <= 100   ? static_cast<double>(step) / 100
                              : step <= 701 ? 1
                                            : 0.1 + 0.9 * (1 - static_cast<double>(step - 701) / 300);
        EXPECT_NEAR(spec::learning_rate(run, step), 0.5 * theirs, 0.5 / 300) << step;
    }
    EXPECT_TRUE(has(titan("decay_ratio = 0.95\n"), "optimizer.schedule=linear")) << "it falls from the warm-up on";
    EXPECT_TRUE(has(titan("decay_ratio = 0.0\n"), "optimizer.schedule=constant"));
    const TheirRun cosine = titan("decay_ratio = 0.3\ndecay_type = \"cosine\"\n");
    EXPECT_TRUE(has(cosine, "optimizer.schedule=cosine")) << joined(cosine.set);
    EXPECT_NE(joined(cosine.notes).find("lr_scheduler.decay_ratio: there the rate stays until step 700"),
              std::string::npos)
        << joined(cosine.notes);

    const auto tron = [](const std::string& scheduler) {
        return read(Peer::nanotron,
                    concat("tokens:\n  train_steps: 1000\noptimizer:\n  learning_rate_scheduler:\n"
                           "    learning_rate: 0.5\n    lr_warmup_steps: 100\n",
                           scheduler),
                    "x.yaml");
    };
    const TheirRun late = tron("    lr_decay_starting_step: 800\n    lr_decay_steps: 200\n");
    EXPECT_TRUE(has(late, "optimizer.schedule=wsd") && has(late, "optimizer.decay_steps=200")) << joined(late.set);
    EXPECT_EQ(joined(late.notes).find("the rate"), std::string::npos) << joined(late.notes);
    EXPECT_TRUE(has(tron("    lr_decay_starting_step: 100\n"), "optimizer.schedule=linear"));
    EXPECT_NE(joined(tron("    lr_decay_steps: 500\n").notes).find("the rate is least from step 600 on"),
              std::string::npos);

    const TheirRun megatron =
        read(Peer::megatron, "a.py --lr 0.5 --train-iters 1000 --lr-decay-style WSD --lr-wsd-decay-iters 250", "x.sh");
    EXPECT_TRUE(has(megatron, "optimizer.schedule=wsd") && has(megatron, "optimizer.decay_steps=250"));
    EXPECT_NE(joined(megatron.notes).find("exponential by default"), std::string::npos) << joined(megatron.notes);

    for (const Peer peer : {Peer::megatron, Peer::torchtitan, Peer::nanotron}) {
        spec::RunSpec written = spec::parse_text("", "x", {"model.preset=llama3-8b", "data.train=x.bin"});
        written.optimizer.schedule = "wsd", written.optimizer.decay_steps = 137;
        written.train.steps = 1000, written.optimizer.warmup_steps = 20;
        const std::string text = emit(peer, written, 1);
        const TheirRun again = read(peer, text, "emitted");
        EXPECT_TRUE(has(again, "optimizer.schedule=wsd") && has(again, "optimizer.decay_steps=137")) << text;
        EXPECT_EQ(text.find("optimizer.schedule"), std::string::npos) << text;
    }
}

// Sizes of 0, which the check of the config refuses, divide nothing here.
TEST(Peers, NoSizeOfZeroDivides) {
    EXPECT_NO_THROW(read(Peer::megatron, "a.py --hidden-size 64 --num-attention-heads 0", "x.sh"));
    EXPECT_NO_THROW(read(Peer::megatron,
                         "a.py --num-layers 4 --pipeline-model-parallel-size 0 "
                         "--num-layers-per-virtual-pipeline-stage 2",
                         "x.sh"));
    EXPECT_NO_THROW(
        read(Peer::nanotron, "model:\n  model_config:\n    hidden_size: 64\n    num_attention_heads: 0\n", "x.yaml"));
    EXPECT_NO_THROW(read(Peer::torchtitan,
                         "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[parallelism]\npipeline_parallel_degree = 2\n"
                         "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                         "pipeline_parallel_layers_per_stage = 0\n",
                         "x.toml"));
}

// --num-query-groups counts where --group-query-attention is given, and is 1 where it is not.
TEST(Peers, GroupsOfQueriesAreThoseThatMegatronMakes) {
    for (const bool flag : {false, true})
        for (const int groups : {0, 2}) {
            const std::string script = concat("a.py --num-attention-heads 8", flag ? " --group-query-attention" : "",
                                              groups > 0 ? concat(" --num-query-groups ", groups) : "");
            const TheirRun run = read(Peer::megatron, script, "x.sh");
            const int kv_heads = !flag ? 8 : groups > 0 ? groups : 1;
            EXPECT_NE(std::ranges::find(run.set, concat("model.kv_heads=", kv_heads)), run.set.end()) << script;
            EXPECT_EQ(joined(run.notes).find("has no effect there") != std::string::npos, !flag && groups > 0);
        }
}

TEST(Peers, AScriptWithVariablesArraysAndTorchrun) {
    const TheirRun run = read(Peer::megatron, R"(#!/bin/bash
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
    EXPECT_EQ(run.ranks, 128);
    EXPECT_EQ(joined(run.unknown), "--some-new-flag");
    EXPECT_FALSE(run.ignored.empty());
    const auto has = [&](const char* s) { return std::find(run.set.begin(), run.set.end(), s) != run.set.end(); };
    for (const char* s :
         {"model.layers=96", "model.width=12288", "model.ffn=49152", "model.family=gpt2", "parallel.tp=8",
          "parallel.pp=16", "parallel.schedule=interleaved", "parallel.virtual_stages=3", "parallel.zero=1",
          "recompute.policy=selective", "train.global_batch=1536", "precision.compute=f16", "model.moe.experts=8"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(run.set);
}

// Every mixture of the options that tell Llama from GPT-2: a legal run, and the options that are not the run's are
// named.
TEST(Peers, OptionsBetweenTheFamiliesAreNamed) {
    const std::vector<std::string> llamas = {"--swiglu", "--normalization RMSNorm", "--position-embedding-type rope",
                                             "--disable-bias-linear"};
    for (unsigned mixture = 0; mixture < 32; ++mixture) {
        std::string script = "a.py --num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 4";
        std::vector<std::string> with, without;
        for (unsigned i = 0; i < 4; ++i) (mixture >> i & 1u ? with : without).push_back(llamas[i]);
        for (const std::string& option : with) script += " " + option;
        if (mixture >= 16) script += " --rotary-base 500000";
        const TheirRun run = read(Peer::megatron, script, "x.sh");
        const bool llama = with.size() >= 2;
        std::string note;
        for (const std::string& each : run.notes)
            if (each.starts_with("the model is taken for ")) note = each;
        EXPECT_EQ(note.starts_with(llama ? "the model is taken for llama" : "the model is taken for gpt2"),
                  !(llama ? without : with).empty())
            << script << note;
        for (const std::string& option : llama ? without : with)
            EXPECT_NE(note.find(llama ? "no " + option.substr(0, option.find(' ')) : option), std::string::npos)
                << note;
        std::vector<std::string> set = run.set;
        set.insert(set.begin(), {"model.preset=", "data.train=[\"x.bin\"]"});
        spec::RunSpec parsed = spec::parse_text("", "x", set);
        EXPECT_NO_THROW(spec::validate(parsed, 1)) << script;
        EXPECT_EQ(parsed.model.rope_theta, !llama ? 0 : mixture >= 16 ? 500000 : 10000) << script;
    }
}

// What Megatron-LM's own examples have (examples/llama, examples/gpt3): pairs in quotes, FP8, a split.
TEST(Peers, AScriptWithQuotedPairsAndFp8) {
    const TheirRun run = read(Peer::megatron, R"(
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
    const auto has = [&](const char* s) { return std::find(run.set.begin(), run.set.end(), s) != run.set.end(); };
    for (const char* s :
         {"model.vocab=128256", "precision.recipe=delayed", "precision.amax_history=1024", "precision.amax_of=max",
          "precision.reduce=bf16", "data.valid_fraction=0.01", "model.family=gpt2"})
        EXPECT_TRUE(has(s)) << s << " is not in " << joined(run.set);
    EXPECT_EQ(joined(run.unknown), "");
    const TheirRun block =
        read(Peer::megatron, "a.py --num-layers 2 --fp8-format e4m3 --fp8-recipe blockwise --lr-decay-style inverse",
             "x.sh");
    const auto sets = [&](const char* s) {
        return std::find(block.set.begin(), block.set.end(), s) != block.set.end();
    };
    EXPECT_TRUE(sets("precision.recipe=block") && sets("precision.formats=e4m3")) << joined(block.set);
    EXPECT_EQ(joined(block.unknown), "--lr-decay-style inverse");
}

// With and without quotes and blanks, of numbers and of variables.
TEST(Peers, AScriptThatMultiplies) {
    for (const char* value : {"$((2 * 3))", "$((2*3))", "\"$((2 * 3))\"", "$(($A * 3))", "$((A * B))"}) {
        const std::string script = concat("A=2 B=3\nN=", value, "\npython a.py --num-layers $N --seq-length ", value);
        const TheirRun run = read(Peer::megatron, script, "x.sh");
        for (const char* key : {"model.layers=6", "train.seq_len=6"})
            EXPECT_NE(std::find(run.set.begin(), run.set.end(), key), run.set.end()) << script << '\n'
                                                                                     << joined(run.set);
    }
}

TEST(Peers, WrongValuesAreNamed) {
    const auto message = [](std::string_view text) {
        try {
            read(Peer::megatron, text, "x.sh");
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
    EXPECT_NE(message("N=$((4294967296 * 4294967296))\na.py --num-layers $N").find("that 64 bits hold"),
              std::string::npos);
    EXPECT_NE(message("WORLD_SIZE=3000000000\na.py --num-layers 2").find("required a number of ranks, got 3000000000"),
              std::string::npos);
    EXPECT_NE(message("torchrun --nproc-per-node 4294967296 --nnodes 4294967296 a.py --num-layers 2")
                  .find("got more than 64 bits hold"),
              std::string::npos);
    EXPECT_THROW(named("megatronn"), UsageError);
}

}  // namespace
}  // namespace tutti::peers
