// device/device.h: the machine that a rank computes on. A rank owns one Device; kernels get its Stream.
#pragma once

#include <memory>
#include <string>

#include "tutti/device/memory.h"

namespace tutti {

enum class DeviceKind : uint8_t { cpu, cuda };

// The order in which a rank's kernels run. On the CPU work is done when the call returns and `threads` says how many
// cores a kernel may use; on a GPU `native` is the stream's handle and calls return before the work is done.
struct Stream {
    int threads = 1;
    void* native = nullptr;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual DeviceKind kind() const = 0;
    virtual std::string name() const = 0;  // "AMD EPYC 9R14, 2 threads"
    virtual Allocator& memory() = 0;
    virtual const Stream& stream() const = 0;
    // Copies between host memory and this device's; done when they return.
    virtual void copy_in(void* device_data, const void* host_data, int64_t bytes) = 0;
    virtual void copy_out(void* host_data, const void* device_data, int64_t bytes) = 0;
    virtual void synchronize() = 0;
};

// threads = 0: all cores that this process may use.
std::unique_ptr<Device> make_cpu_device(int threads);

// Kernels run as on the CPU, memory is in a file in `directory` (cpu/file_memory.h): where a CPU rank offloads to.
std::unique_ptr<Device> make_file_device(const std::string& directory, int threads);

int available_cores();    // respects the affinity mask and the cgroup's cpu.max
std::string cpu_model();  // "AMD EPYC 9R14", from /proc/cpuinfo
int64_t host_memory_bytes();

}  // namespace tutti
