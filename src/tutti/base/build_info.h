// base/build_info.h: version and build options of this program.
#pragma once

#include <string>

namespace tutti {

struct BuildInfo {
    std::string version;     // "0.1.0"
    std::string build_type;  // "Release"
    std::string compiler;    // "gcc 12.2.0"
    std::string sanitizer;   // "" or "address", ...
    bool openmp = false;     // several threads per rank
};
BuildInfo build_info();

}  // namespace tutti
