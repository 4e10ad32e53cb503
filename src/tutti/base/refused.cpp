#include "tutti/base/refused.h"

#include <sys/resource.h>

#include "tutti/base/read_file.h"

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

}  // namespace tutti
