// spec/devices.h: the names of devices, and of the libraries of communication between their memories, that a run may
// ask for. Each is an entry of the table of back ends (kernels/backends.cpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

inline std::vector<std::string> device_choices() { return {"auto", "cpu", "cuda"}; }
inline std::vector<std::string> device_communication_choices() { return {"auto", "nccl", "host"}; }
// Of [train] device: "auto" may be a GPU, and is known when there is a device.
inline bool names_gpu(std::string_view device) { return device != "auto" && device != "cpu"; }

}  // namespace tutti::spec
