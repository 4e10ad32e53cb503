// kernels/cpu/routing.cpp: the routing kernels of all instruction sets, those of the reference table. Called by:
// table.cpp.
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

void fill_routing(KernelTable& table) {
    const KernelTable& from = reference_table();
    table.route = from.route;
    table.route_backward = from.route_backward;
    table.gather_rows = from.gather_rows;
    table.combine_rows = from.combine_rows;
    table.combine_rows_backward = from.combine_rows_backward;
    table.balance = from.balance;
}

}  // namespace tutti::kernels
