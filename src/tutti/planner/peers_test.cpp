// Plans for other trainers: what a search for one may choose is read again as it was written; the memory it needs.
#include "tutti/planner/peers.h"

#include <gtest/gtest.h>

#include <random>

#include "tutti/base/error.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {
namespace {

// `model`: a preset for a peer whose config has no model.
spec::RunSpec read_again(Peer peer, const std::string& text, const std::string& model, int64_t seq_len,
                         peers::TheirRun* read = nullptr) {
    peers::TheirRun run = peers::read(peer, text, "emitted");
    EXPECT_EQ(joined(run.unknown), "") << text;
    std::vector<std::string> set = run.set;
    if (peer == Peer::deepspeed) {
        set.push_back("model.preset=" + model);
        set.push_back(concat("train.seq_len=", seq_len));
    } else if (run.preset().empty()) {
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
    for (const std::string& name : peers::names()) {
        const Peer peer = peers::named(name);
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
            run.optimizer.min_lr = any((const double[]){0, 3e-5});
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
            const std::string text = peers::emit(peer, run, gpus);
            ASSERT_EQ(text.find("# not the same"), std::string::npos) << text;
            peers::TheirRun read;
            const spec::RunSpec again = read_again(peer, text, preset, r.run.train.seq_len, &read);
            ASSERT_NO_THROW(spec::validate(again, gpus)) << text;
            ASSERT_EQ(said(again, gpus), said(run, gpus)) << text << spec::to_toml(again);
            ASSERT_EQ(read.ranks, peer == Peer::torchtitan || peer == Peer::nanogpt ? 0 : gpus) << text;
            ++checked;
        }
        EXPECT_EQ(checked, 200) << name;
    }
}

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
        const std::string text = peers::emit(peer, run, 16);
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
    const peers::TheirRun of_zero_1 =
        peers::read(Peer::megatron,
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

TEST(Limits, AreWords) {
    Limits limits;
    leave_out(limits, "offload,cp,zb-v");
    EXPECT_FALSE(limits.offload);
    EXPECT_EQ(limits.cp, std::vector<int>{1});
    EXPECT_FALSE(Limits::in(limits.schedules, "zb-v"));
    EXPECT_TRUE(Limits::in(limits.schedules, "1f1b"));
    EXPECT_THROW(leave_out(limits, "offloads"), UsageError);
    EXPECT_THROW(leave_out(limits, ","), UsageError);
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
    for (const char* wrong : {"dp 100000 x 100000", "", "tp", "tp x", "ttp 8", "tp 8 and pp 4", "tp 0", "dp 2 x 0",
                              "tp 8 tp 4", "zb-v 1f1b", "ZeRO-1 ZeRO-3", "none full"})
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
