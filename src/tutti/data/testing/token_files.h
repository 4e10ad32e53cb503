// data/testing/token_files.h: token files for tests, their bytes written by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/testing/scratch.h"

namespace tutti::data {

// Little-endian bytes of the numbers, each `width` bytes wide.
inline std::string little_endian(const std::vector<uint64_t>& numbers, int width) {
    std::string bytes;
    for (uint64_t number : numbers)
        for (int b = 0; b < width; ++b) bytes += static_cast<char>((number >> (8 * b)) & 0xff);
    return bytes;
}

inline std::string llmc_file(uint32_t magic, uint32_t version, uint32_t count, const std::vector<uint64_t>& ids,
                             int width) {
    std::string bytes = little_endian({magic, version, count}, 4);
    bytes.resize(1024, '\0');
    return bytes + little_endian(ids, width);
}
}  // namespace tutti::data
