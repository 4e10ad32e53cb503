// kernels/table_for.cpp: which kernels compute in the memory of a device.
#include "tutti/base/error.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

const KernelTable& table_for(const Device& device, Arithmetic arithmetic) {
    const bool gpu = device.kind() == DeviceKind::cuda;
    if (arithmetic != Arithmetic::tf32) return gpu ? cuda_table() : cpu_table(chosen_isa());
    check<UsageError>(gpu, "tf32 needs a GPU, and this rank is on ", device.name(), "; compute in f32 or bf16");
    return cuda_tf32_table();
}

}  // namespace tutti::kernels
