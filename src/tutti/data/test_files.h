// data/test_files.h: a scratch folder for the tests of this room, and the message of an error of the expected type.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::data {

class ScratchFolder {
  public:
    ScratchFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "tutti_data_XXXXXX").string();
        check(::mkdtemp(name.data()) != nullptr, "cannot make a folder like ", name);
        folder_ = name;
    }
    ~ScratchFolder() { std::filesystem::remove_all(folder_); }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    std::string write(const std::string& name, std::string_view content) const {
        std::ofstream out(path(name), std::ios::binary);
        out << content;
        out.close();
        check(!out.fail(), "cannot write ", path(name));
        return path(name);
    }

  private:
    std::filesystem::path folder_;
};

// Little-endian bytes of the numbers, each `width` bytes wide: written by hand here, not by the code under test.
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

// The message of the E (exactly E: it decides the exit code) that `action` throws, or a note that fails the test.
template <class E, class Action>
std::string message_of(Action&& action) {
    try {
        action();
    } catch (const Error& error) {
        if (typeid(error) == typeid(E)) return error.what();
        return concat("wrong type ", typeid(error).name(), ": ", error.what());
    }
    return "nothing was thrown";
}

// EXPECT_EQ(missing("odd.bin", message), "") shows the message when the part is not in it.
inline std::string missing(const std::string& part, const std::string& text) {
    return text.find(part) != std::string::npos ? "" : concat('"', part, "\" is not in: ", text);
}

}  // namespace tutti::data
