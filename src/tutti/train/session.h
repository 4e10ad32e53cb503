// train/session.h: what a rank keeps over all stages of a run, and where a run begins.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/generation.h"
#include "tutti/comm/world.h"
#include "tutti/engine/engine.h"
#include "tutti/spec/stages.h"
#include "tutti/train/console.h"
#include "tutti/train/memory_copies.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/trace_file.h"
#include "tutti/train/trainer.h"

namespace tutti::train {

struct Session {
    using Clock = std::chrono::steady_clock;

    // Opens the run directory and the data of all stages. Collective.
    Session(const TrainOptions& options, comm::World& world, SharedData& data);

    bool first_rank() const { return world.rank() == 0; }
    // Into the events of a launched run: a later generation believes no copy in memory that this one has passed over.
    void tell_origin(int64_t step, const std::string& from);

    const TrainOptions& options;
    comm::World& world;
    const std::vector<spec::RunSpec> stages = spec::stages_of(options.run);
    Console console;
    std::unique_ptr<checkpoint::FileLock> lock;  // of the run directory, of the first rank
    checkpoint::Generation generation;           // of the first rank
    std::unique_ptr<MemoryCopies> memory;        // null: no copies in memory
    Clock::time_point begin = Clock::now();
    std::vector<std::optional<data::DataSet>> data;  // of each stage
    bool started = false;                            // a stage has begun
    std::optional<TraceWindow> traced;               // of all stages; set when the first one begins
};

// Of the training data; "noise" of a run without data.
std::string fingerprint(const std::optional<data::DataSet>& data);
// For check_same(): what a rank trains on and with.
std::string kinds_of(const std::optional<data::DataSet>& data, const engine::Machine& machine);

// The step of the checkpoint, or of the copy in memory, from which the run is going to continue; 0: none. Only a first
// guess at the stage: where that one is damaged the run continues from an older one. Collective.
int64_t step_to_continue(Session& session);

}  // namespace tutti::train
