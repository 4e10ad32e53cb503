// checkpoint/store.cpp: saving. Loading and pruning are in store_load.cpp and store_prune.cpp.
#include "tutti/checkpoint/store.h"

#include <cerrno>
#include <utility>

#include "tutti/checkpoint/owner.h"
#include "tutti/checkpoint/store_names.h"

namespace tutti::checkpoint {

Store::Store(FileSystem& file_system, std::string directory, Access access, Warn warn)
    : file_system_(file_system), directory_(std::move(directory)), access_(access), warn_(std::move(warn)) {
    while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
    check(!directory_.empty() && warn_ != nullptr, "a checkpoint store needs a directory and a way to warn");
    if (access_ == Access::read) return;
    make_directories(file_system_, directory_);
    lock_ = file_system_.lock(join(directory_, kLockName), this_owner());
    if (lock_ == nullptr)
        warn_(concat("the file system of ", directory_,
                     " has no locks: make sure that no other run writes its checkpoints there"));
    remove_leftovers();
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
        // The names of files that other hosts made, before a manifest can speak of them. On one host the fsync behind
        // the manifest would do.
        file_system_.fsync_directory(attempt.path);
        write_manifest_file(attempt.path, manifest);
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
    // A directory cannot be renamed over a full one. The old one of the same step keeps a name under which it can be
    // loaded, durably, before the new one takes its place; prune() removes it.
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
    // Only the holder of the lock prunes, so with the lock in hand all trash is from the dead.
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
    // From the step's name, not from the present one: a suffix on a suffix would keep its old meaning.
    const std::string name = concat(step_name(stored.step), suffix);
    std::string renamed = join(directory_, name);
    for (int64_t count = 2; file_system_.kind(renamed) != FileKind::none; ++count)
        renamed = join(directory_, concat(name, "-", count));
    file_system_.rename(stored.path, renamed);
    return renamed;
}

}  // namespace tutti::checkpoint
