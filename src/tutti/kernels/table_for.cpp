// kernels/table_for.cpp: which kernels compute in the memory of a device.
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

const KernelTable& table_for(const Device& device) {
    return device.kind() == DeviceKind::cuda ? cuda_table() : cpu_table(best_isa());
}

}  // namespace tutti::kernels
