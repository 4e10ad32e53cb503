// base/refused.h: errors of requests for memory and threads that a limit refused. Under `ulimit -v` they are
// UsageErrors: a new start has the same limit and fails in the same way, so that `tutti launch` does not try one.
#pragma once

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

// A std::thread or std::jthread that calls `run(arguments...)`. purpose: "a thread that PURPOSE cannot be started".
template <class Thread = std::thread, class... Run>
Thread start_thread(std::string_view purpose, Run&&... run) {
    try {
        return Thread(std::forward<Run>(run)...);
    } catch (const std::system_error& error) {
        throw_refused(concat("a thread that ", purpose, " cannot be started"), error.code().value());
    }
}

}  // namespace tutti
