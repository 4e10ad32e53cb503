#include "tutti/checkpoint/new_directory.h"

#include "tutti/checkpoint/owner.h"

namespace tutti::checkpoint {

namespace {

std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

bool is_free(FileSystem& file_system, const std::string& path) {
    const FileKind kind = file_system.kind(path);
    return kind == FileKind::none || (kind == FileKind::directory && file_system.list(path).empty());
}

}  // namespace

NewDirectory::NewDirectory(FileSystem& file_system, std::string path)
    : file_system_(file_system),
      path_(without_slashes(std::move(path))),
      temporary_(concat(path_, ".tmp-", this_owner())) {
    check<UsageError>(!path_.empty() && is_free(file_system_, path_), "'", path_,
                      "' must not exist, or be an empty directory: nothing is overwritten; choose another");
    make_directories(file_system_, parent_of(path_));
    remove_tree(file_system_, temporary_);  // of an earlier process with our id that was killed
    file_system_.make_directory(temporary_);
}

NewDirectory::~NewDirectory() {
    if (committed_) return;
    try {
        remove_tree(file_system_, temporary_);
    } catch (const Error&) {  // the error that brought us here is the one that matters
    }
}

void NewDirectory::commit() {
    file_system_.fsync_directory(temporary_);
    // rename() itself refuses a directory that somebody has filled meanwhile.
    file_system_.rename(temporary_, path_);
    committed_ = true;
    file_system_.fsync_directory(parent_of(path_));
}

}  // namespace tutti::checkpoint
