// kernels/reference/table.cpp: fills the reference table.
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels {

const KernelTable& reference_table() {
    static const KernelTable table = [] {
        KernelTable t;
        t.name = "reference";
        reference::fill_elementwise(t);
        reference::fill_float8(t);
        reference::fill_matrix(t);
        reference::fill_norm(t);
        reference::fill_short_convolution(t);
        reference::fill_delta_rule(t);
        reference::fill_attention(t);
        reference::fill_loss(t);
        reference::fill_experts(t);
        reference::fill_optimizer(t);
        return t;
    }();
    return table;
}

}  // namespace tutti::kernels
