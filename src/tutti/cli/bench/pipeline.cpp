// cli/bench/pipeline.cpp: `tutti bench pipeline`: runs schedules with the executor of training and real messages
// between ranks; compute is replaced by sleeping for the times of F, I and W, so a few cores can run any number of
// ranks. The timeline of the same program is printed beside the measured time.
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/io.h"
#include "tutti/comm/run.h"
#include "tutti/kernels/backends.h"
#include "tutti/pipeline/executor.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"

namespace tutti::cli {

namespace {

using autograd::PassKind;

constexpr int64_t kSleepingTokens = 64, kSleepingWidth = 32;  // of the model that stands for one

// Makes each pass over a layer take a given time.
class Sleeping final : public autograd::Hooks {
  public:
    explicit Sleeping(const schedule::StageTimes<double>& seconds) : seconds_(seconds) {}

    void before(autograd::Unit&, const autograd::Pass&) override { begin_ = seconds_now(); }
    void after(autograd::Unit& unit, const autograd::Pass& pass) override {
        if (unit.name.starts_with("layers.")) sleep_until(begin_ + seconds_of(pass.kind));
    }

  private:
    double seconds_of(PassKind kind) const {
        switch (kind) {
            case PassKind::forward: return seconds_.forward;
            case PassKind::backward: return seconds_.backward_input + seconds_.backward_weight;
            case PassKind::backward_input: return seconds_.backward_input;
            case PassKind::backward_weight: return seconds_.backward_weight;
            case PassKind::recompute: return 0;
        }
        return 0;
    }
    // The operating system wakes a thread late, so the last part of the time is spent polling the clock.
    static void sleep_until(double end) {
        constexpr double kAwake = 2e-4;
        const double asleep = end - seconds_now() - kAwake;
        if (asleep > 0) std::this_thread::sleep_for(std::chrono::duration<double>(asleep));
        while (seconds_now() < end) std::this_thread::yield();
    }
    schedule::StageTimes<double> seconds_;
    double begin_ = 0;
};

schedule::Schedule schedule_of(const BenchPipelineArguments& a, const schedule::Kind& kind) {
    return schedule::insert_messages(schedule::generate(
        kind.name, {.ranks = a.stages, .chunks = kind.chunks == 0 ? a.chunks : 1, .microbatches = a.microbatches}));
}

// One rank: an mlp of a layer for each stage, so narrow that its kernels take no time.
class SleepingRank {
  public:
    SleepingRank(comm::World& world, const schedule::Schedule& s, const schedule::StageTimes<double>& seconds)
        : device_(make_cpu_device(1)),
          ctx_{*device_, kernels::table_for(*device_, ComputeType::f32)},
          groups_(world, mesh::Mesh({{mesh::Axis::tp_copy, 1},
                                     {mesh::Axis::tp_part, 1},
                                     {mesh::Axis::cp_ulysses, 1},
                                     {mesh::Axis::cp_ring, 1},
                                     {mesh::Axis::dp_shard, 1},
                                     {mesh::Axis::dp_replicate, 1},
                                     {mesh::Axis::pp, world.size()}})),
          model_(models::make_model(
              ctx_, spec::ModelSpec{.family = spec::Family::mlp, .width = kSleepingWidth, .layers = s.placement.stages},
              kSleepingTokens)),
          pipeline_{.schedule = s,
                    .spans = pipeline::balanced(std::vector<double>(model_.modules().size(), 1), s.placement.stages),
                    .rank = world.rank()},
          executor_(ctx_, model_, groups_, pipeline_, {.compute = DType::f32}),
          hooks_(seconds) {
        models::materialize(ctx_, model_, DType::f32, 1, true);
    }
    // Seconds from a barrier until the last rank has finished.
    double run() {
        groups_.world().barrier();
        const double begin = seconds_now();
        executor_.run(pipeline_.program(), {.hooks = hooks_,
                                            .batch = [this](int64_t) { return batch(); },
                                            .output = [](int64_t, const nn::Batch&, const Tensor&) {}});
        return groups_.world().max(seconds_now() - begin);
    }

  private:
    nn::Batch batch() {
        nn::Batch b;
        b.features = b.feature_targets = ops::zeros(ctx_, {kSleepingTokens, kSleepingWidth}, DType::f32, Purpose::data);
        return b;
    }
    std::unique_ptr<Device> device_;
    ops::Context ctx_;
    parallel::Groups groups_;
    models::Model model_;
    pipeline::Pipeline pipeline_;
    pipeline::Executor executor_;
    Sleeping hooks_;
};

Json measure(comm::World& world, const BenchPipelineArguments& a, const schedule::Kind& kind, std::ostream& text) {
    const schedule::Schedule s = schedule_of(a, kind);
    // The times of a rank are divided over its chunks of one copy of the model.
    const double chunks = 1e3 * s.placement.stages / s.placement.ranks;
    schedule::Times<double> times;
    times.stages = {{a.forward / chunks, a.backward_input / chunks, a.backward_weight / chunks}};
    const auto timeline = schedule::simulate(s, times);
    SleepingRank rank(world, s, times.stages.front());
    rank.run();  // allocates memory and makes connections
    std::vector<double> runs;
    for (int i = 0; i < a.repeats; ++i) runs.push_back(rank.run());
    const Timing measured = timing_of(std::move(runs));
    const double median = measured.median, busy = timeline.makespan - timeline.bubble;
    text << left(std::string(kind.name), 18) << right(format_time(timeline.makespan), 12)
         << right(format_time(median), 12) << right(format_fixed(median / timeline.makespan, 4), 9)
         << right(format_percent(1 - busy / median), 9) << std::endl;
    return {{"kind", kind.name},
            {"timeline_s", timeline.makespan},
            {"median_s", median},
            {"min_s", measured.min},
            {"max_s", measured.max},
            {"ratio", median / timeline.makespan},
            {"bubble_rate", 1 - busy / median}};
}

Json measure_all(comm::World& world, const BenchPipelineArguments& a, std::ostream& text) {
    text << "tutti bench pipeline: " << a.stages << " ranks, " << a.microbatches << " microbatches, backend "
         << world.backend() << "; F, I, W of a rank's part of the model " << a.forward << ", " << a.backward_input
         << ", " << a.backward_weight << " ms\n\n"
         << left("schedule", 18) << right("timeline", 12) << right("measured", 12) << right("ratio", 9)
         << right("bubble", 9) << std::endl;
    Json rows = Json::array();
    for (const schedule::Kind& kind : schedule::kinds()) try {
            if (a.kind == "all" || a.kind == kind.name) rows.push_back(measure(world, a, kind, text));
        } catch (const UsageError& error) {
            if (a.kind != "all") throw;
            text << left(std::string(kind.name), 18) << error.what() << std::endl;
        }
    check<UsageError>(!rows.empty(), "--kind ", a.kind, ": there is no such schedule; try tutti schedule --help");
    return {{"bench", "pipeline"}, {"ranks", a.stages}, {"microbatches", a.microbatches}, {"rows", rows}};
}

}  // namespace

int bench_pipeline(const BenchPipelineArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::this_launch();
    BenchPipelineArguments a = arguments;
    if (launch.size > 1) a.stages = launch.size;
    comm::run(launch, a.stages, {.timeout_s = 60, .progress_thread = a.progress_thread}, [&](comm::World& world) {
        std::ostream silent(nullptr);
        const Json document = measure_all(world, a, world.rank() == 0 ? io.text() : silent);
        if (world.rank() == 0) io.print(document);
    });
    return 0;
}

}  // namespace tutti::cli
