// kernels/cpu/grouped_gemm.cpp: products of groups of rows, one by one by the product of the table. Called by:
// table.cpp.
#include <algorithm>

#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/groups.h"

namespace tutti::kernels {

namespace {

template <Isa isa>
void fill(KernelTable& table) {
    table.grouped_gemm = [](const Stream& stream, const GroupedGemm& grouped) {
        for_groups(grouped, [&](const Gemm& g) { cpu_table(isa).gemm(stream, g); });
    };
    table.grouped_gemm_workspace = [](const Stream& stream, const GroupedGemm& grouped) {
        int64_t most = 0;
        for_groups(grouped, [&](const Gemm& g) { most = std::max(most, cpu_table(isa).gemm_workspace(stream, g)); });
        return most;
    };
}

}  // namespace

void fill_grouped_gemm(KernelTable& table, Isa isa) {
    switch (isa) {
        case Isa::avx2: return fill<Isa::avx2>(table);
        case Isa::avx512: return fill<Isa::avx512>(table);
        case Isa::avx512_bf16: return fill<Isa::avx512_bf16>(table);
        case Isa::amx: return fill<Isa::amx>(table);
    }
}

}  // namespace tutti::kernels
