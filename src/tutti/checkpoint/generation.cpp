#include "tutti/checkpoint/generation.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint {

int64_t newest_generation(const std::string& run_directory) {
    int64_t newest = 0;
    std::error_code unreadable;
    for (const auto& entry : std::filesystem::directory_iterator(join(run_directory, kGenerations), unreadable)) {
        const std::string name = entry.path().filename().string();
        newest = std::max(newest, parse_number<int64_t>(name).value_or(0));
    }
    return newest;
}

Generation Generation::take(const std::string& run_directory, int64_t number, const std::string& text) {
    const std::string directory = join(run_directory, kGenerations);
    PosixFileSystem files;
    make_directories(files, directory);
    Generation generation(run_directory, number);
    generation.require_newest();
    const std::string path = join(directory, std::to_string(number));
    try {
        File file = File::create(files, path);
        file.write_all(std::as_bytes(std::span(text)), 0);
        file.close();
    } catch (const IoError& error) {
        check<UsageError>(error.code() != EEXIST, path, " is there already: another start has taken generation ",
                          number, " of this run; it goes on there, or choose another --out");
        throw;
    }
    files.fsync_directory(directory);
    return generation;
}

void Generation::require_newest() const {
    const int64_t newest = newest_generation(directory_);
    check<UsageError>(newest <= number_, directory_, ": generation ", newest,
                      " of this run was started elsewhere; this is generation ", number_,
                      ", which writes no checkpoint any more");
}

}  // namespace tutti::checkpoint
