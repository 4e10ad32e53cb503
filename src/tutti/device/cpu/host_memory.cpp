#include "tutti/device/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// "4096"; nullopt: "max", or no such file.
std::optional<int64_t> number_in(const std::string& file) {
    std::ifstream in(file);
    int64_t number = 0;
    if (in >> number) return number;
    return std::nullopt;
}

// The number after the word `key`.
std::optional<int64_t> number_in(const std::string& file, const std::string& key) {
    std::ifstream in(file);
    int64_t number = 0;
    for (std::string word; in >> word;)
        if (word == key && in >> number) return number;
    return std::nullopt;
}

struct CgroupVersion {
    const char* controllers;  // in /proc/self/cgroup: "4:memory:/job", "0::/job"
    const char *mount, *limit, *usage;
    const char *inactive_pages, *active_pages;  // of files, in memory.stat, with those of the cgroups below
};
constexpr CgroupVersion kVersions[] = {
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
     "total_active_file"},
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"},
};
constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 writes a number above this one

bool names(const std::string& list, const std::string& controller) {
    return concat(",", list, ",").find(concat(",", controller, ",")) != std::string::npos;
}

// The path of this process in the hierarchy of `version`; "/" where the path is unknown: inside a container the mount
// is often the process's own cgroup.
std::filesystem::path path_of(const CgroupVersion& version, const std::string& root) {
    std::ifstream file(root + "/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        if (names(line.substr(first + 1, second - first - 1), version.controllers)) return line.substr(second + 1);
    }
    return "/";
}

void add_limits(std::vector<MemoryLimit>& limits, const CgroupVersion& version, const std::string& root) {
    for (std::filesystem::path path = path_of(version, root);; path = path.parent_path()) {
        const bool top = !path.has_relative_path();
        const std::string group = version.mount + (top ? "" : path.string()), directory = root + group + "/";
        const auto limit = number_in(directory + version.limit), used = number_in(directory + version.usage);
        if (limit && used && *limit < kNoLimit) {
            const std::string stat = directory + "memory.stat";
            const int64_t pages =
                number_in(stat, version.inactive_pages).value_or(0) + number_in(stat, version.active_pages).value_or(0);
            limits.push_back(
                {concat(group, "/", version.limit), *limit, std::clamp<int64_t>(*limit - *used + pages, 0, *limit)});
        }
        if (top) return;
    }
}

}  // namespace

std::vector<MemoryLimit> host_memory_limits(const std::string& root) {
    constexpr int64_t kKiB = 1024;
    std::vector<MemoryLimit> limits;
    const std::string info = root + "/proc/meminfo";
    const auto total = number_in(info, "MemTotal:"), available = number_in(info, "MemAvailable:");
    if (total && available) limits.push_back({"MemAvailable of /proc/meminfo", kKiB * *total, kKiB * *available});
    for (const CgroupVersion& version : kVersions) add_limits(limits, version, root);
    return limits;
}

int64_t least_available(const std::vector<MemoryLimit>& limits) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const MemoryLimit& limit : limits) least = std::min(least, limit.available);
    return least;
}

int64_t host_memory_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

std::optional<int64_t> cgroup_memory_limit() {
    std::vector<MemoryLimit> limits;
    for (const CgroupVersion& version : kVersions) add_limits(limits, version, "");
    if (limits.empty()) return std::nullopt;
    return std::min_element(limits.begin(), limits.end(),
                            [](const auto& a, const auto& b) { return a.bytes < b.bytes; })
        ->bytes;
}

}  // namespace tutti
