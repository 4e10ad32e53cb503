// base/retried.h: system calls that a signal may interrupt.
#pragma once

#include <cerrno>

namespace tutti {

// Makes `call` again for as long as it fails with EINTR. Signals come whenever a run is told to stop, and network file
// systems pass them on even where a local disk never would. Not for close(): the descriptor is gone all the same.
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

}  // namespace tutti
