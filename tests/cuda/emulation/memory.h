// tests/cuda/emulation/memory.h: the emulated GPU's memory: a range of addresses that the host may not access except
// while a kernel or a copy runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::emulation {

inline constexpr size_t kDeviceBytes = size_t{32} << 30;  // addresses; pages come as they are used

void* take_device(size_t bytes);  // nullptr when there is no room; filled with NaN patterns
bool give_device(void* data);     // false: not a block of take_device
size_t device_bytes_in_use();

void* take_pinned(size_t bytes);
bool give_pinned(void* data);

bool in_device(const void* data);  // an address of the device's range, allocated or not
// Whether [data, data + bytes) lies in one block of the device's memory, of the pinned memory.
bool in_device_block(const void* data, size_t bytes);
bool in_pinned_block(const void* data, size_t bytes);

// While one exists, the process may access device memory: all of it, one per kernel; or that of a copy, which costs
// less.
class DeviceAccess {
  public:
    DeviceAccess();
    DeviceAccess(const void* data, size_t bytes);  // nothing for memory of the host
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
    DeviceAccess& operator=(const DeviceAccess&) = delete;

  private:
    enum class Of : uint8_t { nothing, range, all } of_ = Of::nothing;
    const void* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace tutti::emulation
