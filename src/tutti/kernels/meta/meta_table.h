// kernels/meta/meta_table.h: kernels without arithmetic, for a device without values (device/meta/).
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

// The table of a rehearsal of `target`: each kernel of target only stores its name in the MetaStream; a kernel that
// target lacks stays null, so a rehearsal fails where the real step would. Sizes of workspaces, packing and the choice
// of the GEMM implementation are those of target.
KernelTable meta_table(const KernelTable& target);

}  // namespace tutti::kernels
