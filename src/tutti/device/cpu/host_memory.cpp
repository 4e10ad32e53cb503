// How much memory the host has, and how much of it this process may still take.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tutti/device/device.h"

namespace tutti {

namespace {

std::optional<int64_t> number_in(const char* file) {
    std::ifstream in(file);
    int64_t number = 0;
    if (in >> number) return number;
    return std::nullopt;  // "max", or no such file
}

std::optional<int64_t> meminfo(const std::string& key) {
    std::ifstream info("/proc/meminfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
    return std::nullopt;
}

}  // namespace

int64_t host_memory_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

std::optional<int64_t> cgroup_memory_limit() {
    if (const auto limit = number_in("/sys/fs/cgroup/memory.max")) return limit;
    const auto v1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    return v1 && *v1 < (int64_t{1} << 60) ? v1 : std::nullopt;  // v1 writes "no limit" as a huge number
}

int64_t available_host_memory() {
    int64_t available = meminfo("MemAvailable").value_or(0);
    if (const auto limit = cgroup_memory_limit()) {
        const int64_t used = number_in("/sys/fs/cgroup/memory.current").value_or(0);
        available = std::min(available, std::max<int64_t>(*limit - used, 0));
    }
    return available;
}

}  // namespace tutti
