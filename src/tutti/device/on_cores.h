// device/on_cores.h: independent pieces of work of the host on all cores that the process may use.
#pragma once

#include <cstddef>
#include <functional>

namespace tutti {

// Calls work(i) once for each i in [0, count), in any order, on as many threads as there are cores (available_cores()),
// the caller's among them. Returns when all have ended; then the exception of the lowest i that threw is thrown.
void for_each_on_cores(size_t count, const std::function<void(size_t)>& work);

}  // namespace tutti
