// base/build_info.h: what this program was built from and how. CMake tells build_info.cpp.
#pragma once

#include <string>

namespace tutti {

struct BuildInfo {
    std::string version;     // "0.1.0"
    std::string build_type;  // "Release"
    std::string compiler;    // "gcc 12.2.0"
    std::string sanitizer;   // "" or "address", ...
    bool openmp = false;     // threads inside a rank
};
BuildInfo build_info();

}  // namespace tutti
