// device/device.h: the machine that a rank computes on. A rank owns one Device; kernels get its Stream.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/arithmetic.h"
#include "tutti/device/host_memory.h"
#include "tutti/device/memory.h"

namespace tutti {

enum class DeviceKind : uint8_t { cpu, cuda, meta };

namespace kernels {
struct GemmTuning;
}

// How the library of a GPU makes matrix products. Fixed for a run, because the bits of a product depend on it.
struct ProductChoices {
    kernels::GemmTuning* tuning = nullptr;  // nullptr: the algorithms that the library's heuristic names first
    // Multiprocessors that products leave to what runs beside them.
    int spared_by_forward = 0, spared_by_gradients = 0;
};

// The order in which a rank's kernels run. On the CPU work is done when the call returns and `threads` says how many
// cores a kernel may use; on a GPU `native` is the stream's handle and calls return before the work is done.
struct Stream {
    int threads = 1;
    void* native = nullptr;
    void* workspace = nullptr;  // device memory for libraries called on this stream, one call at a time
    int64_t workspace_bytes = 0;
    ProductChoices products = {};
};

// The ceiling of a device's arithmetic: what MFU and HFU are shares of.
struct ArithmeticPeak {
    double flops_per_s = 0;
    std::string origin;  // "vdpbf16ps zmm on registers"
};

// Values of a device on their way to the host: kernels that come later may change or release what they are copied from.
class HostCopy {
  public:
    virtual ~HostCopy() = default;
    virtual std::span<const std::byte> wait() = 0;  // until they are there; they stay as long as this object
    template <class T>
    std::span<const T> values() {
        const auto bytes = wait();
        return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
};

// A place in the order of a device's work, and the time when the device passed it.
class TimeMark {
  public:
    virtual ~TimeMark() = default;
    // From `before`, an earlier mark of the same device. Waits until the device has passed this one.
    virtual double seconds_since(const TimeMark& before) const = 0;
};

// Work of a device that was recorded once and runs again as a whole: a CUDA graph.
class Recording {
  public:
    virtual ~Recording() = default;
    virtual void run() = 0;  // at this place of the stream; returns before it is done
};

// A second order of work of a device, beside its stream: for libraries that queue work of their own, as NCCL does. One
// thread gives it work.
class SideStream {
  public:
    virtual ~SideStream() = default;
    // What is queued from now on begins after all that the device was given so far. `timed`: SideWork::times() is
    // wanted.
    virtual void begin(bool timed) = 0;
    virtual std::shared_ptr<SideWork> end() = 0;  // what was queued since begin()
    virtual const Stream& stream() const = 0;     // without a workspace
};

class Device {
  public:
    virtual ~Device() = default;
    virtual DeviceKind kind() const = 0;
    virtual bool host_readable() const = 0;         // the host's code may read and write memory() where it is
    virtual bool records() const { return false; }  // record() exists
    virtual std::string name() const = 0;           // "AMD EPYC 9R14, 2 threads", "GPU 3 (NVIDIA H200)"
    virtual std::string model() const = 0;          // equal for devices that should be equally fast: "NVIDIA H200"
    // Of hardware that ranks of a host may share: "NVIDIA H200, GPU-2f4a1c9e". "" where it is the rank's own.
    virtual std::string identity() const { return ""; }
    virtual Allocator& memory() = 0;
    virtual std::vector<MemoryLimit> memory_limits() = 0;  // on what memory() takes from the system
    int64_t free_bytes() { return least_available(memory_limits()); }
    virtual const Stream& stream() const = 0;
    // Copies between host memory and this device's, in the order of the stream. When they return, the host's side is
    // free: the values of copy_in were read, those of copy_out are there.
    virtual void copy_in(void* device_data, const void* host_data, int64_t bytes) = 0;
    virtual void copy_out(void* host_data, const void* device_data, int64_t bytes) = 0;
    // The same as copy_out without waiting.
    virtual std::unique_ptr<HostCopy> start_copy_out(const void* device_data, int64_t bytes) = 0;
    // Between two places of this device's memory, in the order of the stream.
    virtual void copy(void* to, const void* from, int64_t bytes) = 0;
    // Between this device's memory and its offload device's, which it reaches by itself, or within either: after what
    // the stream was given so far and after the other copies aside, and beside all that comes. nullptr: it is done.
    virtual std::shared_ptr<SideWork> copy_aside(void* to, const void* from, int64_t bytes) = 0;
    virtual std::unique_ptr<SideStream> side_stream() { return nullptr; }  // nullptr: the device has one order only
    virtual void synchronize() = 0;
    // Of the products that are started from now on. UsageError where none of the multiprocessors would be left.
    virtual void choose_products(const ProductChoices&) {}
    // At this place of the stream; by the host's clock where work is done when the call returns.
    virtual std::unique_ptr<TimeMark> mark_time();
    // Work of the device was cut off: from now on every wait for it throws this. Any thread may say so.
    virtual void fail(std::exception_ptr why) { std::rethrow_exception(why); }
    // Records what `work` starts, instead of running it. The recording has the addresses and the numbers that the
    // kernels were given, so what differs from run to run must be in memory. Work that waits for the device, copies
    // between it and the host or needs memory that the allocator does not have is an Error; so is any on a CPU.
    virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
    // A device for the memory of what is offloaded, which this device's kernels and copies reach: a file in `directory`
    // for a CPU, the host's pinned memory for a GPU.
    virtual std::unique_ptr<Device> make_offload_device(const std::string& directory) = 0;
    // With sums in f32; takes about `seconds` where it must be measured.
    virtual ArithmeticPeak peak(Arithmetic arithmetic, double seconds) = 0;
};

// The ranks of one machine, which share its cores and its GPUs.
struct LocalRank {
    int rank = 0, size = 1;
};

// `kind`: cpu; cuda; auto: a GPU when this build can use one and there is one, else the CPU. threads = 0: the rank's
// part of the cores. Of several ranks, each takes the GPU of its number, counted round: there may be fewer GPUs.
// UsageError when there is no such device, or a GPU that this build has no kernels for. Belongs to the thread that
// makes it: kernels start from there.
std::unique_ptr<Device> make_device(std::string_view kind, int threads, const LocalRank& local = {});
// The same UsageError, before anything else was begun.
void check_device(std::string_view kind);

// threads = 0: all cores that this process may use.
std::unique_ptr<Device> make_cpu_device(int threads);

// Kernels run as on the CPU, memory is in a file in `directory` (cpu/file_memory.h): where a CPU rank offloads to.
std::unique_ptr<Device> make_file_device(const std::string& directory, int threads);

// How much memory a CPU device takes from the system when nothing free holds a block of `bytes`.
int64_t host_segment_bytes(int64_t bytes);

int available_cores();    // respects the affinity mask and the cgroup's cpu.max
std::string cpu_model();  // "AMD EPYC 9R14", from /proc/cpuinfo
std::string host_name();  // "localhost" when it has none

}  // namespace tutti
