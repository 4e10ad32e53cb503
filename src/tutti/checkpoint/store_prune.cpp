// checkpoint/store_prune.cpp: deleting old checkpoints, only behind a newer one that was read back.
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/store_names.h"

namespace tutti::checkpoint {

void Store::prune(int64_t keep) {
    require_write();
    check(keep >= 1, "prune: keep at least 1 checkpoint, got ", keep);
    const auto stored = list();
    std::vector<std::string> surplus;
    int64_t steps = 0;
    for (const StoredCheckpoint& candidate : stored) {
        steps += candidate.replaced ? 0 : 1;
        if ((steps > keep || candidate.replaced) && candidate.path != last_saved_) surplus.push_back(candidate.path);
    }
    if (surplus.empty()) return;
    const std::string newest = last_saved_.empty() ? stored.front().path : last_saved_;
    try {
        verify(newest);
    } catch (const DamagedError& error) {
        // Not renamed here: the next load does that, and says so to the person who resumes.
        warn_(concat("the newest checkpoint is damaged: ", error.what(), "; no older one is deleted"));
        return;
    }
    for (const std::string& path : surplus) trash(path);
}

void Store::trash(const std::string& path) {
    // Renamed first: a checkpoint that is half deleted must not look like a damaged one.
    std::string doomed = join(directory_, concat(kTrash, last_name_of(path)));
    if (file_system_.kind(doomed) != FileKind::none) remove_tree(file_system_, doomed);
    file_system_.rename(path, doomed);
    file_system_.fsync_directory(directory_);
    remove_tree(file_system_, doomed);
}

}  // namespace tutti::checkpoint
