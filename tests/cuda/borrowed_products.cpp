// The CPU's products.
#include "tests/cuda/borrowed_products.h"

namespace tutti::kernels {

void replace_products(KernelTable&) {}

}  // namespace tutti::kernels
