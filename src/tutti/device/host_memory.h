// device/host_memory.h: the memory of the host, and how much of it this process may still allocate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

// A bound on memory that several processes may share: equal origins on one host are one bound.
struct MemoryLimit {
    std::string origin;     // "MemAvailable of /proc/meminfo", "/sys/fs/cgroup/job/memory.max"
    int64_t bytes = 0;      // the bound
    int64_t available = 0;  // bytes that can still be allocated under the bound
};

// The host's memory, and the limits of the cgroup of this process and of the cgroups above it, versions 1 and 2. Pages
// of files count as available, because the kernel drops them when memory is short. A limit that cannot be read is left
// out. `root`: the parent directory of /proc and /sys.
std::vector<MemoryLimit> host_memory_limits(const std::string& root = "");
int64_t least_available(const std::vector<MemoryLimit>& limits);

int64_t host_memory_bytes();
std::optional<int64_t> cgroup_memory_limit();  // the lowest; nullopt: none

}  // namespace tutti
