// Whole runs whose ranks have an emulated GPU each and communicate through the fake NCCL, in the tree's order: the runs
// of CPU ranks as threads, to the last bit of loss, norm and weight. The kernels are the CPU's, so only the
// communication can differ; operations run late.
#include "tests/cuda/nccl/ranks.h"
#include "tests/cuda/training_runs.h"
#include "tutti/base/read_file.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/rehearsal/target.h"
#include "tutti/report/trace_read.h"

namespace tutti::train {
namespace {

class NcclTraining : public CudaTraining {
  protected:
    NcclTraining() { comm::fake_nccl(); }

    void expect_same(const Settings& set, int ranks) {
        const TrainOptions gpu = options_of("cuda", set, ranks), cpu = options_of("cpu", set, ranks);
        const int64_t before = comm::fake_nccl().calls();
        EXPECT_EQ(train(gpu).step, gpu.run.train.steps);
        EXPECT_GT(comm::fake_nccl().calls(), before) << "NCCL was not used";
        train(cpu);
        EXPECT_EQ(metrics(gpu), metrics(cpu)) << testing::PrintToString(set) << ", " << ranks << " ranks";
        EXPECT_EQ(weights(gpu), weights(cpu)) << testing::PrintToString(set) << ", " << ranks << " ranks";
    }
    const Settings short_ = f32_ + Settings{"train.steps=3", "train.global_batch=8", "train.micro_batch=1"};
};

TEST_F(NcclTraining, EveryZeroStageIsTheRunOfThreads) {
    for (const int dp : {2, 4, 8})
        for (const int zero : {0, 1, 2, 3}) expect_same(short_ + Settings{concat("parallel.zero=", zero)}, dp);
}

// The order in which several reductions end must not matter.
TEST_F(NcclTraining, SeveralReductionsUnderWay) {
    for (const int zero : {1, 2, 3})
        expect_same(short_ + Settings{concat("parallel.zero=", zero), "parallel.reductions=3", "model.layers=4"}, 4);
}

TEST_F(NcclTraining, InBf16Too) {
    for (const int zero : {0, 1, 2, 3})
        expect_same({"precision.compute=bf16", "train.steps=3", "train.global_batch=8", "train.micro_batch=1",
                     concat("parallel.zero=", zero)},
                    4);
}

TEST_F(NcclTraining, SoIsHsdp) {
    for (const int zero : {2, 3}) {
        expect_same(short_ + Settings{concat("parallel.zero=", zero), "parallel.dp_replicate=2"}, 4);
        expect_same(short_ + Settings{concat("parallel.zero=", zero), "parallel.dp_replicate=2"}, 8);
        expect_same(short_ + Settings{concat("parallel.zero=", zero), "parallel.dp_replicate=4"}, 8);
    }
}

TEST_F(NcclTraining, SoAreTheOtherAxes) {
    expect_same(short_ + Settings{"parallel.tp=2", "model.kv_heads=2"}, 4);
    expect_same(short_ + Settings{"parallel.cp=2"}, 4);
    expect_same(short_ + Settings{"parallel.pp=2", "parallel.schedule=1f1b"}, 4);
    expect_same(short_ + Settings{"parallel.pp=2", "parallel.schedule=zb-h1", "parallel.zero=2"}, 4);
    expect_same({"model.preset=moe-tiny", "model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=2",
                 "model.head_dim=16", "model.ffn=48", "model.moe.ffn=24", "model.moe.experts=4", "model.moe.top_k=4",
                 "data.tokenizer=\"bytes\"", "train.micro_batch=1", "train.steps=3", "precision.compute=f32",
                 "parallel.ep=2", "train.global_batch=8"},
                4);
}

// The waits of the host for each layer and pass of a mixture, by the differences between runs of four and of two layers
// and of four and of two steps: one in the forward, for the numbers of rows, while rows are already gathered; none in
// the backward, and none where the forward is computed again.
TEST_F(NcclTraining, AMixtureWaitsOnceALayerAndTheGpuDoesNot) {
    using emulation::HostWaits;
    const auto less = [](HostWaits a, const HostWaits& b) { return HostWaits{a.all - b.all, a.idle - b.idle}; };
    const auto waits = [&](int layers, int steps, const Settings& more) {
        const Settings set = {"model.preset=moe-tiny", "model.width=32", "model.heads=2", "model.kv_heads=2"};
        const Settings sizes = {"model.head_dim=16",   "model.ffn=48",      "model.moe.ffn=24",
                                "model.moe.experts=4", "model.moe.top_k=4", concat("model.layers=", layers)};
        const Settings run = {"data.tokenizer=\"bytes\"", "train.micro_batch=1", "train.global_batch=8",
                              "precision.compute=f32",    "parallel.ep=2",       concat("train.steps=", steps)};
        const TrainOptions gpu = options_of("cuda", set + sizes + run + more, 4);
        const HostWaits before = emulation::host_waits();
        train(gpu);
        return less(emulation::host_waits(), before);
    };
    constexpr int64_t kLayers = 2, kSteps = 2, kRanks = 4, kMicrobatches = 2;
    for (const Settings& more :
         {Settings{"model.moe.shared_ffn=40"},
          Settings{"recompute.policy=full", "model.moe.aux_loss=microbatch", "model.moe.z_coef=0.001"},
          Settings{"model.moe.aux_loss=global", "model.moe.capacity_factor=1.25"},
          Settings{"model.moe.aux_loss=sequence", "model.moe.expert_bias=true", "model.moe.score=sigmoid"}}) {
        const HostWaits of_step =
            less(less(waits(4, 4, more), waits(2, 4, more)), less(waits(4, 2, more), waits(2, 2, more)));
        EXPECT_EQ(of_step.all, kLayers * kSteps * kRanks * kMicrobatches) << testing::PrintToString(more);
        EXPECT_EQ(of_step.idle, 0) << testing::PrintToString(more);
    }
}

// Calls of all ranks for some microbatches, by the differences between runs of more and of fewer microbatches a step,
// and of more and of fewer steps; and what a rehearsal counts for as many.
struct MicrobatchCalls {
    emulation::HostCalls host;
    int64_t of_nccl = 0;  // collectives, or groups of messages
    int64_t kernels = 0, operations = 0;
    MicrobatchCalls& operator-=(const MicrobatchCalls& b) {
        host.launches -= b.host.launches, host.order -= b.host.order;
        host.copies -= b.host.copies, host.made -= b.host.made;
        of_nccl -= b.of_nccl, kernels -= b.kernels, operations -= b.operations;
        return *this;
    }
};

// The host's part of a microbatch: a launch for each kernel; for each operation of a group at most one call or group of
// NCCL's, a kernel that adds, two records and a wait at its begin, a record at its end, and three waits, where the
// result is needed and where the memory of its two tensors is used again; for each copy to the GPU a record. Events and
// memory are used again: the host waits for the GPU at the end of a step, so those of one step suffice for any number.
TEST_F(NcclTraining, AMicrobatchCostsALaunchAKernelAndFewCallsAnOperation) {
    constexpr int kMicrobatches = 4, kSteps = 6;
    constexpr int kCopies = 4;  // tokens, targets, places in documents and in the batch
    const auto calls = [&](const Settings& set, int ranks, int microbatches, int steps) {
        const TrainOptions o =
            options_of("cuda",
                       f32_ + set +
                           Settings{concat("train.steps=", steps), concat("train.global_batch=", microbatches),
                                    "train.micro_batch=1", "parallel.zero=1"},
                       ranks);
        MicrobatchCalls before{emulation::host_calls(), comm::fake_nccl().calls()};
        train(o);
        MicrobatchCalls all{emulation::host_calls(), comm::fake_nccl().calls()};
        const rehearsal::Target target = rehearsal::target_of(engine::machine_of(o.run, {0, ranks}, ""));
        for (int rank = 0; rank < ranks; ++rank)
            for (const rehearsal::Action& action : rehearsal::rehearse(o.run, target, ranks, rank).program.actions) {
                all.kernels += steps * action.times * std::holds_alternative<rehearsal::RunKernel>(action.what);
                all.operations += steps * action.times * std::holds_alternative<rehearsal::BeginOperation>(action.what);
            }
        return all -= before;
    };
    for (const auto& [set, ranks] : std::vector<std::pair<Settings, int>>{
             {{"parallel.tp=2", "model.kv_heads=2"}, 2},
             {{"parallel.cp=2"}, 2},
             {{"parallel.pp=2", "parallel.schedule=1f1b"}, 2},
         }) {
        const auto of_steps = [&](int microbatches) {
            MicrobatchCalls c = calls(set, ranks, microbatches, 2 + kSteps);
            return c -= calls(set, ranks, microbatches, 2);
        };
        const MicrobatchCalls steps = of_steps(2 * kMicrobatches);
        MicrobatchCalls c = steps;
        c -= of_steps(kMicrobatches);
        SCOPED_TRACE(testing::PrintToString(set));
        EXPECT_GT(c.kernels, 0);
        EXPECT_GE(c.host.launches, c.kernels);
        EXPECT_LE(c.host.launches, c.kernels + c.operations);
        EXPECT_LE(c.host.order, 7 * c.operations + c.host.copies);
        EXPECT_LE(c.host.copies, kCopies * kMicrobatches * ranks * kSteps);
        EXPECT_LE(c.of_nccl, c.operations);
        EXPECT_LE(kSteps * steps.host.made, 2 * (3 * steps.operations + steps.host.copies));  // made and freed
    }
}

TEST_F(NcclTraining, OffloadBesideNccl) {
    expect_same(short_ + Settings{"parallel.zero=3", "offload.params=true", "offload.optimizer=true"}, 2);
}

// The report's communication times come from the GPU's clock: its operations are on separate tracks.
TEST_F(NcclTraining, TheTraceHasTracksOfTheGpusOperations) {
    const TrainOptions gpu =
        options_of("cuda", short_ + Settings{"parallel.zero=3", "log.trace=true", "log.trace_first=2"}, 2);
    train(gpu);
    const Json trace = Json::parse(read_file(gpu.out + "/trace.json"));
    std::map<std::pair<int64_t, int64_t>, std::string> tracks;
    std::map<std::string, int> operations;  // by track
    std::string with_times_of_host;
    for (const Json& event : trace["traceEvents"].elements()) {
        if (event["ph"] == "C") continue;  // a counter, which has no track
        const std::pair track{event["pid"].get<int64_t>(), event["tid"].get<int64_t>()};
        if (event["name"] == "thread_name") tracks[track] = event["args"]["name"].get<std::string>();
        if (event["ph"] != "X" || event["cat"] != "communication") continue;
        ++operations[tracks.at(track)];
        if (tracks.at(track) == "dp_shard") with_times_of_host += event.dump() + '\n';
    }
    EXPECT_GT(operations["GPU, dp_shard"], 0);
    EXPECT_EQ(with_times_of_host, "") << "operations of the GPU with the host's times";
    for (const report::RankTimes& t : report::times_of(report::read_trace(gpu.out + "/trace.json"))) {
        EXPECT_GT(t.communication_ms, 0);
        EXPECT_LE(t.hidden_ms, t.communication_ms);
        EXPECT_LE(t.communication_ms, t.step_ms);
    }
}

TEST_F(NcclTraining, RanksThatShareAGpuUseTheHost) {
    emulation::set_gpus(1);
    const int64_t before = comm::fake_nccl().calls();
    const TrainOptions gpu = options_of("cuda", short_, 2);
    train(gpu);
    EXPECT_EQ(comm::fake_nccl().calls(), before);
    EXPECT_THROW(train(options_of("cuda", short_ + Settings{"comm.gpu=nccl"}, 2)), UsageError);
    emulation::set_gpus(comm::kMostRanks);
    EXPECT_EQ(metrics(gpu), run("cpu", short_, 2));
}

}  // namespace
}  // namespace tutti::train
