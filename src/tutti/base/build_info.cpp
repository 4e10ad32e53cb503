// base/build_info.cpp: the only file that gets CMake's values, so that a change recompiles nothing else.
#include "tutti/base/build_info.h"

#include "tutti/base/error.h"

namespace tutti {

namespace {

std::string compiler() {
#if defined(__clang__)
    return concat("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#elif defined(__GNUC__)
    return concat("gcc ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#else
    return "unknown compiler";
#endif
}

}  // namespace

BuildInfo build_info() { return {TUTTI_VERSION, TUTTI_BUILD_TYPE, compiler(), TUTTI_SANITIZER, TUTTI_HAS_OPENMP != 0}; }

}  // namespace tutti
