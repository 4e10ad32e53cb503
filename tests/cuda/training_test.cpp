// Whole runs with train.device = "cuda" against the same runs on the CPU: losses, resume, accumulation, ZeRO over ranks
// that share a GPU, offload, evaluation, generation. Programs link it with kernels of the CPU in device memory
// (borrowed_kernels.cpp), with emulated kernels and with a GPU (cuda_kernels.cpp): CMakeLists.txt.
#include "tests/cuda/training.h"

#include <algorithm>

#include "tests/cuda/training_runs.h"
#include "tutti/infer/generate.h"
#include "tutti/infer/stored_model.h"
#include "tutti/report/trace_read.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

constexpr double kRounding = 1e-5;  // of f32 sums split differently, over eight steps

// f32 losses within 1e-5 of the CPU's, norms of gradients within 1e-4.
TEST_F(CudaTraining, TwentyStepsFollowTheCpu) {
    const double tolerance = std::min(kernel_tolerance(), 1e-5);
    const Settings steps = f32_ + Settings{"train.steps=20"};
    expect_follows(run("cuda", steps), run("cpu", steps), tolerance);
    const Settings gpt2 = gpt2_ + steps + Settings{"model.dropout=0.1"};
    expect_follows(run("cuda", gpt2), run("cpu", gpt2), tolerance);
    const Settings sgd = steps + Settings{"optimizer.name=sgd", "recompute.policy=selective"};
    expect_follows(run("cuda", sgd), run("cpu", sgd), tolerance);
}

// bf16 has 8 bits: an update may round the other way, by 2^-8 of a value; the losses stay within a few of these.
TEST_F(CudaTraining, TwentyStepsInBf16FollowTheCpu) {
    const double tolerance = kernel_tolerance() > 0 ? 1.0 / 64 : 0;
    const Settings steps = {"precision.compute=bf16", "train.steps=20"};
    expect_follows(run("cuda", steps), run("cpu", steps), tolerance);
    expect_follows(run("cuda", gpt2_ + steps), run("cpu", gpt2_ + steps), tolerance);
}

// Factors of 10 bits in f32 runs. Borrowed kernels have no TF32; with other kernels the difference must show.
TEST_F(CudaTraining, Tf32FollowsF32) {
    const std::vector<Logged> f32 = run("cuda", f32_), tf32 = run("cuda", {"precision.compute=tf32"});
    expect_follows(tf32, f32, kernel_tolerance() > 0 ? 1.0 / 1024 : 0);
    EXPECT_EQ(tf32 == f32, kernel_tolerance() == 0);
}

TEST_F(CudaTraining, TheMlpTrainsToo) {
    const Settings mlp = {"model.preset=mlp-8192", "model.width=24", "model.layers=2",
                          "precision.compute=f32", "data.train=[]",  "train.seq_len=4"};
    expect_follows(run("cuda", mlp), run("cpu", mlp), kernel_tolerance());
}

// Router, rows of experts and grouped products; experts on separate ranks, a bias of experts, short convolutions. All
// experts take all tokens: loads are even, and memory is as rehearsed.
TEST_F(CudaTraining, MixturesOfExpertsFollowTheCpu) {
    const Settings mixture = {"model.preset=moe-tiny", "model.width=32",     "model.layers=2",
                              "model.heads=2",         "model.kv_heads=2",   "model.head_dim=16",
                              "model.ffn=48",          "model.init_std=0.2", "model.moe.ffn=24",
                              "model.moe.experts=4",   "model.moe.top_k=4",  "data.tokenizer=\"bytes\"",
                              "train.micro_batch=1"};
    const Settings biased = {"model.moe.score=sigmoid", "model.moe.expert_bias=true", "model.moe.shared_ffn=40",
                             "model.moe.shared_gate=true"};
    const Settings lfm2 = {"model.family=lfm2", "model.head_norm=true", "model.conv_layers=0", "model.conv_kernel=3"};
    for (const Settings& more : {Settings{}, biased, biased + lfm2})
        for (const int ranks : {1, 2}) {
            const Settings set = mixture + f32_ + more + Settings{concat("parallel.ep=", ranks)};
            expect_follows(run("cuda", set, ranks), run("cpu", set, ranks), kernel_tolerance());
        }
}

TEST_F(CudaTraining, DocumentsAreRespected) {
    const Settings set = f32_ + Settings{"data.documents=respected", "data.eod=10"};
    expect_follows(run("cuda", set), run("cpu", set), kernel_tolerance());
}

TEST_F(CudaTraining, ResumesBitForBit) {
    for (const char* compute : {"f32", "bf16"}) {
        const Settings set = {concat("precision.compute=", compute), "checkpoint.every=3"};
        const TrainOptions whole = options_of("cuda", set);
        train(whole);
        TrainOptions parts = options_of("cuda", set);
        int asked = 0;
        parts.stop_requested = [&] { return ++asked == 4; };
        EXPECT_TRUE(train(parts).preempted);
        parts.stop_requested = [] { return false; };
        EXPECT_EQ(train(parts).step, 8);
        EXPECT_EQ(metrics(parts), metrics(whole)) << compute;
        EXPECT_EQ(weights(parts), weights(whole)) << compute;
    }
}

TEST_F(CudaTraining, ARunOfTheCpuGoesOnHere) {
    TrainOptions o = options_of("cpu", f32_);
    int asked = 0;
    o.stop_requested = [&] { return ++asked == 4; };
    EXPECT_TRUE(train(o).preempted);
    o.stop_requested = [] { return false; };
    o.run.train.device = "cuda";
    EXPECT_EQ(train(o).step, 8);
    expect_follows(metrics(o), run("cpu", f32_), kernel_tolerance());
}

TEST_F(CudaTraining, AccumulationDoesNotChangeTheRun) {
    const std::vector<Logged> whole = run("cuda", f32_ + Settings{"train.micro_batch=4"});
    for (const int micro : {1, 2})
        expect_follows(run("cuda", f32_ + Settings{concat("train.micro_batch=", micro)}), whole, kRounding);
}

// Ranks that share a GPU: the same bits under every stage, and those of one rank within rounding.
TEST_F(CudaTraining, ZeroOverRanksThatShareAGpu) {
    const Settings set = {"precision.compute=f32", "train.micro_batch=1", "parallel.accumulate=full"};
    const std::vector<Logged> one = run("cuda", set), flat = run("cuda", set + Settings{"parallel.zero=0"}, 2);
    expect_follows(flat, one, kRounding);
    for (const int zero : {1, 2, 3}) EXPECT_EQ(run("cuda", set + Settings{concat("parallel.zero=", zero)}, 2), flat);
    EXPECT_EQ(run("cuda", set + Settings{"parallel.zero=3", "parallel.dp_replicate=2"}, 4),
              run("cuda", set + Settings{"parallel.zero=0"}, 4));
    const Settings server = {"parallel.zero=0", "parallel.strategy=parameter_server"};
    EXPECT_EQ(run("cuda", set + server, 2), flat);
    EXPECT_EQ(run("cuda", set + Settings{"parallel.zero=3", "comm.progress_thread=true"}, 2), flat);
}

// q, k and v are one product here (ops/fused_linear.h): of a rank's heads; with copies of key and value heads q apart;
// heads exchanged for tokens in sections of unequal numbers; and with delayed weight gradients.
TEST_F(CudaTraining, FusedProjectionsFollowOneRankUnderEveryLayout) {
    const Settings set =
        f32_ + Settings{"model.heads=4", "model.kv_heads=2", "model.qkv_bias=true", "train.micro_batch=2"};
    const std::vector<Logged> one = run("cuda", set);
    expect_follows(one, run("cpu", set), kernel_tolerance());
    const Settings ulysses = {"parallel.cp=2", "parallel.cp_method=ulysses"};
    const Settings zero_bubble = {"parallel.pp=2", "parallel.schedule=zb-h1"};
    for (const Settings& layout : {Settings{"parallel.tp=2"}, ulysses, zero_bubble})
        expect_follows(run("cuda", set + layout, 2), one, kRounding);
    expect_follows(run("cuda", set + Settings{"parallel.tp=4"}, 4), one, kRounding);
}

TEST_F(CudaTraining, VerifyFindsRanksEqual) {
    const TrainOptions o = options_of("cuda", {"precision.compute=bf16", "train.micro_batch=1", "parallel.zero=3"}, 2);
    const VerifyOutcome outcome = verify({.run = o.run, .ranks = 2, .steps = 2});
    EXPECT_TRUE(outcome.within()) << outcome.worst().gradient_difference;
    EXPECT_EQ(outcome.steps.at(0).loss, outcome.steps.at(0).one_rank_loss);
}

TEST_F(CudaTraining, OffloadToTheHostChangesNoBit) {
    const Settings set = {"precision.compute=bf16", "train.micro_batch=1", "parallel.zero=3"};
    const TrainOptions here = options_of("cuda", set, 2);
    train(here);
    const TrainOptions away = options_of(
        "cuda", set + Settings{"offload.optimizer=true", "offload.params=true", "offload.activations=true"}, 2);
    train(away);
    EXPECT_EQ(metrics(away), metrics(here));
    EXPECT_EQ(weights(away), weights(here));
}

TEST_F(CudaTraining, EvaluatesAndGenerates) {
    const Settings set = f32_ + Settings{"data.valid_fraction=0.2", "train.eval_every=4", "train.steps=20"};
    const TrainOptions o = options_of("cuda", set);
    const double cpu = train(options_of("cpu", set)).eval_loss;
    EXPECT_NEAR(train(o).eval_loss, cpu, kernel_tolerance() * cpu);
    const auto text = [&](const char* device, infer::SamplingOptions sampling) {
        const infer::LoadedModel loaded = infer::load_model(o.out, {.device = device, .threads = 1});
        std::vector<int32_t> made;
        sampling.max_positions = loaded.max_positions;
        infer::generate(*loaded.ctx, *loaded.model, {{97, 98}, {99}}, sampling, [&](size_t, int32_t token) {
            made.push_back(token);
            return true;
        });
        return made;
    };
    EXPECT_EQ(text("cuda", {.max_tokens = 40, .seed = 5}), text("cpu", {.max_tokens = 40, .seed = 5}));
}

// The trace has the GPU's compute by the GPU's clock: inside the step, one pass after the other.
TEST_F(CudaTraining, TheTraceHasALaneOfTheGpu) {
    const TrainOptions o = options_of("cuda", f32_ + Settings{"log.trace=true", "train.steps=3"});
    train(o);
    const auto trace = report::read_trace(o.out + "/trace.json");
    ASSERT_EQ(trace.size(), 1U);
    const report::TracedSpan* step = nullptr;
    std::vector<const report::TracedSpan*> passes;
    for (const report::TracedSpan& s : trace[0].spans) {
        if (s.activity == "step" && step == nullptr) step = &s;
        if (s.activity == "gpu" && step != nullptr && s.step == step->step) passes.push_back(&s);
    }
    ASSERT_NE(step, nullptr);
    ASSERT_GE(passes.size(), 5U);
    constexpr double kClocksUs = 50;  // between an event and the host's clock
    for (size_t i = 0; i < passes.size(); ++i) {
        EXPECT_LE(passes[i]->begin_us, passes[i]->end_us);
        EXPECT_GE(passes[i]->begin_us, (i == 0 ? step->begin_us : passes[i - 1]->end_us) - kClocksUs);
        EXPECT_LE(passes[i]->end_us, step->end_us + kClocksUs);
    }
    EXPECT_TRUE(passes.front()->name.starts_with("forward")) << passes.front()->name;
    EXPECT_EQ(passes.back()->name, "optimizer");
    EXPECT_GT(report::times_of(trace)[0].compute_ms, 0);
}

// A step that is not finite changes nothing and names the parameter.
TEST_F(CudaTraining, SkipsWhatIsNotFinite) {
    TrainOptions o =
        options_of("cuda", f32_ + Settings{"optimizer.lr=1e30", "optimizer.clip=0", "train.max_skipped=2"});
    try {
        train(o);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("not finite"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tutti::train
