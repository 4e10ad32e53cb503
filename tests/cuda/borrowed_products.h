// The matrix products of a table of borrowed kernels; one definition per program.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

void replace_products(KernelTable& table);

}  // namespace tutti::kernels
