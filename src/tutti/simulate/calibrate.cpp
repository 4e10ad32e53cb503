#include <algorithm>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/ops/kernel_times.h"
#include "tutti/simulate/profile.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::simulate {

namespace {

// Small models whose kernels are of many sizes; together the families' kernels.
const std::vector<std::vector<std::string>>& models() {
    static const std::vector<std::vector<std::string>> all = {
        {"model.preset=llama-tiny", "train.seq_len=128", "train.micro_batch=4"},
        {"model.preset=llama-tiny", "train.seq_len=256", "train.micro_batch=2", "model.width=64", "model.heads=2",
         "model.kv_heads=2", "model.ffn=224"},
        {"model.preset=llama-tiny", "train.seq_len=512", "train.micro_batch=1", "model.width=256", "model.heads=4",
         "model.kv_heads=2", "model.head_dim=64", "model.ffn=704", "model.vocab=2048"},
        {"model.preset=llama-tiny", "train.seq_len=256", "train.micro_batch=2", "model.width=512", "model.heads=8",
         "model.kv_heads=4", "model.head_dim=64", "model.ffn=1408", "model.vocab=4096", "model.layers=2"},
        {"model.preset=gpt2-124m", "train.seq_len=256", "train.micro_batch=2", "model.width=256", "model.heads=4",
         "model.kv_heads=4", "model.head_dim=64", "model.ffn=1024", "model.vocab=2048", "model.layers=2"},
        {"model.preset=moe-tiny", "train.seq_len=128", "train.micro_batch=4"},
        {"model.preset=lfm2-tiny", "train.seq_len=128", "train.micro_batch=4"},
        {"model.preset=llama-tiny", "train.seq_len=256", "train.micro_batch=2", "recompute.policy=selective"},
    };
    return all;
}

// Layouts of several ranks that call kernels which one rank does not.
std::vector<std::vector<std::string>> layouts(int ranks) {
    std::vector<std::vector<std::string>> all;
    for (const char* method : {"ring", "all_gather", "ulysses"})
        all.push_back({"model.preset=llama-tiny", "train.seq_len=256", "train.micro_batch=2",
                       concat("parallel.cp=", ranks), concat("parallel.cp_method=", method)});
    all.push_back(
        {"model.preset=llama-tiny", "train.seq_len=256", "train.micro_batch=2", concat("parallel.tp=", ranks)});
    all.push_back({"model.preset=moe-tiny", "train.seq_len=128", "train.micro_batch=4", concat("parallel.ep=", ranks)});
    return all;
}

spec::RunSpec run_of(std::vector<std::string> set, const std::string& compute, int threads, int ranks) {
    set.insert(set.end(), {"precision.compute=" + compute, "parallel.zero=0", "train.device=cpu",
                           concat("train.threads=", threads), "train.steps=1000"});
    spec::RunSpec run = spec::parse_text("", "calibrate", set);
    run.data.train = {"random tokens"};
    run.train.global_batch = 2 * run.train.micro_batch * ranks;
    spec::validate(run, ranks);
    return run;
}

struct Measured {
    std::vector<ops::KernelTimes::Row> rows;
    double step = 0, in_kernels = 0, calls = 0;  // seconds of a step, those in kernels, kernel calls
};

// Rank 0's kernels while the other ranks train, too.
Measured measure(const spec::RunSpec& run, int ranks) {
    constexpr int kSteps = 4;
    Measured measured;
    comm::run_ranks(ranks, {}, [&](comm::World& world) {
        engine::Engine engine(
            run, world, engine::machine_of(run, {world.rank(), ranks}, ""),
            [&](ops::Context& ctx, const engine::BatchShard& share) { return engine::fixed_batches(ctx, run, share); });
        int64_t step = 0;
        for (; step < 2;) engine::train_step(engine, ++step);
        const double begin = seconds_now();
        for (int i = 0; i < kSteps; ++i) engine::train_step(engine, ++step);
        const double seconds = (seconds_now() - begin) / kSteps;
        ops::KernelTimes times;
        if (world.rank() == 0) engine.ctx.meter = &times;
        for (int i = 0; i < kSteps; ++i) engine::train_step(engine, ++step);
        engine.ctx.meter = nullptr;
        if (world.rank() != 0) return;
        measured.rows = times.rows();
        measured.step = seconds;
        for (const ops::KernelTimes::Row& row : measured.rows) {
            measured.in_kernels += row.seconds / kSteps;
            measured.calls += static_cast<double>(row.calls) / kSteps;
        }
    });
    return measured;
}

KernelProfile measure_kernels(const std::string& compute, int threads, int cores) {
    KernelProfile profile{.compute = compute, .threads = threads};
    const int ranks = std::max(1, cores / threads);
    double loaded = 0, alone = 0;
    std::vector<std::vector<std::string>> runs = models();
    if (ranks > 1)
        for (std::vector<std::string>& layout : layouts(std::min(ranks, 4))) runs.push_back(std::move(layout));
    for (size_t i = 0; i < runs.size(); ++i) {
        const Measured m = measure(run_of(runs[i], compute, threads, ranks), ranks);
        if (i < models().size()) loaded += m.in_kernels;
        for (const ops::KernelTimes::Row& row : m.rows) {
            const auto calls = static_cast<double>(row.calls);
            profile.samples[row.kernel].push_back(
                {row.work.flops / calls, row.work.bytes / calls, row.seconds / calls});
        }
    }
    for (const auto& [kernel, samples] : profile.samples) profile.costs[kernel] = fit_cost(samples);
    // Outside kernels: of one rank, which waits for no other.
    std::vector<Sample> outside;
    for (const std::vector<std::string>& model : models()) {
        const Measured m = measure(run_of(model, compute, threads, 1), 1);
        outside.push_back({m.calls, 0, std::max(1e-6, m.step - m.in_kernels)});
        alone += m.in_kernels;
    }
    profile.alone = std::min(1.0, alone / loaded);
    const CallCost cost = fit_cost(outside);
    profile.between_kernels = cost.per_flop;
    profile.of_step = cost.per_call;
    return profile;
}

// Seconds of a core of each rank for one operation of `elements` floats.
double time_operation(comm::Kind kind, int ranks, int64_t elements, int cores) {
    double seconds = 0;
    comm::run_ranks(ranks, {}, [&](comm::World& world) {
        const std::unique_ptr<Device> device = make_cpu_device(1);
        const std::unique_ptr<comm::Communicator> group = world.everyone("calibrate");
        const auto tensor = [&](int64_t n) { return Tensor::empty(*device, {n}, DType::f32, Purpose::workspace); };
        const int64_t part = std::max<int64_t>(1, elements / ranks);
        const Tensor whole = tensor(part * ranks), other = tensor(part * ranks), piece = tensor(part);
        for (const Tensor& each : {whole, other, piece})
            std::fill_n(static_cast<float*>(each.view().data), each.numel(), 1.0f);
        const std::vector<int64_t> counts(to_size(ranks), part);
        const auto once = [&] {
            switch (kind) {
                case comm::Kind::all_reduce: return group->all_reduce(whole).wait();
                case comm::Kind::reduce_scatter: return group->reduce_scatter(whole, piece).wait();
                case comm::Kind::all_gather: return group->all_gather(piece, whole).wait();
                case comm::Kind::all_to_all: return group->all_to_all(whole, counts, other, counts).wait();
                case comm::Kind::broadcast: return group->broadcast(whole, 0).wait();
                case comm::Kind::barrier: return group->barrier();
                case comm::Kind::send:
                case comm::Kind::receive: break;
            }
            const int next = (world.rank() + 1) % ranks, last = (world.rank() + ranks - 1) % ranks;
            comm::Work sent = group->send(whole, next), received = group->receive(other, last);
            received.wait();
            sent.wait();
        };
        once();
        group->barrier();
        const int times = elements > 100000 ? 5 : 40;
        double best = 1e30;
        for (int round = 0; round < 3; ++round) {
            group->barrier();
            const double begin = seconds_now();
            for (int i = 0; i < times; ++i) once();
            best = std::min(best, (seconds_now() - begin) / times);
        }
        if (world.rank() == 0) seconds = best;
        group->barrier();
    });
    return seconds * std::min(1.0, static_cast<double>(cores) / ranks);
}

}  // namespace

MachineProfile calibrate(const std::function<void(const std::string&)>& progress) {
    MachineProfile profile;
    profile.cores = available_cores();
    profile.machine = make_cpu_device(0)->name();
    std::set<int> threads = {1, profile.cores};
    for (const char* compute : {"bf16", "f32"}) {
        for (const int t : threads) {
            progress(concat("kernels in ", compute, ", ", t, t == 1 ? " thread a rank" : " threads a rank"));
            profile.kernels.push_back(measure_kernels(compute, t, profile.cores));
        }
    }
    using comm::Kind;
    for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::broadcast,
                            Kind::barrier, Kind::send}) {
        for (const int ranks : {2, 4, 8}) {
            progress(concat(name_of(kind), " of ", ranks, " ranks"));
            std::vector<Sample> samples;
            for (const int64_t elements : {256, 16384, 131072, 1048576}) {
                samples.push_back(
                    {0, 4.0 * static_cast<double>(elements), time_operation(kind, ranks, elements, profile.cores)});
            }
            profile.operations.push_back({kind, ranks, fit_cost(samples)});
            if (kind == Kind::send) profile.operations.push_back({Kind::receive, ranks, fit_cost(samples)});
        }
    }
    return profile;
}

}  // namespace tutti::simulate
