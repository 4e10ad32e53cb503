// train/checkpointing.h: when and what a run saves, and how it resumes. The file protocol is checkpoint/store.h.
// Saved: f32 master weights and the optimizer's state by name, and RunState. Not saved, because they follow from these:
// weights in the compute type (rounded masters), learning rate, data position and dropout (functions of the step). Each
// rank writes and reads its own slices; rank 0 alone begins, commits and prunes saves and chooses the checkpoint to
// resume.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/comm/communicator.h"
#include "tutti/engine/loss_scale.h"
#include "tutti/spec/run_spec.h"
#include "tutti/train/joint_save.h"

namespace tutti::engine {
struct Engine;
}

namespace tutti::train {

class MemoryCopies;

struct RunState {
    int64_t step = 0;     // finished
    int64_t updates = 0;  // of the optimizer: step less the skipped ones
    int64_t tokens = 0;
    int64_t skipped = 0, skipped_in_a_row = 0;    // in a row: less those that overflowed (engine::StepResult)
    std::optional<engine::LossScale> loss_scale;  // of the next step; nothing: fixed, or of the first step
    double seconds = 0;                           // spent in steps, over all sessions of the run
    std::string config, identity;                 // when loaded: TOML of the run that saved it; spec/fields.h
};

// The slices of master weights and the optimizer's state that this rank saves. Of equal copies on several ranks one is
// saved.
std::vector<checkpoint::TensorSlice> state_slices(const engine::Engine& engine);

// What the manifest of a checkpoint says of its run. UsageError where it holds weights only.
RunState state_of(const checkpoint::CheckpointReader& reader);

// Of a run with the directory `out`.
std::string checkpoint_directory(const spec::RunSpec& run, const std::string& out);
// Of the newest checkpoint in such a directory; 0: there is none.
int64_t newest_step(const std::string& directory);

// All ranks of a run make one and call the same methods in the same order; all methods may communicate.
class Checkpointing {
  public:
    using Warn = checkpoint::Warn;
    struct Setup {
        const spec::RunSpec& run;
        std::string directory;  // the same one on every rank: on one machine, or on a shared file system
        std::function<std::string(int64_t step)> data_fingerprint;  // of the data that the step reads
        std::function<std::vector<checkpoint::TensorSlice>()>
            slices;                               // what this rank holds; asked at every save and load
        Warn warn;                                // of rank 0; the others' is not called
        std::function<void()> fence = [] {};      // of rank 0: throws when this process may commit nothing any more
        comm::Communicator* ranks = nullptr;      // all ranks of the run; null: this one alone
        MemoryCopies* memory = nullptr;           // where copies in memory are kept, of the run; null: nowhere
        checkpoint::FileSystem* files = nullptr;  // null: the real one
    };
    explicit Checkpointing(Setup setup);
    ~Checkpointing();

    // Continues as TrainOptions::resume says: fills the slices of all ranks from one checkpoint. UsageError for one of
    // another model, seed or batch; DataError when the data changed. All ranks throw the error of any rank.
    std::optional<RunState> resume(const std::string& mode);

    // Copies the state into the memory of the hosts, in the background when checkpoint.async. The first of failures in
    // a row causes a warning, and so does the next success; the run continues and the copy before stays. Without
    // Setup::memory: nothing.
    void copy(const RunState& state);
    // Copies the state and writes it, in the background when checkpoint.async. A failure of any rank causes one warning
    // and counts on all ranks; the run continues and the previous checkpoint stays.
    void save(const RunState& state);
    // Saves `state` unless it is on disk already. A failed save is retried for `seconds`, after first deleting what a
    // good one would delete (checkpoint.keep), to make room. Between two tries `stop` is asked about ten times a
    // second, by all ranks at the same time; once it holds, the next try is the last one. Returns why the state is not
    // on disk, or "".
    std::string save_last(const RunState& state, double seconds, const std::function<bool()>& stop);
    // Call once per step: commits what all ranks have written and reports failures.
    void poll();
    void wait();  // for the checkpoint and the copy that are being made

    // Step `step` was finite, so the weights of a checkpoint before it were sound. The newest such checkpoint is never
    // pruned: a checkpoint that was saved after the weights were ruined looks sound until the next step.
    void saw_finite_step(int64_t step);
    const std::string& proven() const { return proven_; }  // its path; "": none yet

    const std::string& newest() const { return newest_; }  // path of the last checkpoint that is known good
    // From where resume() has continued: the path of a checkpoint, or "the copy of step 12 in memory".
    const std::string& resumed_from() const { return resumed_from_; }
    bool resumed_from_memory() const { return from_memory_; }
    int64_t saved_step() const { return saved_step_; }  // of newest(); 0: there is none
    int64_t failures() const { return failures_; }

  private:
    bool alone() const { return setup_.ranks == nullptr || setup_.ranks->size() == 1; }
    int rank() const { return alone() ? 0 : setup_.ranks->rank(); }
    int ranks() const { return alone() ? 1 : setup_.ranks->size(); }
    Agreement agree(const std::function<std::string()>& body) const;

    spec::RunSpec run_at(int64_t step) const;
    void choose(const std::string& mode, const checkpoint::LoadInto& load_into);
    bool choose_in_memory(const std::function<void(const checkpoint::CheckpointReader&, const std::string&)>& load);
    std::optional<RunState> lead(const std::string& mode);
    std::optional<RunState> follow();
    Agreement load_together(const std::string& word, const checkpoint::CheckpointReader* reader, RunState& state);
    RunState load(const checkpoint::CheckpointReader& reader, const std::vector<checkpoint::TensorSlice>& slices);

    void start(const RunState& state, bool background);
    checkpoint::Manifest part_of(const RunState& state, const checkpoint::HostState& held) const;
    std::string state_json(const RunState& state) const;
    JointSave::Work work(std::shared_ptr<const checkpoint::HostState> held, checkpoint::Manifest part);
    void wait_for_save();
    void wait_for_copy();
    void poll_save();
    void poll_copy();
    void prune(int64_t keep, const std::string& pinned);
    void end_save(const std::optional<Failure>& failure);
    void report(const std::string& error);

    Setup setup_;
    checkpoint::PosixFileSystem own_files_;
    checkpoint::FileSystem& files_;
    std::unique_ptr<checkpoint::Store> store_;  // of rank 0
    checkpoint::Store::Attempt attempt_;        // of rank 0
    std::string newest_, proven_;
    std::string word_, resumed_from_;
    bool copy_failed_ = false;
    std::shared_ptr<checkpoint::HostState> copied_;   // of the last copy in memory; its memory serves for the next
    bool from_memory_ = false, has_touched_ = false;  // the slices, by the last try to load
    std::string failure_;                             // of the last save; "": it was good
    bool last_ = false;                               // save_last() is running
    int64_t saving_step_ = 0, saved_step_ = 0, copying_step_ = 0;
    int64_t failures_ = 0;
    std::unique_ptr<JointSave> save_, copy_;  // last: their jobs use the rest
};

}  // namespace tutti::train
