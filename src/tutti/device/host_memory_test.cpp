// Memory that the host leaves to this process, read from files that a test wrote: both versions of cgroups, nested
// ones, files that are missing.
#include "tutti/device/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "tutti/base/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

class HostMemoryLimits : public ::testing::Test {
  protected:
    HostMemoryLimits() {
        write("/proc/meminfo", "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n");
    }
    ~HostMemoryLimits() override { fs::remove_all(root_); }
    void write(const std::string& path, const std::string& text) const {
        fs::create_directories(fs::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    void write_v2(const std::string& group, const std::string& max, int64_t current, const std::string& stat) const {
        write("/sys/fs/cgroup" + group + "/memory.max", max + "\n");
        write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(current) + "\n");
        write("/sys/fs/cgroup" + group + "/memory.stat", stat);
    }
    // "origin bytes available" of each limit.
    std::vector<std::string> limits() const {
        std::vector<std::string> texts;
        for (const MemoryLimit& limit : host_memory_limits(root_))
            texts.push_back(concat(limit.origin, " ", limit.bytes, " ", limit.available));
        return texts;
    }
    int64_t least() const { return least_available(host_memory_limits(root_)); }

    const std::string host_ = "MemAvailable of /proc/meminfo 16384000 9216000";
    const std::string root_ = (fs::temp_directory_path() / concat("tutti-host-memory-", getpid())).string();
};

using Texts = std::vector<std::string>;

TEST_F(HostMemoryLimits, WithoutCgroupsAreTheHostsOwn) {
    EXPECT_EQ(limits(), Texts{host_});
    EXPECT_EQ(least(), 9216000);
    fs::remove(root_ + "/proc/meminfo");
    EXPECT_EQ(limits(), Texts{});
    EXPECT_EQ(least(), std::numeric_limits<int64_t>::max());
}

TEST_F(HostMemoryLimits, OfVersion2AreThoseOfEveryLevel) {
    write("/proc/self/cgroup", "0::/slice/job/step\n");
    write_v2("/slice", "8000000", 6000000, "anon 5000000\ninactive_file 300000\nactive_file 200000\nshmem 7\n");
    write_v2("/slice/job", "5000000", 1000000, "");
    write_v2("/slice/job/step", "max", 900000, "inactive_file 1\n");
    EXPECT_EQ(limits(), (Texts{host_, "/sys/fs/cgroup/slice/job/memory.max 5000000 4000000",
                               "/sys/fs/cgroup/slice/memory.max 8000000 2500000"}));
    EXPECT_EQ(least(), 2500000);
}

TEST_F(HostMemoryLimits, OfVersion1CountThePagesOfFilesBelow) {
    write("/proc/self/cgroup", "9:name=systemd:/other\n4:cpu,memory:/job\n1:memoryless:/wrong\n0::/\n");
    const std::string memory = "/sys/fs/cgroup/memory";
    write(memory + "/memory.limit_in_bytes", "9223372036854771712\n");  // none
    write(memory + "/memory.usage_in_bytes", "123\n");
    write(memory + "/job/memory.limit_in_bytes", "3000000\n");
    write(memory + "/job/memory.usage_in_bytes", "2900000\n");
    write(memory + "/job/memory.stat", "inactive_file 5\ntotal_inactive_file 40000\ntotal_active_file 2000\n");
    EXPECT_EQ(limits(), (Texts{host_, memory + "/job/memory.limit_in_bytes 3000000 142000"}));
}

TEST_F(HostMemoryLimits, OfAContainerAreAtTheMountWhateverThePathSays) {
    write("/proc/self/cgroup", "0::/docker/4f1c\n");  // a path of the host, which the container does not see
    write_v2("", "1000000", 1200000, "");             // above its limit, which was lowered
    EXPECT_EQ(limits(), (Texts{host_, "/sys/fs/cgroup/memory.max 1000000 0"}));
}

TEST_F(HostMemoryLimits, OfThisMachineCanBeRead) {
    const std::vector<MemoryLimit> limits = host_memory_limits();
    ASSERT_FALSE(limits.empty());
    EXPECT_LE(limits.front().bytes, host_memory_bytes());
    EXPECT_GT(least_available(limits), 0);
}

}  // namespace
}  // namespace tutti
