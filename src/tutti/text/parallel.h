// text/parallel.h: a parallel loop over independent pieces of work.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"

namespace tutti::text {

// `asked` threads, all cores for 0, and no more than there are pieces.
inline int threads_for(int asked, size_t pieces) {
    const size_t most = asked > 0 ? to_size(asked) : std::max(1u, std::thread::hardware_concurrency());
    return static_cast<int>(std::clamp<size_t>(pieces, 1, most));
}

// Each thread t calls worker = make_worker(t) once, then worker(i) for its pieces; each i in [0, pieces) is called
// once. An exception of a worker ends the work and is rethrown.
template <class MakeWorker>
void for_each_parallel(size_t pieces, int threads, const MakeWorker& make_worker) {
    std::atomic<size_t> next = 0;
    std::exception_ptr failure;
    std::mutex failing;
    const auto work = [&](size_t thread) {
        try {
            auto worker = make_worker(thread);
            for (size_t i = next++; i < pieces; i = next++) worker(i);
        } catch (...) {
            const std::lock_guard lock(failing);
            if (!failure) failure = std::current_exception();
            next = pieces;
        }
    };
    {
        std::vector<std::jthread> helpers;
        for (int t = 1; t < threads_for(threads, pieces); ++t)
            helpers.push_back(start_thread<std::jthread>("encodes text", work, to_size(t)));
        work(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace tutti::text
