// device/cuda/library.h: opens an NVIDIA library at its first use, so that the program starts on machines without the
// library.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"

namespace tutti::cuda {

struct Library {
    const char* what;      // "matrix products on a GPU need NVIDIA's cuBLASLt"
    const char* file;      // "libcublasLt.so.13"
    const char* variable;  // of the environment: the path of the library; no other place is then tried
    const char* remedy;
    const char* other = nullptr;  // a file that serves as well, where no place has `file`: "libcublasLt.so.12"
};

// Opens the file that `variable` names; else tries the loader's path, $CUDA_HOME/lib64 and /usr/local/cuda/lib64.
// UsageError, with the files that were tried, when none opens.
inline void* open_library(const Library& library) {
    std::vector<std::string> places;
    for (const char* file : {library.file, library.other}) {
        if (file == nullptr) continue;
        places.emplace_back(file);
        if (const auto home = environment_variable("CUDA_HOME")) places.push_back(concat(*home, "/lib64/", file));
        places.push_back(concat("/usr/local/cuda/lib64/", file));
    }
    if (const auto named = environment_variable(library.variable)) places = {*named};
    std::string tried;
    for (const std::string& file : places) {
        if (void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
        tried += concat("\n  ", dlerror());
    }
    throw UsageError(concat(library.what, ", which was not found:", tried, "\n", library.remedy));
}

}  // namespace tutti::cuda
