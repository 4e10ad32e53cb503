// checkpoint/store_load.cpp: finding and loading the newest good checkpoint.
#include <algorithm>
#include <cerrno>

#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/store_names.h"

namespace tutti::checkpoint {

std::vector<StoredCheckpoint> Store::list() const {
    std::vector<StoredCheckpoint> stored;
    if (file_system_.kind(directory_) == FileKind::none) return stored;
    for (const std::string& name : file_system_.list(directory_)) {
        const StoreName parsed = parse_store_name(name);
        if (parsed.kind == NameKind::checkpoint || parsed.kind == NameKind::replaced)
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

std::optional<Loaded> Store::load_newest(const LoadInto& load_into, OnDamage on_damage) {
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
            // EIO: this part of the disk cannot be read. Anything else (permission, too many open files) a person can
            // mend, and falling back would throw away work.
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

}  // namespace tutti::checkpoint
