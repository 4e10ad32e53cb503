// device/meta/meta_device.h: a device whose memory is counted and holds no values. Allocations return addresses that
// cannot be read or written, and the allocator counts the bytes of a real device: by purpose, at the peak, in segments,
// offloaded. A rehearsal (rehearsal/) runs a training step on a meta device with kernels that compute nothing
// (kernels/meta/).
#pragma once

#include <memory>
#include <string>

#include "tutti/device/device.h"

namespace tutti {

// The machine that a meta device stands for.
struct MetaTarget {
    std::string name = "meta";
    int threads = 1;              // Stream::threads
    int64_t memory_bytes = 0;     // capacity; 0: unlimited
    int64_t workspace_bytes = 0;  // Stream::workspace_bytes, allocated as Purpose::workspace
    bool records = false;         // Device::record works, as on a GPU
    int capability = 0;           // Stream::capability
    bool arena = false;           // Allocator::open_growing_arena: of a device that opens one of the bytes it has here
    int64_t (*segment_bytes)(int64_t bytes) =
        nullptr;  // RawMemory::segment_bytes; nullptr: exactly the bytes asked for
};

// Stream::native of a meta device.
struct MetaStream {
    const char* last_kernel = "none";
};

// Is told of the copies that run beside the work of a meta device: between the device and its offload device.
class CopyObserver {
  public:
    virtual ~CopyObserver() = default;
    // Returns the number of the copy.
    virtual uint64_t copies(int64_t bytes) = 0;
    virtual void joins(uint64_t copy) = 0;  // later work of the device begins after the copy
};

// copy_in, copy and copy_async do nothing. copy_to_host_async yields zeros: a step reads its loss and gradient norm
// this way. copy_out throws Error with the name of the last kernel, because the caller's decision would depend on a
// value; reading an address directly is a segmentation fault. record() runs the work once. The offload device is
// another meta device.
// `copies` must outlive the device and its buffers.
std::unique_ptr<Device> make_meta_device(const MetaTarget& target, CopyObserver* copies = nullptr);

}  // namespace tutti
