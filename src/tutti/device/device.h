// device/device.h: the device that a rank computes on. A rank owns one Device; kernels get its Stream.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/device/host_memory.h"
#include "tutti/device/memory.h"
#include "tutti/device/stream.h"

namespace tutti {

// The peak of a device's arithmetic, of which MFU and HFU are shares.
struct ArithmeticPeak {
    double flops_per_s = 0;
    std::string origin;  // "vdpbf16ps zmm on registers"
};

// A copy of device values to the host in progress. Later kernels may change or release the source.
class PendingHostCopy {
  public:
    virtual ~PendingHostCopy() = default;
    virtual std::span<const std::byte> wait() = 0;  // for the values, which live as long as this object
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
    // Since `before`, an earlier mark of the same device. Waits until the device has passed this mark.
    virtual double seconds_since(const TimeMark& before) const = 0;
};

// Recorded work of a device that runs again as a whole: a CUDA graph.
class Recording {
  public:
    virtual ~Recording() = default;
    virtual void run() = 0;  // at this place of the stream; returns before the work is done
};

// A second order of work of a device, beside its stream, for libraries that queue work, such as NCCL. One thread queues
// the work.
class SideStream {
  public:
    virtual ~SideStream() = default;
    // Work queued from now on begins after all earlier work of the device. `timed`: SideWork::times() is wanted.
    virtual void begin(bool timed) = 0;
    virtual std::shared_ptr<SideWork> end() = 0;  // the work queued since begin()
    virtual const Stream& stream() const = 0;     // without a workspace
};

class Device {
  public:
    virtual ~Device() = default;
    virtual std::string_view backend() const = 0;  // its entry of kernels::backends(), "cpu"; "meta": it has none
    // The host's code may read and write memory() in place. A device that computes is then the host's cores and memory.
    virtual bool host_readable() const = 0;
    virtual bool launches_async() const { return false; }  // a call that starts work returns before the work is done
    virtual bool records() const { return false; }         // record() exists
    virtual std::string name() const = 0;                  // "AMD EPYC 9R14, 2 threads", "GPU 3 (NVIDIA H200)"
    virtual std::string model() const = 0;  // equal for devices that should be equally fast: "NVIDIA H200"
    // Names hardware that ranks of a host may share: "NVIDIA H200, GPU-2f4a1c9e". "" when every rank has its own.
    virtual std::string identity() const { return ""; }
    virtual Allocator& memory() = 0;
    virtual std::vector<MemoryLimit> memory_limits() = 0;  // on the memory that memory() takes from the system
    int64_t free_bytes() { return least_available(memory_limits()); }
    virtual const Stream& stream() const = 0;
    // Copies between host memory and this device's memory, in the order of the stream. On return the values of copy_in
    // have been read, and those of copy_out have arrived.
    virtual void copy_in(void* device_data, const void* host_data, int64_t bytes) = 0;
    virtual void copy_out(void* host_data, const void* device_data, int64_t bytes) = 0;
    // Like copy_out, without waiting.
    virtual std::unique_ptr<PendingHostCopy> copy_to_host_async(const void* device_data, int64_t bytes) = 0;
    // Copies within this device's memory, in the order of the stream.
    virtual void copy(void* to, const void* from, int64_t bytes) = 0;
    // Copies between this device's memory and its offload device's, or within either: after all earlier work of the
    // stream and earlier asynchronous copies, beside all later work. nullptr: the copy is done.
    virtual std::shared_ptr<SideWork> copy_async(void* to, const void* from, int64_t bytes) = 0;
    virtual std::unique_ptr<SideStream> side_stream() { return nullptr; }  // nullptr: the device has one order only
    virtual void synchronize() = 0;
    // For the products that are started from now on. UsageError where no multiprocessor would be left for them.
    virtual void choose_products(const ProductChoices&) {}
    // For the attention that is started from now on; `choice` must outlive it. Nothing on a CPU, which has one kernel.
    virtual void choose_attention(kernels::AttentionChoice*) {}
    // A mark at this place of the stream; by the host's clock where work is done when the call returns.
    virtual std::unique_ptr<TimeMark> mark_time();
    // Work of the device was aborted: from now on every wait for the device throws `why`. Any thread may call.
    virtual void fail(std::exception_ptr why) { std::rethrow_exception(why); }
    // Records the kernels that `work` starts, instead of running them. The recording has the addresses and numbers that
    // the kernels were given, so values that differ from run to run must be in memory. Error when `work` waits for the
    // device, copies between device and host, or needs memory that the allocator does not have; always on a CPU.
    virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
    // The device whose memory holds offloaded values, which this device's kernels and copies reach: a file in
    // `directory` for a CPU, the host's pinned memory for a GPU.
    virtual std::unique_ptr<Device> make_offload_device(const std::string& directory) = 0;
    // With sums in f32; a measurement, where one is needed, takes about `seconds`.
    virtual ArithmeticPeak peak(ComputeType compute_type, double seconds) = 0;
};

// The ranks of one machine, which share its cores and its GPUs.
struct LocalRank {
    int rank = 0, size = 1;
};

// threads = 0: all cores that this process may use. For the device that a run names: make_device (kernels/backends.h).
std::unique_ptr<Device> make_cpu_device(int threads);

// A CPU device with its memory in an unnamed file in `directory`, which is made when missing: the offload device of a
// CPU. UsageError when no file can be made.
std::unique_ptr<Device> make_file_device(const std::string& directory, int threads);

// The size of the segment that a CPU device takes from the system when no free range holds a block of `bytes`.
int64_t host_segment_bytes(int64_t bytes);

int available_cores();    // respects the affinity mask and the cgroup's cpu.max
std::string cpu_model();  // "AMD EPYC 9R14", from /proc/cpuinfo
std::string host_name();  // "localhost" for a host without a name

}  // namespace tutti
