// checkpoint/store.h: one directory of checkpoints, in which a crash at any instant leaves the previous or the new one.
// One thread at a time uses a Store.
//
// Commit protocol:
//   1. make step-….tmp-…; create and reserve every file; write, digest, fsync, close each; fsync the directory
//   2. write MANIFEST.json.tmp, fsync, rename to MANIFEST.json, fsync the directory
//   3. rename the directory to step-…, fsync the parent.  <- committed: a valid manifest inside a final name
// A pointer file ("latest") is not written and not needed: the newest valid directory is the newest checkpoint.
//
// Names in the directory:
//   step-0000000100                     a checkpoint
//   step-0000000100.replaced-HOST-PID   the older checkpoint of the same step, during and after its replacement
//   step-0000000100.tmp-HOST-PID-N      being written, or left by a crash
//   step-0000000100.corrupt             found damaged when read; kept for inspection
//   step-0000000100.set-aside           newer than the step at which a run was resumed; kept too
//   .trash-…                            being deleted
//   .lock                               held by the run that writes here
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/checkpoint_reader.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/manifest.h"

namespace tutti::checkpoint {

constexpr std::string_view kLockName = ".lock";
constexpr std::string_view kTrash = ".trash-", kTemporary = ".tmp-", kReplaced = ".replaced-", kCorrupt = ".corrupt",
                           kSetAside = ".set-aside";

enum class NameKind { checkpoint, replaced, temporary, corrupt, trash, other };

struct StoreName {
    NameKind kind = NameKind::other;
    int64_t step = -1;
    std::string owner;  // of a temporary one
};

std::string step_name(int64_t step);  // "step-0000000100"
StoreName parse_store_name(std::string_view name);

// The content of one save. The files' bodies must stay unchanged until save() returns.
struct Snapshot {
    int64_t step = 0;
    std::vector<FileToWrite> files;
    std::string config_digest, data_fingerprint;
    std::string state;                  // JSON of the trainer
    std::vector<TensorRecord> tensors;  // what the files hold
};

struct StoredCheckpoint {
    int64_t step = 0;
    std::string path;
    bool replaced = false;  // a newer save of the same step took its place
};

struct Loaded {
    std::string path;
    Manifest manifest;
};

// Reads values from a checkpoint. When a checkpoint proves damaged during the call, the function is called again with
// an older one, so each call must set everything that the function ever sets.
using LoadInto = std::function<void(const CheckpointReader&)>;

enum class Access { read, write };
enum class OnDamage { fall_back, stop };

using Warn = std::function<void(const std::string&)>;

class Store {
  public:
    // write: makes the directory, locks it (UsageError names the other run, or the reason why nothing can be written)
    // and removes what killed runs left.
    // read: never changes anything; beside a running writer only committed checkpoints are visible.
    // `warn` receives what the user must know although the work continues; the thread that uses the Store calls it.
    Store(FileSystem& file_system, std::string directory, Access access, Warn warn);

    // Asked before each commit; what it throws abandons the save.
    void set_fence(std::function<void()> fence) { fence_ = std::move(fence); }

    // Returns the new checkpoint's path. On failure (disk full, I/O error): DataError; the temporary files of this save
    // are removed, and no committed checkpoint has been changed.
    std::string save(const Snapshot& snapshot);

    // The parts of save(), for many ranks: one rank begins, every rank writes its files with NewFile under
    // attempt.path, the first rank merges the parts of the manifest and commits, or abandons if any rank failed. A
    // commit that fails has abandoned. A directory that was taken away is made again, with a warning.
    struct Attempt {
        int64_t step = 0;
        std::string path;
        bool in_place = false;  // has its final name
    };
    Attempt begin(int64_t step);
    std::string commit(Attempt& attempt, const Manifest& manifest);  // Error when tensors are not complete
    void abandon(const Attempt& attempt);

    // The newest good checkpoint, or nothing if there is no checkpoint at all. A damaged one is renamed to ….corrupt
    // (with Access::write) with a warning, and the next older one is tried; with `stop` its DamagedError is thrown
    // instead. DataError if there are damaged ones but no good one: a run must not silently start from nothing.
    std::optional<Loaded> load_newest(const LoadInto& load_into, OnDamage on_damage);
    // The checkpoint at `path`, or an error. Every byte is verified, also what `load_into` does not read.
    Loaded load(const std::string& path, const LoadInto& load_into) const;

    std::vector<StoredCheckpoint> list() const;  // newest first; directories only
    // Reads the checkpoint from the disk, not from the cache. DamagedError if a bit is wrong.
    void verify(const std::string& path) const;

    // Deletes one of list().
    void remove(const StoredCheckpoint& stored);
    // Deletes checkpoints except the newest `keep` (>= 1) steps, the one that this Store saved last, and `pinned` ("":
    // none). Deletes nothing unless the newest one verifies.
    void prune(int64_t keep, const std::string& pinned = "");

    // Renames the checkpoints after `step` to ….set-aside, and returns how many. For a run that resumes from an older
    // step in the same directory: otherwise the abandoned later steps would be the newest checkpoints.
    int64_t set_aside_newer(int64_t step);

  private:
    void require_write() const;
    void open_directory();  // makes and locks it
    void or_abandon(const Attempt& attempt, const std::function<void()>& part_of_save);
    void remove_leftovers();
    void warn_of_files() const;  // with names of checkpoints
    bool is_leftover(const std::string& name) const;
    std::string rename_to_suffix(const StoredCheckpoint& stored, std::string_view suffix);
    void trash(const std::string& path);
    void write_manifest_file(const std::string& directory, const Manifest& manifest);
    void move_into_place(Attempt& attempt, const std::string& path);

    FileSystem& file_system_;
    std::string directory_;
    Access access_;
    Warn warn_;
    std::function<void()> fence_ = [] {};
    std::unique_ptr<FileLock> lock_;
    std::string last_saved_;
};

}  // namespace tutti::checkpoint
