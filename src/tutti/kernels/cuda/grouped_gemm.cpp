// kernels/cuda/grouped_gemm.cpp: grouped products.
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/groups.h"

namespace tutti::kernels::cuda {

namespace {

// One product per group, in order on the stream: the rows of each group are known on the host. An empty group launches
// nothing unless its gradient must become zero.
template <bool kTf32>
void grouped_gemm(const Stream& stream, const GroupedGemm& grouped) {
    static const GemmOfGroup kGemm = gemm_of_group(kTf32);
    for_groups(grouped, [&](const Gemm& g) { kGemm(stream, g); });
}

}  // namespace

void fill_grouped_gemm(KernelTable& table, bool tf32) {
    table.grouped_gemm = tf32 ? grouped_gemm<true> : grouped_gemm<false>;
    table.grouped_gemm_workspace = [](const Stream&, const GroupedGemm&) -> int64_t { return 0; };  // as gemm_workspace
}

}  // namespace tutti::kernels::cuda
