// rehearsal/target.h: the machine that a run is rehearsed for, which need not be this one. Sizes of workspaces depend
// on its kernels, its threads and the shapes, and on nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/device/meta/meta_device.h"
#include "tutti/engine/engine.h"

namespace tutti::rehearsal {

struct Target {
    const kernels::KernelTable* kernels = nullptr;
    MetaTarget device;  // its name is printed; memory_bytes 0: not known
};

// The machine of a rank that is there.
Target target_of(const engine::Machine& machine);

// By name: "cpu-avx2", "cpu-avx512", "cpu-avx512_bf16", "cpu-amx" with `threads` threads and memory of any size; "h100"
// and the other GPUs of target_names(). UsageError for an unknown name, with the nearest; for a GPU in a build without
// CUDA; for tf32 on a CPU.
Target target_named(std::string_view name, Arithmetic arithmetic, int threads);
std::vector<std::string> target_names();

}  // namespace tutti::rehearsal
