// base/testing/draws.h: the number of random cases of a test: few in ordinary runs, many with the label nightly.
#pragma once

#include <cstdlib>

namespace tutti::testing {

// cmake/rooms.cmake, tutti_nightly(), sets the variable.
inline int draws(int few, int many) { return std::getenv("TUTTI_NIGHTLY") != nullptr ? many : few; }

}  // namespace tutti::testing
