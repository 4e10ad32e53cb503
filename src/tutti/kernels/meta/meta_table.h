// kernels/meta/meta_table.h: kernels without arithmetic, for the meta device, whose tensors have no values
// (device/meta/).
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The table for rehearsals of `target`: each kernel only stores its name in the MetaStream. A kernel that target lacks
// stays null, so a rehearsal fails where the real step would. Workspace sizes, packing and the choice of the GEMM
// implementation are those of target.
KernelTable meta_table(const KernelTable& target);

}  // namespace tutti::kernels
