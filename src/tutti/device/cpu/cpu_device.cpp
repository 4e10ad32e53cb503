// device/cpu/cpu_device.cpp: the host as a device: memory in pages or in a file; kernels run in the calling thread and
// its OpenMP team.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/device/cpu/peak.h"
#include "tutti/device/device.h"

namespace tutti {

namespace {

constexpr int64_t kHugePage = 2 << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// One segment per block: the address sanitizer watches each block's ends, and the thread sanitizer, which walks its
// records of a segment that is freed, takes long over one of 1 GiB.
constexpr int64_t kSmallSegment = 0, kSegment = 0;
#else
constexpr int64_t kSmallSegment = kHugePage, kSegment = int64_t{1} << 30;
#endif

// Segments of 2 MiB and more ask for huge pages: a GEMM over 4 KiB pages loses several percent to TLB misses. Blocks
// share larger segments: pages that were never touched take no memory. The first segment of small blocks asks for no
// huge pages, so that a device of a few scalars, as each group of ranks has, takes a few pages.
class HostMemory final : public RawMemory {
  public:
    void* take(int64_t bytes) override {
        const bool large = bytes >= kHugePage;
        const int64_t alignment = large ? kHugePage : 64;
        const size_t rounded = to_size(round_up(bytes, alignment));
        void* data = std::aligned_alloc(to_size(alignment), rounded);
        const bool first_small = bytes == kSmallSegment && !std::exchange(has_small_, true);
        if (data != nullptr && large && !first_small) madvise(data, rounded, MADV_HUGEPAGE);  // refusal changes nothing
        return data;
    }
    void give_back(void* data, int64_t) override { std::free(data); }
    int64_t segment_bytes(int64_t bytes) const override { return host_segment_bytes(bytes); }
    std::string advice() const override { return RawMemory::advice() + memory_limit_text(); }

  private:
    bool has_small_ = false;
};

int64_t whole_pages(int64_t bytes) { return round_up(bytes, sysconf(_SC_PAGESIZE)); }

int open_nameless(const std::string& directory) {
    const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
    std::string name = directory + "/offload-XXXXXX";  // the file system has no O_TMPFILE
    const int named = mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) unlink(name.c_str());
    return named;
}

// Memory in a mapped file on a disk: kernels read and write it as any other, and the system may evict its pages when
// memory is short. The file has no name, so it disappears with the process, however the process ends.
class FileMemory final : public RawMemory {
  public:
    explicit FileMemory(const std::string& directory) : directory_(directory) {
        std::error_code error;
        std::filesystem::create_directories(directory, error);
        check_written(!error, error.value(), "offload.dir ", directory, ": cannot be made: ", error.message());
        file_ = open_nameless(directory);
        check_written(file_ >= 0, errno, "offload.dir ", directory,
                      ": no file can be made there: ", std::strerror(errno));
    }
    ~FileMemory() override { close(file_); }
    FileMemory(const FileMemory&) = delete;
    FileMemory& operator=(const FileMemory&) = delete;

    // Allocates the space on the disk at once: a full disk shows here and not later.
    void* take(int64_t bytes) override {
        const int64_t size = whole_pages(bytes);
        if (posix_fallocate(file_, size_, size) != 0) return nullptr;
        void* data = mmap(nullptr, to_size(size), PROT_READ | PROT_WRITE, MAP_SHARED, file_, size_);
        if (data == MAP_FAILED) return nullptr;
        offsets_[data] = size_;
        size_ += size;
        return data;
    }
    void give_back(void* data, int64_t bytes) override {
        const int64_t size = whole_pages(bytes);
        munmap(data, to_size(size));
        // A file system without holes in files frees the space at the end of the process.
        fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offsets_.at(data), size);
        offsets_.erase(data);
    }
    void will_need(void* data, int64_t bytes) override {
        madvise(data, to_size(whole_pages(bytes)), MADV_WILLNEED);  // advice: refusal changes nothing
    }
    std::string advice() const override {
        return concat("the disk of offload.dir ", directory_, " is full: free some of it, or name another directory");
    }

  private:
    std::string directory_;
    int file_ = -1;
    int64_t size_ = 0;
    std::map<void*, int64_t> offsets_;  // in the file, of mapped blocks
};

class CompletedCopy final : public PendingHostCopy {
  public:
    CompletedCopy(const void* data, int64_t bytes)
        : values_(static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes) {}
    std::span<const std::byte> wait() override { return values_; }

  private:
    std::vector<std::byte> values_;
};

class CpuDevice final : public Device {
  public:
    CpuDevice(std::unique_ptr<RawMemory> memory, int threads)
        : memory_(std::make_shared<Allocator>(std::move(memory))),
          stream_{threads > 0 ? threads : available_cores(), nullptr} {
        require_threads(stream_.threads);
    }
    std::string_view backend() const override { return "cpu"; }
    bool host_readable() const override { return true; }
    std::string name() const override { return concat(cpu_model(), ", ", counted(stream_.threads, "thread")); }
    std::string model() const override { return name(); }
    Allocator& memory() override { return *memory_; }
    std::vector<MemoryLimit> memory_limits() override { return host_memory_limits(); }
    const Stream& stream() const override { return stream_; }
    void copy_in(void* device_data, const void* host_data, int64_t bytes) override {
        if (bytes > 0) std::memcpy(device_data, host_data, to_size(bytes));
    }
    void copy_out(void* host_data, const void* device_data, int64_t bytes) override {
        if (bytes > 0) std::memcpy(host_data, device_data, to_size(bytes));
    }
    std::unique_ptr<PendingHostCopy> copy_to_host_async(const void* device_data, int64_t bytes) override {
        return std::make_unique<CompletedCopy>(device_data, bytes);
    }
    void copy(void* to, const void* from, int64_t bytes) override { copy_in(to, from, bytes); }
    std::shared_ptr<SideWork> copy_async(void* to, const void* from, int64_t bytes) override {
        copy(to, from, bytes);
        return nullptr;
    }
    void synchronize() override {}
    std::unique_ptr<Recording> record(const std::function<void()>&) override {
        throw Error(concat(name(), " records no work: only a GPU has graphs"));
    }
    std::unique_ptr<Device> make_offload_device(const std::string& directory) override {
        return make_file_device(directory, stream_.threads);
    }
    ArithmeticPeak peak(ComputeType compute_type, double seconds) override {
        return measure_register_peak(stream_, storage_of(compute_type), seconds);
    }

  private:
    std::shared_ptr<Allocator> memory_;
    Stream stream_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
    return std::make_unique<CpuDevice>(std::make_unique<HostMemory>(), threads);
}

std::unique_ptr<Device> make_file_device(const std::string& directory, int threads) {
    return std::make_unique<CpuDevice>(std::make_unique<FileMemory>(directory), threads);
}

int64_t host_segment_bytes(int64_t bytes) {
    return std::max(bytes, FreeSpace::is_large(bytes) ? kSegment : kSmallSegment);
}

int available_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    std::ifstream limit("/sys/fs/cgroup/cpu.max");  // "200000 100000": two cores; "max 100000": no limit
    double quota = 0, period = 0;
    if (limit >> quota >> period && period > 0)
        cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota / period))));
    return std::max(1, cores);
}

std::string cpu_model() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
    return "unknown CPU";
}

std::string host_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

}  // namespace tutti
