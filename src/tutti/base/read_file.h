// base/read_file.h: regular files, opened and read whole. What does not open is a DataError with the path and the
// system's reason; a pipe, device or socket is refused, not waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tutti {

std::string system_reason(int error);  // of an errno: "Permission denied (errno 13)"

// The caller closes the descriptor.
struct RegularFile {
    int descriptor = -1;
    int64_t size = 0;
};
RegularFile open_regular(const std::string& path);

std::string read_file(const std::string& path);
// Nothing where there is no such file.
std::optional<std::string> read_file_if_there(const std::string& path);

}  // namespace tutti
