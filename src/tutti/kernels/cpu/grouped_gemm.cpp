// kernels/cpu/grouped_gemm.cpp: products of groups of rows, one after the other, our own (isa/gemm_blocked.cpp) or the
// table's. Called by: table.cpp.
#include <algorithm>

#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/groups.h"

namespace tutti::kernels {

namespace {

// What makes the products of groups, as measured with `bench/cpu_kernels.cpp grouped`:
// - bf16 with instructions for it: our own. Where a weight gradient has few rows, c is most of its cost, and our own
//   fetches it while it multiplies: 1.4 times as fast as oneDNN with 128 rows.
// - f32 with a b that is not transposed: our own there too, 1.05 to 1.2 times as fast as oneDNN.
// - Others, and few rows in all, as in generation: the product of the table, which chooses.
// Groups have other sizes in each microbatch, and oneDNN compiles a kernel for each size that it has not seen: with 256
// rows for each of two ranks that share out eight experts a step took three times as long.
bool is_own(Isa isa, const GroupedGemm& grouped) {
    constexpr int64_t kFewRows = 32;
    const Gemm& g = grouped.all;
    if (g.a.shape[0] < kFewRows || isa < Isa::avx512_bf16) return false;
    return g.a.dtype == DType::bf16 || !g.transpose_b;
}

// What is chosen by the number of rows is chosen by those of all groups: a row of the result has the same bits in a
// group of any size. A weight gradient is a sum over the rows of its group.
template <class Body>
void for_products(const GroupedGemm& grouped, Body&& body) {
    for_groups(grouped, [&](Gemm g) {
        if (!g.transpose_a) g.whole_rows = grouped.all.a.shape[0];
        body(g);
    });
}

template <Isa isa>
void fill(KernelTable& table) {
    table.grouped_gemm = [](const Stream& stream, const GroupedGemm& grouped) {
        const bool own = is_own(isa, grouped);
        for_products(grouped, [&](const Gemm& g) { own ? multiply(isa, stream, g) : cpu_table(isa).gemm(stream, g); });
    };
    table.grouped_gemm_workspace = [](const Stream& stream, const GroupedGemm& grouped) {
        const auto size = is_own(isa, grouped) ? own_gemm(isa).workspace : cpu_table(isa).gemm_workspace;
        int64_t most = 0;
        for_products(grouped, [&](const Gemm& g) { most = std::max(most, size(stream, g)); });
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
