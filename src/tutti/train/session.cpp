#include "tutti/train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/base/timing.h"
#include "tutti/checkpoint/store.h"
#include "tutti/report/run_events.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/run_directory.h"

namespace tutti::train {

namespace {

// The generation that the launcher has taken; else the next one, in the directory of a run that was ever launched.
checkpoint::Generation generation_of(const TrainOptions& options, const comm::World& world) {
    const int64_t newest = world.rank() == 0 ? checkpoint::newest_generation(options.out) : 0;
    if (world.rank() != 0 || (options.launch.generation == 0 && newest == 0)) return {options.out, 0};
    if (options.launch.generation == 0)
        return checkpoint::Generation::take(options.out, newest + 1, checkpoint::this_owner() + "\n");
    checkpoint::Generation taken(options.out, options.launch.generation);
    taken.require_newest();
    return taken;
}

// Where the agents of all hosts keep copies. The run without them is the same, so their absence is only said.
// Collective.
std::unique_ptr<MemoryCopies> memory_of(const TrainOptions& options, comm::World& world, Console& console) {
    if (options.run.checkpoint.memory_every == 0) return nullptr;
    const bool launched = options.launch.generation > 0;
    const auto places = launched ? comm::tcp::copy_places(comm::process_environment()) : std::nullopt;
    const bool everywhere = world.everyone("copies in memory")->max(places ? 0 : 1) == 0;
    if (everywhere)
        return std::make_unique<MemoryCopies>(
            MemoryCopies::Setup{.places = *places,
                                .out = options.out,
                                .generation = options.launch.generation,
                                .local_rank = options.launch.local_rank,
                                .local_size = options.launch.local_size,
                                .wait_s = std::min(10.0, options.run.comm.timeout_s / 2)});
    if (world.rank() == 0)
        console.warn(concat("checkpoint.memory_every = ", options.run.checkpoint.memory_every, ": no copies are made: ",
                            launched ? "the agent of a host keeps none"
                                     : "agents of `tutti launch` keep them, and none started this run"));
    return nullptr;
}

// The stages as their data is opened.
std::vector<spec::RunSpec> with_kept_tokenizer(std::vector<spec::RunSpec> stages, const TrainOptions& options,
                                               Console& console) {
    std::set<std::string> said;
    for (spec::RunSpec& stage : stages) {
        const std::string warning = options.resume == "never" ? "" : use_kept_tokenizer(stage, options.out);
        if (!warning.empty() && said.insert(warning).second) console.warn(warning);
    }
    return stages;
}

}  // namespace

std::string fingerprint(const std::optional<data::DataSet>& data) { return data ? data->train.fingerprint() : "noise"; }

std::string kinds_of(const std::optional<data::DataSet>& data, const engine::Machine& machine) {
    std::string lines = concat("kernels = ", machine.kernels.name, "\ntraining data = ", fingerprint(data), "\n");
    if (machine.tuning)
        lines += fmt::format("gemm tuning = {:016x}\n", std::hash<std::string>{}(machine.tuning->to_json()));
    if (machine.attention.tuning)
        lines +=
            fmt::format("attention tuning = {:016x}\n", std::hash<std::string>{}(machine.attention.tuning->to_json()));
    if (data) lines += fmt::format("tokenizer = {:016x}\n", data->tokenizer->fingerprint());
    if (data && data->valid) lines += concat("validation data = ", data->valid->fingerprint(), "\n");
    return lines;
}

Session::Session(const TrainOptions& o, comm::World& w, SharedData& shared)
    : options(o),
      world(w),
      console(first_rank() ? o.console : nullptr, o.terminal, o.run.train.steps, first_rank() ? o.warnings : nullptr),
      lock(first_rank() ? lock_run(o.out) : nullptr),
      generation(generation_of(o, w)),
      memory(memory_of(o, w, console)),
      data(shared.open(with_kept_tokenizer(stages, o, console), console, w, o.stop)) {}

void Session::tell_origin(int64_t step, const std::string& from) {
    if (options.launch.generation == 0) return;
    if (!report::append_event(options.out, {.time = unix_time(),
                                            .kind = report::kResumed,
                                            .generation = options.launch.generation,
                                            .ranks = world.size(),
                                            .text = concat("step ", step, ", from ", from),
                                            .step = step}))
        console.warn(concat(options.out, "/events.jsonl cannot be written"));
}

int64_t step_to_continue(Session& session) {
    const TrainOptions& options = session.options;
    comm::World& world = session.world;
    const auto ranks = world.everyone("step to continue");
    int64_t step = 0;
    if (world.rank() == 0 && options.resume != "never") {
        checkpoint::PosixFileSystem files;
        if (options.resume == "auto" || options.resume == "strict") {
            step = newest_step(checkpoint_directory(options.run, options.out));
            if (session.memory) step = session.memory->newest_after(step);
        } else if (files.kind(options.resume) != checkpoint::FileKind::none) {
            step = checkpoint::CheckpointReader(files, options.resume).manifest().step;
        }
    }
    return ranks->max(step);
}

}  // namespace tutti::train
