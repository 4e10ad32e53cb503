#include "tutti/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/retried.h"

namespace tutti {

namespace {

// "" or the folder from which a relative path was tried: the usual cause of a missing file.
std::string tried_from(const std::string& path) {
    std::error_code ignored;  // a working directory that is gone only shortens the hint
    const auto folder = std::filesystem::current_path(ignored);
    return std::filesystem::path(path).is_absolute() || ignored ? "" : concat("; tried from ", folder.string());
}

// The descriptor is closed when it fails.
RegularFile checked(int descriptor, const std::string& path) {
    try {
        struct stat status {};
        const bool known = ::fstat(descriptor, &status) == 0;  // by itself: errno is read with the other arguments
        check<DataError>(known, path, ": cannot read its size: ", system_reason(errno));
        check<DataError>(!S_ISDIR(status.st_mode), path, ": is a directory; name the files in it");
        check<DataError>(S_ISREG(status.st_mode), path,
                         ": is not a regular file (a pipe, device or socket); copy it to one");
        return {descriptor, status.st_size};
    } catch (...) {
        ::close(descriptor);
        throw;
    }
}

// O_NONBLOCK: opening a FIFO without a writer would wait for ever. It means nothing for regular files.
int open_to_read(const std::string& path) {
    return retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
}

std::string content(const RegularFile& file, const std::string& path) {
    std::string text(static_cast<size_t>(file.size), '\0');
    size_t filled = 0;
    ssize_t got = 1;
    while (filled < text.size() && got > 0) {
        got = retried([&] { return ::read(file.descriptor, text.data() + filled, text.size() - filled); });
        if (got > 0) filled += static_cast<size_t>(got);
    }
    const int error = errno;
    ::close(file.descriptor);
    check<DataError>(got >= 0, path, ": cannot read: ", system_reason(error));
    text.resize(filled);
    return text;
}

}  // namespace

std::string system_reason(int error) { return concat(std::generic_category().message(error), " (errno ", error, ")"); }

RegularFile open_regular(const std::string& path) {
    const int descriptor = open_to_read(path);
    check<DataError>(descriptor >= 0, path, ": cannot open: ", system_reason(errno), tried_from(path));
    return checked(descriptor, path);
}

std::string read_file(const std::string& path) { return content(open_regular(path), path); }

std::optional<std::string> read_file_if_there(const std::string& path) {
    std::error_code error;
    if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) return std::nullopt;
    return read_file(path);
}

}  // namespace tutti
