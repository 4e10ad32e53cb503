// train/joint_save.h: outcomes that all ranks share, and a save that all ranks make while training goes on: leaders
// begin it, every rank writes its part in the background, leaders commit what all have written.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/async_writer.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/manifest.h"
#include "tutti/comm/communicator.h"

namespace tutti::train {

// An error that another rank can rethrow. More severe kinds come later and win when ranks fail differently.
struct Failure {
    enum class Kind : char { damaged = '0', unreadable, data, usage, other };  // unreadable: an IoError with EIO
    Kind kind = Kind::other;
    std::string message;
    std::string of_rank;  // "rank 3: ", or "" for a rank alone

    std::string text() const { return of_rank + message; }
    [[noreturn]] void raise() const;  // of text(): DamagedError, IoError, DataError, UsageError or Error
};

struct Agreement {
    std::vector<std::string> texts;  // what the body returned, by rank
    std::optional<Failure> failure;  // the most severe, of the lowest rank
};

// Runs the body on every rank and agrees on the outcome: all ranks get the same result, also when one rank fails. The
// body must not communicate. `ranks` null: this rank alone.
Agreement agree(comm::Communicator* ranks, const std::function<std::string()>& body);

// Writes a rank's file. Returns `part`, the manifest of its state without files, with that file, as text.
std::string write_part(checkpoint::FileSystem& files, const std::string& directory, const checkpoint::FileToWrite& file,
                       checkpoint::Manifest part);
// The parts of all ranks as one. DataError for another text.
checkpoint::Manifest merge_parts(const std::vector<std::string>& parts);

// All ranks call the same methods in the same order.
class JointSave {
  public:
    struct Work {
        int leader = 0;  // the rank that begins and commits for this one, such as this rank itself
        // Of leaders: whether the save may begin; poll() asks again. None begins before all may. Empty: at once.
        std::function<bool()> ready = {};
        // Of leaders: makes the directory in which their ranks write.
        std::function<std::string()> begin;
        // In the background: writes this rank's part, and returns its manifest.
        std::function<std::string(const std::string& directory)> write;
        // Of leaders: makes a whole of the parts of all ranks, and returns its path.
        std::function<std::string(const std::vector<std::string>& parts)> commit;
        bool commits_beside = true;  // in the background too; else within poll(), where a commit takes no time
    };
    // `unclaimed`: gets the error of a save whose outcome poll() did not return.
    JointSave(comm::Communicator* ranks, std::function<void(const std::string&)> unclaimed);

    bool idle() const { return stage_ == Stage::idle; }
    void start(Work work);  // when idle
    // Goes on with the save where all ranks are ready. The outcome once it has ended: texts are what commit() returned.
    std::optional<Agreement> poll();
    // While this rank writes, for a moment at most: no rank waits in a collective for as long as another one writes.
    void rest() const;

  private:
    enum class Stage { idle, beginning, writing, committing };

    bool alone() const { return ranks_ == nullptr || ranks_->size() == 1; }
    int rank() const { return alone() ? 0 : ranks_->rank(); }
    bool leads() const { return work_.leader == rank(); }
    Agreement agree(const std::function<std::string()>& body) const;
    void begin();
    std::string result_of_job();
    void commit(std::vector<std::string> parts);
    void end(Agreement outcome);

    comm::Communicator* ranks_;
    Work work_;
    Stage stage_ = Stage::idle;  // the same on all ranks
    std::optional<Agreement> outcome_;
    std::string result_;              // of the background job; read after it ended
    checkpoint::AsyncWriter writer_;  // last: its job uses the rest
};

}  // namespace tutti::train
