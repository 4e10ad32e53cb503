// tests/fuzz/index.cpp: any bytes as the index of a sharded model. Either DataError, or file names that cannot leave
// their directory; a written index reads back the same.
#include <cstdint>
#include <cstdlib>

#include "tutti/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    try {
        const auto files = checkpoint::parse_index({reinterpret_cast<const char*>(data), size}, "input");
        bool plain_names = true;
        for (const auto& [tensor, file] : files) {
            if (file.find('/') != std::string::npos || file[0] == '.' || file.size() > 255) std::abort();
            for (const char c : tensor) plain_names = plain_names && c != '"' && c != '\\' && (c & 0xe0) != 0;
        }
        if (plain_names && checkpoint::parse_index(checkpoint::write_index(files, 1), "again") != files) std::abort();
    } catch (const DataError&) {  // the answer to damage
    }
    return 0;
}
