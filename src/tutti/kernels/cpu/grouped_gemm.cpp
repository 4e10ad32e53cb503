// kernels/cpu/grouped_gemm.cpp: products of groups of rows, our own (isa/gemm_blocked.cpp) or the table's. Many groups
// are divided among the threads, one thread a group; all threads multiply a group with many of the rows.
#include <algorithm>
#include <vector>

#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/groups.h"

namespace tutti::kernels {

namespace {

// Whether our own implementation computes the products of groups, as measured with `bench/cpu_kernels.cpp grouped`:
// - bf16 with instructions for it: our own. Where a weight gradient has few rows, c is most of its cost, and our own
//   fetches it while it multiplies: 1.4 times as fast as oneDNN with 128 rows.
// - f32 with a b that is not transposed: our own there too, 1.05 to 1.2 times as fast as oneDNN.
// - Others, and few rows in all, as in generation: the product of the table, which chooses.
// Groups have other sizes in each microbatch, and oneDNN compiles a kernel for each size that it has not seen: with 256
// rows for each of two ranks that divide eight experts a step took three times as long.
bool is_own(Isa isa, const GroupedGemm& grouped) {
    constexpr int64_t kFewRows = 32;
    const Gemm& g = grouped.all;
    if (g.a.shape[0] < kFewRows || isa < Isa::avx512_bf16) return false;
    return g.a.dtype == DType::bf16 || !g.transpose_b;
}

// The products of all groups, divided by how many threads compute each.
struct Products {
    std::vector<Gemm> together;  // one after the other, each by all threads
    std::vector<Gemm> alone;     // each by one thread; the largest first
};

int64_t rows_of(const Gemm& g) { return g.a.shape[0]; }

// A group alone needs no barrier between packing and multiplying, and its blocks of c are not cut small to feed all
// threads. A group alone has at most half of a thread's share of the rows: then the last groups balance the threads.
Products products_of(const Stream& stream, const GroupedGemm& grouped) {
    Products p;
    const int64_t threads = stream.threads, most = grouped.all.a.shape[0] / (2 * threads);
    for_groups(grouped, [&](Gemm g) {
        // Choices that depend on the number of rows use the rows of all groups: a row of the result has the same bits
        // in a group of any size. A weight gradient is a sum over the rows of its group.
        if (!g.transpose_a) g.whole_rows = grouped.all.a.shape[0];
        (threads > 1 && rows_of(g) <= most ? p.alone : p.together).push_back(g);
    });
    std::stable_sort(p.alone.begin(), p.alone.end(),
                     [](const Gemm& a, const Gemm& b) { return rows_of(a) > rows_of(b); });
    return p;
}

constexpr Stream kOneThread{1};

template <Isa isa>
void fill(KernelTable& table) {
    table.grouped_gemm = [](const Stream& stream, const GroupedGemm& grouped) {
        const bool own = is_own(isa, grouped);
        const auto product = [own](const Stream& s, const Gemm& g) {
            own ? multiply(isa, s, g) : cpu_table(isa).gemm(s, g);
        };
        const Products products = products_of(stream, grouped);
        for (const Gemm& g : products.together) product(stream, g);

        // Each thread gets an equal share, at least what a product of `alone` needs.
        const View& workspace = grouped.all.workspace;
        const int64_t each = workspace.data == nullptr ? 0 : workspace.shape[0] / stream.threads;
        int64_t next = 0;
        const int64_t count = static_cast<int64_t>(products.alone.size());
        parallel_tasks(stream, std::min<int64_t>(stream.threads, count), [&](int64_t thread) {
            for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count;) {
                Gemm g = products.alone[static_cast<size_t>(i)];
                if (each > 0) g.workspace = View(workspace.as<float>() + thread * each, DType::f32, {each});
                product(kOneThread, g);
            }
        });
    };
    table.grouped_gemm_workspace = [](const Stream& stream, const GroupedGemm& grouped) {
        const auto size = is_own(isa, grouped) ? own_gemm(isa).workspace : cpu_table(isa).gemm_workspace;
        const Products products = products_of(stream, grouped);
        int64_t together = 0, alone = 0;
        for (const Gemm& g : products.together) together = std::max(together, size(stream, g));
        for (const Gemm& g : products.alone) alone = std::max(alone, size(kOneThread, g));
        return std::max(together, stream.threads * alone);
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
