// kernels/backends.h: the back ends: kinds of devices, each with its kernels and its communication. A device of another
// vendor is one more entry of the table in backends.cpp, which alone names vendors. Other code asks a device for what
// it can do (device/device.h), or calls the functions of its back end.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/device/device.h"
#include "tutti/device/gpu.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/kernels/attention_choice.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::comm {
class World;
struct DeviceWorldOptions;
}  // namespace tutti::comm

namespace tutti::kernels {

// Kernels of another library for attention, chosen by name ([train] attention) or by times.
struct AttentionLibrary {
    const char *name, *title;  // "cudnn", "cuDNN"
    std::string (*version)();  // "cuDNN 9.15.1"; UsageError where this build or this machine lacks the library
};

// A machine that a rehearsal may assume, whether or not this one is such a machine. GPUs of a vendor are one model:
// their names and their memory are in the list of machines (hardware/cluster.h).
struct DeviceModel {
    std::string name;   // "cpu-avx2"; "" for GPUs
    MetaTarget device;  // memory_bytes 0: any size
    const KernelTable* (*table)(ComputeType);
};

// A variable that a vendor's library reads at its first call.
struct Setting {
    const char *name, *value;
    bool of_several_ranks;  // only where several ranks work together
};

struct Backend {
    const char* name;  // of [train] device, and Device::backend()
    // Null if the kind has no kernels for this type.
    const KernelTable* (*table)(ComputeType compute_type);
    std::unique_ptr<Device> (*make)(int threads, const LocalRank& local);
    std::vector<DeviceModel> (*models)(int threads);

    // Of GPUs; null for the CPU, which is always there.
    Gpus (*find)() = nullptr;
    std::string (*why_unfit)(const Gpu&) = nullptr;  // why the kernels do not run on this GPU; "": they do
    // A world whose collectives work in the memory of its ranks' devices, one device a rank; collective.
    std::unique_ptr<comm::World> (*world)(comm::World& host, Device& device,
                                          const comm::DeviceWorldOptions& options) = nullptr;
    const char* vendor = "";                   // "NVIDIA": hardware::Cluster::vendor of machines with such GPUs
    const char* communication = "";            // the library behind `world`: of [comm] gpu
    const char* driver_title = "";             // "NVIDIA driver"
    std::string (*driver)() = nullptr;         // "580.65.06"; "": none
    std::string (*architectures)() = nullptr;  // that this build's kernels were compiled for
    const AttentionLibrary* attention_library = nullptr;
    GpuAndDriver (*current_gpu)() = nullptr;
    std::span<const Setting> settings = {};
};

std::span<const Backend> backends();              // the CPU last
const Backend* backend_of(const Device& device);  // null for a meta device, which computes nothing

// The GPUs that make_device(device, ...) would share out; 0: it makes a CPU device, or throws.
int gpus_for(std::string_view device);

// The attention of a run on `device`: [train] attention and attention_tuning. UsageError, naming what is missing, where
// the device has one kernel, where this build or this machine lacks the library, or for a file that is not of it.
AttentionChoice attention_choice(const Device& device, const std::string& kernels, const std::string& file);
// Of its GPU; without entries.
AttentionTuning empty_attention_tuning(const Backend& backend);

}  // namespace tutti::kernels

namespace tutti {

// `device`: the name of a back end, or auto: a GPU when this build and the machine have one, else the CPU. threads = 0:
// the rank's part of the cores. Rank r of a machine gets GPU r modulo the number of GPUs. UsageError when no such
// device exists, or when this build has no kernels for the GPU. The device belongs to the thread that makes it, which
// must start all kernels.
std::unique_ptr<Device> make_device(std::string_view device, int threads, const LocalRank& local = {});
// Sets the variables of all back ends that the user has not set. For main(): before other threads, and before the first
// use of a device.
void set_device_environment(bool several_ranks);
// Throws the UsageError of make_device without making a device.
void check_device(std::string_view device);

}  // namespace tutti
