// ops/context.h: what a rank computes with: its device and the kernels for it. Passed down; never global.
#pragma once

#include "tutti/kernels/kernel_table.h"
#include "tutti/tensor/tensor.h"

namespace tutti::ops {

struct Context {
    Device& device;
    const kernels::KernelTable& kernels;
};

// Calls one kernel, or says which kernel the back end lacks.
template <class Kernel, class... Args>
auto call(Context& ctx, Kernel kernels::KernelTable::*entry, const char* name, Args&&... args) {
    const Kernel kernel = ctx.kernels.*entry;
    check(kernel != nullptr, name, " has no ", ctx.kernels.name, " kernel");
    return kernel(ctx.device.stream(), std::forward<Args>(args)...);
}

}  // namespace tutti::ops
