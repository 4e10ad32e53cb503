#include "tutti/base/refused.h"

#include <sys/resource.h>

#include <cerrno>
#include <latch>
#include <vector>

#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"

namespace tutti {

std::string memory_limit_text() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
    return concat("; ulimit -v allows this process ", limit.rlim_cur / 1024, " KiB of memory: raise it");
}

void throw_refused(const std::string& what, int error) {
    const std::string limit = memory_limit_text(), message = concat(what, ": ", system_reason(error), limit);
    if (!limit.empty()) throw UsageError(message);
    throw Error(
        message +
        "; raise the limits of this host or its container (memory, ulimit -u, pids.max), or start fewer ranks on it");
}

void require_threads(int count) {
    std::latch end(1);
    std::vector<std::jthread> others;
    others.reserve(to_size(count));
    bool refused = false;
    try {
        while (std::ssize(others) + 1 < count) others.emplace_back([&] { end.wait(); });
    } catch (const std::exception&) {
        refused = true;
    }
    end.count_down();
    if (refused)
        throw_refused(
            concat(count, " CPU threads (train.threads, --threads), of which ", others.size() + 1, " can be started"),
            EAGAIN);
}

}  // namespace tutti
