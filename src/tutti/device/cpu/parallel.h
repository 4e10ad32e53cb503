// device/cpu/parallel.h: the one place where a CPU kernel gets threads. The split depends on n, grain and the thread
// count only, and one thread works on each index, so a kernel without sums across pieces is reproducible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tutti/device/device.h"

namespace tutti {

// Calls task(context, i) for i in [0, tasks), each once, on up to `threads` threads. OpenMP underneath: oneDNN uses the
// same team, and a second pool would make the two spin against each other. A rank that is a thread has its own team.
void run_tasks(int threads, int64_t tasks, void (*task)(void* context, int64_t index), void* context);

// body(begin, end) over pieces of [0, n) of at least `grain` indices, one piece per thread.
template <class Body>
void parallel_for(const Stream& stream, int64_t n, int64_t grain, Body&& body) {
    const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, stream.threads);
    if (pieces == 1) {
        if (n > 0) body(int64_t{0}, n);
        return;
    }
    struct Context {
        std::remove_reference_t<Body>* body;
        int64_t n, pieces;
    } context{&body, n, pieces};
    run_tasks(
        static_cast<int>(pieces), pieces,
        [](void* raw, int64_t i) {
            const auto& c = *static_cast<Context*>(raw);
            (*c.body)(c.n * i / c.pieces, c.n * (i + 1) / c.pieces);
        },
        &context);
}

// body(i) for i in [0, tasks), assigned to threads one by one: for tasks of unequal cost (causal attention).
template <class Body>
void parallel_tasks(const Stream& stream, int64_t tasks, Body&& body) {
    run_tasks(
        stream.threads, tasks, [](void* raw, int64_t i) { (*static_cast<std::remove_reference_t<Body>*>(raw))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace tutti
