// base/testing/draws.h: how many cases a test draws: a few in every run, and many in those of the label nightly.
#pragma once

#include <cstdlib>

namespace tutti::testing {

// cmake/rooms.cmake, tutti_nightly(), sets the variable.
inline int draws(int few, int many) { return std::getenv("TUTTI_NIGHTLY") != nullptr ? many : few; }

}  // namespace tutti::testing
