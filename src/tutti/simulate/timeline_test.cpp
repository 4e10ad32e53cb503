#include "tutti/simulate/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/simulate/clock.h"
#include "tutti/simulate/profile.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::simulate {
namespace {

using comm::Kind;
using rehearsal::Program;

// Programs by hand: k(2) a kernel of two seconds; b(KIND, n) and w(KIND, n) begin and wait in the group of all.
class ByHand {
  public:
    explicit ByHand(std::vector<int> ranks) { program.groups = {{"all", std::move(ranks)}}; }
    ByHand& k(double seconds, int64_t times = 1) {
        program.calls.push_back({"kernel", {.flops = seconds}});
        return add(rehearsal::RunKernel{program.calls.size() - 1}, times);
    }
    ByHand& b(Kind kind, uint64_t number, int peer = 0, int64_t times = 1) {
        return add(rehearsal::BeginOperation{0, number, {.kind = kind, .bytes = 8, .peer = peer}}, times);
    }
    ByHand& w(Kind kind, uint64_t number, int64_t times = 1) {
        return add(rehearsal::WaitForOperation{0, number, kind}, times);
    }
    Program program{.places = {"step"}};

  private:
    ByHand& add(auto what, int64_t times) {
        program.actions.push_back({what, 0, times});
        return *this;
    }
};

TimelinePrices prices(double operation, bool beside) {
    return {[](const rehearsal::KernelCall& call) { return call.work.flops; },
            [operation](const comm::Summary&, const std::vector<int>&) { return operation; }, beside, 0};
}

TEST(Timelines, AnOperationBeginsWhenTheLastRankDoes) {
    const std::vector<Program> programs = {
        ByHand({0, 1}).k(1).b(Kind::all_reduce, 0).w(Kind::all_reduce, 0).k(1).program,
        ByHand({0, 1}).k(3).b(Kind::all_reduce, 0).w(Kind::all_reduce, 0).k(1).program};
    const Timeline t = lay_out(programs, prices(0.5, true), true);
    EXPECT_DOUBLE_EQ(t.seconds, 4.5);
    EXPECT_DOUBLE_EQ(t.waited[0], 2.5);
    EXPECT_DOUBLE_EQ(t.waited[1], 0.5);
    EXPECT_DOUBLE_EQ(t.busy[0], 2);
    EXPECT_DOUBLE_EQ(on_cores(t, 2), 4.5);
    EXPECT_DOUBLE_EQ(on_cores(t, 1), 6);
    EXPECT_DOUBLE_EQ(t.operations, 2 * 0.5);  // of two ranks
    EXPECT_EQ(t.kernels.at("kernel").number, 4);
    EXPECT_DOUBLE_EQ(t.kernels.at("kernel").seconds, 6);
}

TEST(Timelines, OperationsBesideKernelsAreHidden) {
    const auto program = [] {
        return ByHand({0, 1}).k(1).b(Kind::all_gather, 0).k(2).w(Kind::all_gather, 0).k(1).program;
    };
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(1.5, true), false).seconds, 4);
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(2.5, true), false).seconds, 4.5);
    // Without a progress thread they take the time of the ranks, from the wait on.
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(1.5, false), false).seconds, 5.5);
}

// All of an operation of 1.5 s lies beside 2 s of compute, and 2 s of one of 2.5 s; of one that the rank waits for at
// once nothing.
TEST(Timelines, OverlapIsTheTimeOfKernelsBesideAnOperation) {
    const auto overlap = [](double operation, double before_wait) {
        const auto program = [&] {
            return ByHand({0, 1}).k(1).b(Kind::all_gather, 0).k(before_wait).w(Kind::all_gather, 0).k(3).program;
        };
        return lay_out({program(), program()}, prices(operation, true), false).overlaps.at("all");
    };
    for (const auto& [operation, before_wait, beside] :
         std::vector<std::array<double, 3>>{{1.5, 2, 1.5}, {2.5, 2, 2}, {1.5, 0, 0}}) {
        EXPECT_DOUBLE_EQ(overlap(operation, before_wait).seconds, 2 * operation);  // of two ranks
        EXPECT_DOUBLE_EQ(overlap(operation, before_wait).beside_kernels, 2 * beside);
    }
}

// A copy of 3 s begun before 2 s of compute leaves 1 s to wait; the second copy follows the first.
TEST(Timelines, CopiesToTheHostRunBesideKernelsOneAfterAnother) {
    Program program = ByHand({0}).k(2).program;
    program.actions.insert(program.actions.begin(), {.what = rehearsal::BeginCopy{2, 1}});
    program.actions.insert(program.actions.begin(), {.what = rehearsal::BeginCopy{1, 3}});
    program.actions.push_back({.what = rehearsal::WaitForCopy{1}});
    program.actions.push_back({.what = rehearsal::WaitForCopy{2}});
    TimelinePrices by_link = prices(0, true);
    by_link.host = [](double bytes) { return bytes; };
    const Timeline t = lay_out({program}, by_link, false);
    EXPECT_DOUBLE_EQ(t.seconds, 4);
    EXPECT_DOUBLE_EQ(t.waited_for[0].at("host"), 2);
    EXPECT_DOUBLE_EQ(lay_out({program}, prices(0, true), false).seconds, 2);  // no link
}

// Two seconds of compute hide an operation of 1.5 s, and take a quarter of it longer; one of 2.5 s leaves half a
// second, and takes 0.3 x a quarter of the compute longer. Idle time beside an operation costs nothing.
TEST(Timelines, KernelsBesideACollectiveTakeLonger) {
    const auto program = [] {
        return ByHand({0, 1}).k(1).b(Kind::all_gather, 0).k(2).w(Kind::all_gather, 0).k(1).program;
    };
    const auto seconds = [&](double operation) {
        TimelinePrices with = prices(operation, true);
        with.contention = 0.25;
        return lay_out({program(), program()}, with, false).seconds;
    };
    EXPECT_DOUBLE_EQ(seconds(1.5), 4 + 0.25 * 1.5);
    EXPECT_DOUBLE_EQ(seconds(2.5), 4.5 + 0.3 * 0.25 * 2);
    TimelinePrices with = prices(1, true);
    with.contention = 0.25;
    const std::vector<Program> programs = {ByHand({0, 1}).b(Kind::all_gather, 0).w(Kind::all_gather, 0).program,
                                           ByHand({0, 1}).k(3).b(Kind::all_gather, 0).w(Kind::all_gather, 0).program};
    EXPECT_DOUBLE_EQ(lay_out(programs, with, false).seconds, 4);
}

// The gather at the end of the step before runs beside the first kernel, 2 s of its 3.
TEST(Timelines, WhatAStepLeavesOpenIsWaitedForInTheNext) {
    const auto program = [] { return ByHand({0, 1}).k(2).w(Kind::all_gather, 0).k(1).b(Kind::all_gather, 7).program; };
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(3, true), false).seconds, 4);
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(1, true), false).seconds, 3);
}

// The host launches a kernel in 1 s and runs ahead of the device while it can, by no more than CUDA's queue.
TEST(Timelines, AKernelWaitsForItsLaunch) {
    TimelinePrices with = prices(0, true);
    with.launch = 1;
    EXPECT_DOUBLE_EQ(lay_out({ByHand({0}).k(0.5, 10).program}, with, false).seconds, 10.5);
    EXPECT_DOUBLE_EQ(lay_out({ByHand({0}).k(2, 10).program}, with, false).seconds, 21);
    EXPECT_DOUBLE_EQ(lay_out({ByHand({0}).k(2, 10).k(0.5, 9).program}, with, false).seconds, 1 + 20 + 4.5);
    // The host is 1,024 kernels ahead at the first short one, and the device has used that up after 2,048 of them.
    const Timeline t = lay_out({ByHand({0}).k(2, 4000).k(0.5, 4001).program}, with, false);
    EXPECT_NEAR(t.seconds, 8000 + 1024 + (4001 - 2048), 5);
}

TEST(Timelines, OperationsOfARankFollowOneAnother) {
    const auto program = [] {
        return ByHand({0, 1})
            .b(Kind::all_gather, 0)
            .b(Kind::all_gather, 1)
            .k(1)
            .w(Kind::all_gather, 0)
            .w(Kind::all_gather, 1)
            .program;
    };
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(1, true), false).seconds, 2);
}

TEST(Timelines, AStragglerKeepsTheOthersWaiting) {
    const auto program = [] { return ByHand({0, 1}).k(1).b(Kind::all_reduce, 0).w(Kind::all_reduce, 0).program; };
    TimelinePrices with_straggler = prices(0.5, true);
    with_straggler.slow = {{1, 3.0}};
    const Timeline t = lay_out({program(), program()}, with_straggler, false);
    EXPECT_DOUBLE_EQ(t.seconds, 3.5);
    EXPECT_DOUBLE_EQ(t.waited[0], 2.5);
}

TEST(Timelines, MessagesMatchInTheirOrder) {
    const std::vector<Program> programs = {
        ByHand({0, 1}).k(1).b(Kind::send, 0, 1).k(1).b(Kind::send, 1, 1).w(Kind::send, 0).w(Kind::send, 1).program,
        ByHand({0, 1})
            .b(Kind::receive, 0, 0)
            .b(Kind::receive, 1, 0)
            .w(Kind::receive, 0)
            .k(4)
            .w(Kind::receive, 1)
            .k(1)
            .program};
    EXPECT_DOUBLE_EQ(lay_out(programs, prices(0.25, true), false).seconds, 1.25 + 4 + 1);
}

// The first rank of two sends to the second one; the message is no operation of the group, whose first one is a gather.
TEST(Timelines, MessagesOfTwoRanksAreNoneOfTheirCollectives) {
    ByHand first({0, 1}), second({0, 1});
    first.b(Kind::send, 1, 1).k(1).b(Kind::all_gather, 1).w(Kind::all_gather, 1).k(1).w(Kind::send, 1);
    second.b(Kind::receive, 1, 0).w(Kind::receive, 1).k(3).b(Kind::all_gather, 1).w(Kind::all_gather, 1).k(1);
    const Timeline both = lay_out({first.program, second.program}, prices(0.5, true), false);
    EXPECT_DOUBLE_EQ(both.seconds, 0.5 + 3 + 0.5 + 1);
    const Timeline alone = lay_out({0}, {first.program}, prices(0.5, true), false);
    EXPECT_DOUBLE_EQ(alone.waited_for[0].at("all"), 0.5);  // for the gather
}

TEST(Timelines, RepeatedActionsRunAsOften) {
    const auto program = [] {
        return ByHand({0, 1}).k(1, 5).b(Kind::all_reduce, 7, 0, 5).w(Kind::all_reduce, 7, 5).k(2).program;
    };
    EXPECT_DOUBLE_EQ(lay_out({program(), program()}, prices(0.5, true), false).seconds, 5 * 1.5 + 2);
}

TEST(Timelines, AMissingPartnerIsAnError) {
    const std::vector<Program> programs = {ByHand({0, 1}).b(Kind::barrier, 0).w(Kind::barrier, 0).program,
                                           ByHand({0, 1}).k(1).program};
    EXPECT_THROW(lay_out(programs, prices(1, true), false), Error);
}

TEST(Timelines, TheTraceHasAllSpans) {
    const auto program = [] { return ByHand({0, 1}).k(1).b(Kind::all_reduce, 0).w(Kind::all_reduce, 0).program; };
    const Json trace = Json::parse(to_trace(lay_out({program(), program()}, prices(1, false), true)));
    int compute = 0, waits = 0, operations = 0;
    for (const Json& event : trace["traceEvents"]) {
        if (event["ph"].text() != "X" || event["cat"].text() == "step") continue;
        compute += event["cat"].text() == "compute";
        waits += event["cat"].text() == "wait";
        operations += event["cat"].text() == "communication";
        EXPECT_DOUBLE_EQ(event["dur"].get<double>(), 1e6);
    }
    EXPECT_EQ(compute, 2);
    EXPECT_EQ(waits, 2);
    EXPECT_EQ(operations, 2);
}

// The memory of a program gets the times of the actions behind its samples, again in each repetition; an operation
// knows its ranks, its bytes and what waits for it.
TEST(Timelines, MemoryAndOperationsAreTimed) {
    Program program = ByHand({0, 1}).k(1).b(Kind::all_reduce, 0).k(2, 2).w(Kind::all_reduce, 0).program;
    program.places.push_back("forward of h.3");
    program.actions[3].place = 1;
    const auto bytes = [](int64_t of_weights) {
        MemoryByPurpose memory;
        memory[Purpose::weights] = of_weights;
        return memory;
    };
    program.memory = {{0, bytes(10), 0}, {0, bytes(20), 1}, {0, bytes(30), 2}, {0, bytes(40), 4}};
    const Timeline t = lay_out({program, program}, prices(0.5, true), true);
    std::vector<std::pair<double, int64_t>> samples;
    for (const TimedMemory& sample : t.memory[1]) samples.emplace_back(sample.time, sample.bytes.total());
    EXPECT_EQ(samples, (std::vector<std::pair<double, int64_t>>{{0, 10}, {1, 20}, {1, 30}, {3, 30}, {5, 40}}));
    const auto operation = std::find_if(t.spans[0].begin(), t.spans[0].end(),
                                        [](const TimedSpan& s) { return s.activity == Activity::communication; });
    ASSERT_NE(operation, t.spans[0].end());
    EXPECT_EQ(operation->ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(operation->bytes, 8);
    EXPECT_EQ(operation->needed, "forward of h.3");
    EXPECT_TRUE(lay_out({program, program}, prices(0.5, true), false).memory[0].empty());
}

TEST(Timelines, ThePictureHasARowForEachRank) {
    const auto program = [] { return ByHand({0, 1}).k(1).b(Kind::all_reduce, 0).w(Kind::all_reduce, 0).program; };
    const std::string svg = svg::file(picture_of(lay_out({program(), program()}, prices(1, false), true), "a < b"));
    EXPECT_NE(svg.find("rank 0"), std::string::npos);
    EXPECT_NE(svg.find("rank 1"), std::string::npos);
    EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
    size_t spans = 0;
    for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++spans;
    EXPECT_EQ(spans, 1u + 6u);  // the picture's, and a kernel, a wait and an operation of each rank
}

TEST(Costs, AFitFindsWhatMadeTheSamples) {
    const CallCost truth{2e-6, 3e-12, 4e-11};
    std::vector<Sample> samples;
    for (const double flops : {1e6, 1e8, 1e9})
        for (const double bytes : {1e4, 1e6}) samples.push_back({flops, bytes, truth.seconds(flops, bytes)});
    const CallCost found = fit_cost(samples);
    EXPECT_NEAR(found.per_call / truth.per_call, 1, 1e-3);
    EXPECT_NEAR(found.per_flop / truth.per_flop, 1, 1e-3);
    EXPECT_NEAR(found.per_byte / truth.per_byte, 1, 1e-3);
    // A term that would be negative is left out.
    for (Sample& s : samples) s.seconds = 3e-12 * s.flops + 1e-9 - 1e-16 * s.bytes;
    EXPECT_GE(fit_cost(samples).per_byte, 0);
}

// A profile whose every kernel takes a second per 1e12 FLOPs and a second per 1e10 bytes.
MachineProfile simple_profile(int cores) {
    MachineProfile profile{.machine = "made up", .cores = cores};
    KernelProfile kernels{.compute = "f32", .threads = 1};
    for (const char* name : {"gemm", "add", "norm_forward"}) {
        kernels.costs[name] = {0, 1e-12, 1e-10};
        kernels.samples[name] = {};
    }
    profile.kernels.push_back(kernels);
    for (int k = 0; k < comm::kKinds; ++k) profile.operations.push_back({static_cast<Kind>(k), 2, {1e-6, 0, 1e-10}});
    return profile;
}

// Two ranks of data parallel on two cores take about as long for twice the batch; on one core twice as long.
TEST(RehearsedStep, RanksShareTheCores) {
    const auto seconds = [](int ranks, int cores) {
        spec::RunSpec run = spec::parse_text(
            "", "test",
            {"model.preset=llama-tiny", "precision.compute=f32", "train.seq_len=64", "train.micro_batch=1",
             concat("train.global_batch=", 4 * ranks), "train.threads=1", "train.device=cpu"});
        run.data.train = {"random tokens"};
        spec::validate(run, ranks);
        const rehearsal::Target target = rehearsal::target_of(engine::machine_of(run, {0, ranks}, ""));
        return rehearse_in_time(run, target, ranks, simple_profile(cores), false).seconds;
    };
    const double one = seconds(1, 2);
    EXPECT_NEAR(seconds(2, 2) / one, 1, 0.1);
    EXPECT_NEAR(seconds(2, 1) / one, 2, 0.1);
}

// A state passes through the 2 P runs of tokens that P ranks have of a sequence, so a layer's scan takes 2 P times that
// of a run, and each rank, which has two of them, waits for the others.
TEST(RehearsedStep, RanksWaitForTheStatesOfTheTokensBefore) {
    constexpr int kRanks = 4;
    const auto run_of = [](const std::vector<std::string>& model) {
        std::vector<std::string> set = {
            "train.seq_len=64",      "train.micro_batch=1", "train.global_batch=1",         "parallel.cp=4",
            "precision.compute=f32", "train.device=cpu",    "parallel.cp_method=all_gather"};
        set.insert(set.end(), model.begin(), model.end());
        spec::RunSpec run = spec::parse_text("", "test", set);
        run.data.train = {"random tokens"};
        spec::validate(run, kRanks);
        return run;
    };
    const hardware::Cluster cluster = hardware::cluster_named("h100");
    for (const auto& [model, layers] :
         {std::pair<std::vector<std::string>, int>{
              {"model.preset=qwen3.5-tiny", "model.layers=3", "model.delta_layers=\"0-1\""}, 2},
          {{"model.preset=falcon-h1-tiny", "model.layers=1", "model.scan_layers=\"0\""}, 1}}) {
        const spec::RunSpec run = run_of(model);
        const rehearsal::Target target = rehearsal::target_of(engine::machine_of(run, {0, kRanks}, ""));
        std::vector<Program> programs;
        for (int rank = 0; rank < kRanks; ++rank)
            programs.push_back(rehearsal::rehearse(run, target, kRanks, rank).program);
        // A second for each run; the last rank's two are adjacent, so that one call computes both.
        const auto is_scan = [](const rehearsal::KernelCall& call) {
            return std::string_view(call.kernel) == "delta_rule_forward";
        };
        double of_run = 0;
        for (const rehearsal::KernelCall& call : programs.front().calls)
            if (is_scan(call)) of_run = call.work.flops;
        ASSERT_GT(of_run, 0);
        TimelinePrices scans = prices(0, true);
        scans.kernel = [&](const rehearsal::KernelCall& call) {
            return is_scan(call) ? call.work.flops / of_run : 0.0;
        };
        const Timeline timeline = lay_out(programs, scans, false);
        EXPECT_DOUBLE_EQ(timeline.seconds, layers * 2.0 * kRanks) << model.front();
        for (const double busy : timeline.busy) EXPECT_DOUBLE_EQ(busy, layers * 2.0);
        EXPECT_EQ(rehearse_on(run, target, kRanks, cluster, {}, false).timeline.ranks.size(), size_t{kRanks});
    }
    const spec::RunSpec attention = run_of({"model.preset=llama-tiny"});
    const rehearsal::Target target = rehearsal::target_of(engine::machine_of(attention, {0, kRanks}, ""));
    EXPECT_EQ(rehearse_on(attention, target, kRanks, cluster, {}, false).timeline.ranks.size(), 1U);
}

// Between two kernels none runs, however their seconds round.
TEST(Clock, SecondsOfKernelsAreNeverNegative) {
    Clock clock;
    for (int i = 1; i <= 1000; ++i) {
        clock.compute(0.1 / i);
        const double end = clock.now;
        clock.now += 0.01;
        clock.compute(1e-3);
        EXPECT_GE(clock.computed(end, end + 0.01), 0) << i;
        EXPECT_NEAR(clock.computed(0, clock.now), clock.busy, 1e-12) << i;
    }
}

// A step of an 8B model on H100s. One rank stands for all of its position in the pipeline.
Timeline step_on_h100(const std::vector<std::string>& layout, int ranks, bool with_spans = false) {
    std::vector<std::string> set = {"model.preset=llama3-8b", "model.layers=8", "train.seq_len=16384",
                                    "train.micro_batch=1", "train.global_batch=4"};
    set.insert(set.end(), layout.begin(), layout.end());
    spec::RunSpec run = spec::parse_text("", "test", set);
    run.data.train = {"random tokens"};
    spec::validate(run, ranks);
    const hardware::Cluster cluster = hardware::cluster_named("h100");
    const rehearsal::Target target = rehearsal::target_named("h100", spec::compute_type_of(run), 1);
    return rehearse_on(run, target, ranks, cluster, {}, with_spans).timeline;
}

double share_beside_kernels(const Timeline& timeline, const std::string& group) {
    const Overlap overlap = timeline.overlaps.at(group);
    return overlap.beside_kernels / overlap.seconds;
}

// With sequence parallelism a block has eight operations of equal size, without it four; embedding and head add four or
// two to those of eight blocks. Of the two that sum input gradients the one behind gate and up is shorter than the
// weight gradient beside it; the one behind queries, keys and values is longer than its own, and adds a part.
TEST(OverlapOnH100, SumsOfInputGradientsLieBesideWeightGradients) {
    EXPECT_GT(share_beside_kernels(step_on_h100({"parallel.tp=8"}, 8), "tp"), 1.25 * 8 / 68);
    EXPECT_GT(share_beside_kernels(step_on_h100({"parallel.tp=8", "parallel.sequence_parallel=false"}, 8), "tp"),
              1.25 * 8 / 34);
}

// Keys and values, and their gradients on the way back, lie beside attention to 8192 tokens of a rank.
TEST(OverlapOnH100, MessagesOfRingAttentionLieBesideAttention) {
    for (const int ranks : {2, 4}) {
        const Timeline timeline =
            step_on_h100({concat("parallel.cp=", ranks), concat("train.seq_len=", 8192 * ranks)}, ranks);
        EXPECT_GT(share_beside_kernels(timeline, "cp_ring"), 0.95) << ranks;
    }
}

// A message of a pipeline begins when a kernel or a message of its sender or of its receiver ends: it waits for nothing
// else. All of a rank take less than a fiftieth of the step.
TEST(OverlapOnH100, MessagesOfAPipelineBeginBetweenComputations) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
        const Timeline timeline =
            step_on_h100({"parallel.pp=4", concat("parallel.schedule=", schedule), "train.global_batch=16"}, 4, true);
        int messages = 0, late = 0;
        for (size_t rank = 0; rank < timeline.spans.size(); ++rank) {
            double seconds = 0;
            for (const TimedSpan& message : timeline.spans[rank]) {
                if (!message.group.starts_with("pp ") || message.activity != Activity::communication) continue;
                ++messages;
                seconds += message.end - message.begin;
                late += std::ranges::none_of(message.ranks, [&](int of) {
                    return std::ranges::any_of(timeline.spans[to_size(of)], [&](const TimedSpan& s) {
                        return s.activity != Activity::wait && std::abs(s.end - message.begin) < 1e-9;
                    });
                });
            }
            EXPECT_LT(seconds, 0.02 * timeline.seconds) << schedule << ", rank " << rank;
        }
        EXPECT_GT(messages, 0);
        EXPECT_EQ(late, 0) << schedule << ", of " << messages;
    }
}

TEST(Profiles, AreReadAsTheyWereWritten) {
    MachineProfile profile = simple_profile(4);
    profile.kernels[0].samples["gemm"] = {{1e9, 1e6, 1e-3}};
    profile.kernels[0].alone = 0.8;
    const std::string path = testing::TempDir() + "profile.json";
    std::ofstream(path) << to_json(profile).dump();
    const MachineProfile read = read_profile(path);
    EXPECT_EQ(to_json(read).dump(), to_json(profile).dump());
    EXPECT_EQ(read.cores, 4);
    EXPECT_THROW(read.kernels_of("bf16", 1), UsageError);
    std::ofstream(path) << "{}";
    EXPECT_THROW(read_profile(path), DataError);
}

}  // namespace
}  // namespace tutti::simulate
