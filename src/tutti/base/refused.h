// base/refused.h: errors of requests for memory and threads that a limit refused. Under `ulimit -v` they are
// UsageErrors: a new start has the same limit and fails in the same way, so that `tutti launch` does not try one.
#pragma once

#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

// "; ulimit -v allows this process 200000 KiB of memory: raise it", or "" without that limit.
std::string memory_limit_text();

// what: "rank 0 cannot map 4096 bytes"; error: an errno.
[[noreturn]] void throw_refused(const std::string& what, int error);

// What start() returns, which starts a thread. purpose: "a thread that PURPOSE cannot be started".
template <class Start>
auto start_or_refuse(std::string_view purpose, Start&& start) {
    try {
        return start();
    } catch (const std::system_error& error) {
        throw_refused(concat("a thread that ", purpose, " cannot be started"), error.code().value());
    }
}

// A std::thread or std::jthread that calls `run(arguments...)`.
template <class Thread = std::thread, class... Run>
Thread start_thread(std::string_view purpose, Run&&... run) {
    return start_or_refuse(purpose, [&] { return Thread(std::forward<Run>(run)...); });
}

// Starts `count` threads, this one among them, and ends them: for a library that would end the process where a limit
// refuses one, as OpenMP's does.
void require_threads(int count);

// The future of what `run()` returns in a thread.
template <class Run>
auto start_async(std::string_view purpose, Run&& run) {
    return start_or_refuse(purpose, [&] { return std::async(std::launch::async, std::forward<Run>(run)); });
}

}  // namespace tutti
