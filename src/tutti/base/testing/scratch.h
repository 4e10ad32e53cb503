// base/testing/scratch.h: a temporary directory, and the message of an expected error.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <typeinfo>

#include "tutti/base/error.h"

namespace tutti {

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

    std::string path() const { return folder_.string(); }
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

// The message of the E that `action` throws (exactly E, which decides the exit code); another text if it throws none.
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

// EXPECT_EQ(missing("odd.bin", message), "") shows the message if it does not contain the part.
inline std::string missing(const std::string& part, const std::string& text) {
    return text.find(part) != std::string::npos ? "" : concat('"', part, "\" is not in: ", text);
}

}  // namespace tutti
