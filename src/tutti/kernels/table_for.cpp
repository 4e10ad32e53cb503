// kernels/table_for.cpp: chooses the table of kernels for a device.
#include "tutti/base/error.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

const KernelTable& table_for(const Device& device, ComputeType compute_type) {
    const bool gpu = device.kind() == DeviceKind::cuda;
    const bool tf32 = compute_type == ComputeType::tf32;
    check<UsageError>(gpu || !tf32, "tf32 needs a GPU, and this rank is on ", device.name(),
                      "; compute in f32 or bf16");
    const KernelTable& table = tf32 ? cuda_tf32_table() : gpu ? cuda_table() : cpu_table(chosen_isa());
    table.gemm_implementations();  // a missing library ends a run here, before anything is allocated
    return table;
}

}  // namespace tutti::kernels
