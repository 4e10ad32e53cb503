// device/cuda/library.h: opens a library of NVIDIA's when it is first needed, so that the program starts where there
// is none.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::cuda {

struct Library {
    const char* what;      // "matrix products on a GPU need NVIDIA's cuBLASLt"
    const char* file;      // "libcublasLt.so.13"
    const char* variable;  // of the environment: the path of that file, and then no other place
    const char* remedy;
};

// Looks where `variable` says; else where the loader looks, in $CUDA_HOME/lib64 and in /usr/local/cuda/lib64.
// UsageError, with what was tried, when it is nowhere.
inline void* open_library(const Library& library) {
    std::vector<std::string> places = {library.file};
    if (const char* home = std::getenv("CUDA_HOME")) places.push_back(concat(home, "/lib64/", library.file));
    places.push_back(concat("/usr/local/cuda/lib64/", library.file));
    if (const char* named = std::getenv(library.variable)) places = {named};
    std::string tried;
    for (const std::string& file : places) {
        if (void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
        tried += concat("\n  ", dlerror());
    }
    throw UsageError(concat(library.what, ", which was not found:", tried, "\n", library.remedy));
}

}  // namespace tutti::cuda
