// base/read_file.h: a whole file as a string. What a file that cannot be read means, the caller says.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace tutti {

// Nothing when it cannot be opened or read to its end; errno then says why.
inline std::optional<std::string> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    std::ostringstream text;
    if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();  // inserting nothing counts as failure
    if (file.bad() || text.fail()) return std::nullopt;
    return std::move(text).str();
}

}  // namespace tutti
