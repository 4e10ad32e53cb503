// checkpoint/store.cpp: the names in the directory; saving; finding and loading the newest good checkpoint; pruning.
#include "tutti/checkpoint/store.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tutti/base/digits.h"
#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

namespace {
constexpr std::string_view kStep = "step-";
constexpr size_t kStepDigits = 10;

bool has_name_of_checkpoint(const StoreName& name) {
    return name.kind == NameKind::checkpoint || name.kind == NameKind::replaced;
}
}  // namespace

std::string step_name(int64_t step) {
    const std::string digits = std::to_string(step);
    return std::string(kStep) + std::string(kStepDigits - std::min(kStepDigits, digits.size()), '0') + digits;
}

StoreName parse_store_name(std::string_view name) {
    StoreName parsed;
    if (name.starts_with(kTrash)) parsed.kind = NameKind::trash;
    if (!name.starts_with(kStep)) return parsed;
    const std::string_view digits = name.substr(kStep.size(), name.find('.') - kStep.size());
    parsed.step = parse_number<int64_t>(digits).value_or(-1);
    // step_name() is the only spelling: "step-5" or "step-0000000005x" were not written by a store.
    if (parsed.step < 0 || name.substr(0, kStep.size() + digits.size()) != step_name(parsed.step)) return {};
    const std::string_view rest = name.substr(kStep.size() + digits.size());
    if (rest.empty()) parsed.kind = NameKind::checkpoint;
    if (rest.starts_with(kReplaced)) parsed.kind = NameKind::replaced;
    if (rest.starts_with(kCorrupt)) parsed.kind = NameKind::corrupt;
    if (rest.starts_with(kTemporary)) {
        parsed.kind = NameKind::temporary;
        const std::string_view owner = rest.substr(kTemporary.size());
        parsed.owner = owner.substr(0, owner.rfind('-'));
    }
    return parsed;
}

Store::Store(FileSystem& file_system, std::string directory, Access access, Warn warn)
    : file_system_(file_system),
      directory_(without_slashes(std::move(directory))),
      access_(access),
      warn_(std::move(warn)) {
    check(!directory_.empty() && warn_ != nullptr, "a checkpoint store needs a directory and a way to warn");
    if (access_ == Access::read) return;
    open_directory();
    // The lock of an earlier run can be taken where nothing can be made, and the first save would be the first to tell.
    try {
        file_system_.require_writable(directory_);
    } catch (const IoError& error) {
        throw UsageError(concat("checkpoints cannot be saved: ", error.what()));
    }
    remove_leftovers();
}

void Store::open_directory() {
    make_directories(file_system_, directory_);
    lock_ = file_system_.lock(join(directory_, kLockName), this_owner());
    if (lock_ == nullptr)
        warn_(concat("the file system of ", directory_,
                     " has no locks: make sure that no other run writes its checkpoints there"));
}

void Store::require_write() const {
    check(access_ == Access::write, "the checkpoint directory ", directory_, " was opened for reading only");
}

std::string Store::save(const Snapshot& snapshot) {
    Attempt attempt{.step = snapshot.step};
    Manifest manifest{snapshot.step,   snapshot.config_digest, snapshot.data_fingerprint, snapshot.state, {},
                      snapshot.tensors};
    or_abandon(attempt, [&] {
        attempt = begin(snapshot.step);
        std::vector<NewFile> files;  // all are reserved before one is written: a full disk shows at once
        for (const FileToWrite& file : snapshot.files) {
            check(is_plain_file_name(file.name), "'", file.name, "' is not a plain file name");
            files.emplace_back(file_system_, join(attempt.path, file.name), file.size());
        }
        for (size_t i = 0; i < files.size(); ++i) manifest.files.push_back(files[i].write(snapshot.files[i]));
    });
    return commit(attempt, manifest);
}

void Store::or_abandon(const Attempt& attempt, const std::function<void()>& part_of_save) {
    try {
        part_of_save();
    } catch (const DataError& error) {
        if (attempt.in_place)
            throw DataError(concat("the checkpoint of step ", attempt.step,
                                   " is written but may not outlive a power cut: ", error.what()));
        abandon(attempt);
        throw DataError(concat("the checkpoint of step ", attempt.step, " was not saved: ", error.what(),
                               "; older checkpoints in ", directory_, " are as they were"));
    } catch (...) {
        abandon(attempt);
        throw;
    }
}

Store::Attempt Store::begin(int64_t step) {
    require_write();
    check(step >= 0, "a checkpoint of step ", step);
    if (file_system_.kind(directory_) == FileKind::none) {
        warn_(concat(directory_, " was taken away, with the checkpoints in it; it is made again"));
        open_directory();
    }
    remove_leftovers();
    for (int64_t count = 0;; ++count) {
        Attempt attempt{step, join(directory_, concat(step_name(step), kTemporary, this_owner(), "-", count)), false};
        try {
            file_system_.make_directory(attempt.path);
            return attempt;
        } catch (const IoError& error) {
            // A left-over that could not be removed may have the name.
            if (error.code() != EEXIST || count == 1000) throw;
        }
    }
}

std::string Store::commit(Attempt& attempt, const Manifest& manifest) {
    const std::string path = join(directory_, step_name(attempt.step));
    or_abandon(attempt, [&] {
        require_write();
        check(manifest.step == attempt.step, "the attempt is of step ", attempt.step, ", the manifest of step ",
              manifest.step);
        check_complete(manifest);
        // Makes the names of files of other hosts durable before the manifest lists them. On one host the fsync after
        // the manifest would be enough.
        file_system_.fsync_directory(attempt.path);
        write_manifest_file(attempt.path, manifest);
        fence_();
        move_into_place(attempt, path);
        file_system_.fsync_directory(directory_);
    });
    last_saved_ = path;
    return path;
}

void Store::write_manifest_file(const std::string& directory, const Manifest& manifest) {
    FileToWrite content{concat(kManifestName, ".tmp"), write_manifest(manifest), {}};
    const std::string temporary = join(directory, content.name);
    NewFile(file_system_, temporary, content.size()).write(content);
    file_system_.rename(temporary, join(directory, kManifestName));
    file_system_.fsync_directory(directory);
}

void Store::move_into_place(Attempt& attempt, const std::string& path) {
    // A directory cannot be renamed over a full one. The old checkpoint of the same step gets, durably, a name under
    // which it can be loaded, before the new one takes its place; prune() removes the old one.
    std::string older;
    if (file_system_.kind(path) != FileKind::none)
        older = rename_to_suffix({attempt.step, path}, concat(kReplaced, this_owner()));
    try {
        if (!older.empty()) file_system_.fsync_directory(directory_);
        file_system_.rename(attempt.path, path);
    } catch (const IoError&) {
        try {
            if (!older.empty()) file_system_.rename(older, path);
        } catch (const IoError& error) {
            warn_(concat("the older checkpoint of this step is now ", older, ": ", error.what()));
        }
        throw;
    }
    attempt.in_place = true;
}

void Store::abandon(const Attempt& attempt) {
    if (attempt.path.empty() || attempt.in_place) return;
    try {
        remove_tree(file_system_, attempt.path);
    } catch (const IoError& error) {  // the next begin() tries again
        warn_(concat("could not remove an unfinished checkpoint: ", error.what()));
    }
}

bool Store::is_leftover(const std::string& name) const {
    const StoreName parsed = parse_store_name(name);
    // Only the holder of the lock prunes, so for that holder all trash comes from dead processes.
    if (parsed.kind == NameKind::trash) return lock_ != nullptr;
    if (parsed.kind != NameKind::temporary) return false;
    switch (state_of(parsed.owner)) {
        case OwnerState::gone: return true;
        case OwnerState::this_process:
        case OwnerState::elsewhere: return lock_ != nullptr;
        case OwnerState::running: break;
    }
    warn_(concat(join(directory_, name), " is unfinished and its process ", parsed.owner,
                 " seems to run; remove it by hand if that is another program"));
    return false;
}

void Store::remove_leftovers() {
    for (const std::string& name : file_system_.list(directory_)) {
        if (!is_leftover(name)) continue;
        try {
            remove_tree(file_system_, join(directory_, name));
        } catch (const IoError& error) {
            warn_(concat("could not remove what an earlier save left: ", error.what()));
        }
    }
}

std::string Store::rename_to_suffix(const StoredCheckpoint& stored, std::string_view suffix) {
    // The suffix follows the step's name and not the present name: a second suffix would not be recognised.
    const std::string name = concat(step_name(stored.step), suffix);
    std::string renamed = join(directory_, name);
    for (int64_t count = 2; file_system_.kind(renamed) != FileKind::none; ++count)
        renamed = join(directory_, concat(name, "-", count));
    file_system_.rename(stored.path, renamed);
    return renamed;
}

std::vector<StoredCheckpoint> Store::list() const {
    std::vector<StoredCheckpoint> stored;
    if (file_system_.kind(directory_) == FileKind::none) return stored;
    for (const std::string& name : file_system_.list(directory_)) {
        const StoreName parsed = parse_store_name(name);
        if (has_name_of_checkpoint(parsed) && file_system_.kind(join(directory_, name)) != FileKind::file)
            stored.push_back({parsed.step, join(directory_, name), parsed.kind == NameKind::replaced});
    }
    std::sort(stored.begin(), stored.end(), [](const StoredCheckpoint& a, const StoredCheckpoint& b) {
        if (a.step != b.step) return a.step > b.step;
        return a.replaced != b.replaced ? b.replaced : a.path < b.path;
    });
    return stored;
}

Loaded Store::load(const std::string& path, const LoadInto& load_into) const {
    CheckpointReader reader(file_system_, path);
    load_into(reader);
    reader.verify_rest();
    return {path, reader.manifest()};
}

void Store::warn_of_files() const {
    if (file_system_.kind(directory_) == FileKind::none) return;
    for (const std::string& name : file_system_.list(directory_))
        if (has_name_of_checkpoint(parse_store_name(name)) &&
            file_system_.kind(join(directory_, name)) == FileKind::file)
            warn_(concat(join(directory_, name), " is a file, not a checkpoint; it is passed over"));
}

std::optional<Loaded> Store::load_newest(const LoadInto& load_into, OnDamage on_damage) {
    warn_of_files();
    const auto stored = list();
    for (const StoredCheckpoint& candidate : stored) {
        try {
            return load(candidate.path, [&](const CheckpointReader& reader) {
                check<DamagedError>(reader.manifest().step == candidate.step, candidate.path,
                                    ": its manifest is of step ", reader.manifest().step);
                load_into(reader);
            });
        } catch (const DamagedError& error) {
            if (on_damage == OnDamage::stop) throw;
            std::string kept = candidate.path;
            if (access_ == Access::write) {
                kept = rename_to_suffix(candidate, kCorrupt);
                file_system_.fsync_directory(directory_);
            }
            warn_(concat("the checkpoint of step ", candidate.step, " is damaged: ", error.what(), "; it is kept as ",
                         kept, ", trying the one before it"));
        } catch (const IoError& error) {
            // EIO: this part of the disk cannot be read. The user can mend anything else (permission, too many open
            // files), and falling back would throw away work.
            if (on_damage == OnDamage::stop || error.code() != EIO) throw;
            warn_(concat("the checkpoint of step ", candidate.step, " cannot be read: ", error.what(),
                         "; trying the one before it"));
        }
    }
    bool damaged = !stored.empty();
    if (file_system_.kind(directory_) != FileKind::none)
        for (const std::string& name : file_system_.list(directory_))
            damaged = damaged || parse_store_name(name).kind == NameKind::corrupt;
    check<DataError>(!damaged, directory_,
                     " has damaged checkpoints and no good one; to start from nothing, use "
                     "--resume never with another directory, or move the damaged ones away");
    return std::nullopt;
}

void Store::verify(const std::string& path) const { CheckpointReader(file_system_, path).verify_all(); }

int64_t Store::set_aside_newer(int64_t step) {
    require_write();
    int64_t count = 0;
    for (const StoredCheckpoint& candidate : list()) {
        if (candidate.step <= step) break;
        const std::string renamed = rename_to_suffix(candidate, kSetAside);
        warn_(concat("resumed at step ", step, ": the checkpoint of step ", candidate.step, " is set aside as ",
                     renamed));
        ++count;
    }
    if (count > 0) file_system_.fsync_directory(directory_);
    return count;
}

void Store::prune(int64_t keep, const std::string& pinned) {
    require_write();
    check(keep >= 1, "prune: keep at least 1 checkpoint, got ", keep);
    const auto stored = list();
    std::vector<std::string> surplus;
    int64_t steps = 0;
    for (const StoredCheckpoint& candidate : stored) {
        steps += candidate.replaced ? 0 : 1;
        if ((steps > keep || candidate.replaced) && candidate.path != last_saved_ && candidate.path != pinned)
            surplus.push_back(candidate.path);
    }
    if (surplus.empty()) return;
    const std::string newest = last_saved_.empty() ? stored.front().path : last_saved_;
    try {
        verify(newest);
    } catch (const DamagedError& error) {
        // Not renamed here: the next load does that with a warning.
        warn_(concat("the newest checkpoint is damaged: ", error.what(), "; no older one is deleted"));
        return;
    }
    for (const std::string& path : surplus) trash(path);
}

void Store::remove(const StoredCheckpoint& stored) {
    require_write();
    trash(stored.path);
}

void Store::trash(const std::string& path) {
    // Renamed first: a half-deleted checkpoint must not look like a damaged one.
    std::string doomed = join(directory_, concat(kTrash, last_name_of(path)));
    if (file_system_.kind(doomed) != FileKind::none) remove_tree(file_system_, doomed);
    file_system_.rename(path, doomed);
    file_system_.fsync_directory(directory_);
    remove_tree(file_system_, doomed);
}

}  // namespace tutti::checkpoint
