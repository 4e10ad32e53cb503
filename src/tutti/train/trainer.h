// train/trainer.h: a whole run: opens the data, builds the model, resumes, steps, saves, logs. One Run object owns
// everything that a rank has.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "tutti/comm/launcher.h"
#include "tutti/comm/stop.h"
#include "tutti/engine/factories.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {
struct Engine;
}

namespace tutti::train {

struct TrainOutcome;

struct TrainOptions {
    spec::RunSpec run;    // validated
    std::string out;      // run directory; made when missing
    int ranks = 1;        // of the run: threads of this process, or the processes of `launch`
    comm::Launch launch;  // with a launcher this process is one rank; only rank 0 has a console
    // auto: continue from the newest good checkpoint of `out`, or start; never: start, and refuse a directory that
    // holds a run; strict: continue, and stop when the newest checkpoint is damaged; else the path of one checkpoint.
    std::string resume = "auto";
    engine::Factories factories = {};  // of models that a program brings
    bool force =
        false;  // start even if memory does not suffice (check_memory), or earlier starts died (start_checks.h)
    std::ostream* console = nullptr;   // plan card and step lines; nullptr: quiet
    std::ostream* warnings = nullptr;  // nullptr: on the console
    bool terminal = false;             // the console is a terminal: draw the progress bar
    // Asked after each step and inside evaluations; true: save and end.
    std::function<bool()> stop_requested = [] { return false; };
    bool counts_starts = false;  // something else may start the run again whenever it dies: bound that (start_checks.h)
    comm::Stop* stop = nullptr;  // a request before the first step: the rank throws Preempted
    // Called on rank 0 before the ranks part: a launcher may kill the others when the first ends with an exit code.
    std::function<void(const TrainOutcome&)> report = nullptr;
};

struct TrainOutcome {
    int64_t step = 0;        // last finished step
    double loss = 0;         // of that step
    double eval_loss = 0;    // of the last evaluation; NaN without validation data
    int64_t tokens = 0;      // trained on, over all sessions of the run
    int64_t skipped = 0;     // steps that were not finite
    bool preempted = false;  // stop_requested ended it; a checkpoint was saved
    std::string checkpoint;  // newest one, "" when none was written
    double seconds = 0;      // this call
};

// The outcome of the rank of this process, or of rank 0: the decision to stop and the checkpoint are those of all
// ranks. Throws UsageError, DataError or Error; Preempted when options.stop asked before the first step. The newest
// committed checkpoint survives every failure.
TrainOutcome train(const TrainOptions& options);

// Checks that the weights of [model] hf fit the model, if the directory exists. UsageError or DataError with the
// tensor.
void check_stored_weights(const spec::RunSpec& run);

// Gives the engine the weights of [model] hf. Collective.
void load_stored_weights(engine::Engine& engine);

}  // namespace tutti::train
