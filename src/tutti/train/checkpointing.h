// train/checkpointing.h: when and what a run saves, and how it continues. The file protocol is checkpoint/store.h.
// Saved: f32 master weights and moments by name, and the small state below. Not saved, because it follows from them:
// compute-type weights (rounded masters), learning rate, data position and dropout (functions of the step).
#pragma once

#include <memory>
#include <optional>

#include "tutti/checkpoint/async_writer.h"
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/models/model.h"
#include "tutti/optim/optimizer.h"

namespace tutti::train {

struct RunState {
    int64_t step = 0;     // finished
    int64_t updates = 0;  // of the optimizer: step less the skipped ones
    int64_t tokens = 0;
    int64_t skipped = 0, skipped_in_a_row = 0;
    double seconds = 0;  // spent in steps, over all sessions of the run
};

// The parts of a config that fix what the numbers mean: a checkpoint may only continue under equal ones. Lines "key =
// value".
std::string run_identity(const spec::RunSpec& run);

class Checkpointing {
  public:
    using Warn = checkpoint::Warn;
    Checkpointing(ops::Context& ctx, models::Model& model, optim::Optimizer& optimizer, const spec::RunSpec& run,
                  std::string directory, std::string data_fingerprint, Warn warn);
    ~Checkpointing();

    // Continues as TrainOptions::resume says. UsageError when the checkpoint belongs to another model, seed or batch;
    // DataError when the data changed.
    std::optional<RunState> resume(const std::string& mode);

    // Copies the state and writes it, in the background when checkpoint.async. A failure is warned of and counted; the
    // run goes on and the checkpoint before stays.
    void save(const RunState& state);
    void save_and_wait(const RunState& state);
    // Hands out what the background writer had to say. Called once per step.
    void poll();
    void wait();

    const std::string& newest() const { return newest_; }  // path of the last checkpoint that is known good
    int64_t failures() const { return failures_; }

  private:
    std::vector<NamedTensor> tensors() const;
    RunState restore(const checkpoint::CheckpointReader& reader);
    void start(const RunState& state, bool background);
    void report(const std::string& error);

    ops::Context& ctx_;
    models::Model& model_;
    optim::Optimizer& optimizer_;
    const spec::RunSpec& run_;
    std::string directory_, data_fingerprint_;
    Warn warn_;
    std::unique_ptr<checkpoint::FileSystem> files_;
    std::unique_ptr<checkpoint::Store> store_;
    std::string newest_;
    std::string written_;  // by the background job; read after it ended
    int64_t failures_ = 0;
    std::unique_ptr<checkpoint::AsyncWriter> writer_;  // last: its job uses the rest
};

}  // namespace tutti::train
