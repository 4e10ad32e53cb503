#include "tutti/train/session.h"

#include <fmt/format.h>

#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/store.h"
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

}  // namespace

std::string fingerprint(const std::optional<data::DataSet>& data) {
    return data ? fmt::format("{:016x}", data->train.fingerprint()) : "noise";
}

std::string kinds_of(const std::optional<data::DataSet>& data, const engine::Machine& machine) {
    std::string lines = concat("kernels = ", machine.kernels.name, "\ntraining data = ", fingerprint(data), "\n");
    if (machine.tuning)
        lines += fmt::format("gemm tuning = {:016x}\n", std::hash<std::string>{}(machine.tuning->to_json()));
    if (data) lines += fmt::format("tokenizer = {:016x}\n", data->tokenizer->fingerprint());
    if (data && data->valid) lines += fmt::format("validation data = {:016x}\n", data->valid->fingerprint());
    return lines;
}

Session::Session(const TrainOptions& o, comm::World& w, SharedData& shared)
    : options(o),
      world(w),
      console(first_rank() ? o.console : nullptr, o.terminal, o.run.train.steps, first_rank() ? o.warnings : nullptr),
      lock(first_rank() ? lock_run(o.out) : nullptr),
      generation(generation_of(o, w)),
      data(shared.open(stages, console, w, o.stop)) {}

int64_t step_on_disk(const TrainOptions& options, comm::World& world) {
    const auto ranks = world.everyone("step on disk");
    int64_t step = 0;
    if (world.rank() == 0 && options.resume != "never") {
        checkpoint::PosixFileSystem files;
        const bool named = options.resume != "auto" && options.resume != "strict";
        const std::string directory = checkpoint_directory(options.run, options.out);
        if (named) {
            if (files.kind(options.resume) != checkpoint::FileKind::none)
                step = checkpoint::CheckpointReader(files, options.resume).manifest().step;
        } else {
            const checkpoint::Store store(files, directory, checkpoint::Access::read, [](const std::string&) {});
            const auto stored = store.list();
            if (!stored.empty()) step = stored.front().step;
        }
    }
    return ranks->max(step);
}

}  // namespace tutti::train
