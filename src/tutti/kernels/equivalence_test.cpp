// Every kernel table against the reference, over the one list of cases, with one and with two threads; and each run
// twice, which must give the same bits. The list itself is tested too: it must cover every entry, and its tolerances
// must be tight enough to notice that the smallest thing is wrong.
#include "tutti/kernels/testing/equivalence.h"

#include <gtest/gtest.h>

#include <set>

#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/epilogue.h"

namespace tutti::kernels {
namespace {

// The table of a machine with AMX, whose tiles are arrays here.
const KernelTable& emulated_amx_table() {
    static const KernelTable kTable = [] {
        KernelTable table = cpu_table(Isa::avx512);
        table.name = "cpu-amx, emulated";
        amx_emulated::fill_attention(table);
        table.gemm = [](const Stream& stream, const Gemm& g) {
            amx_emulated::gemm(stream, without_epilogue(g));
            apply_epilogue(cpu_table(Isa::avx512), stream, g);
        };
        table.gemm_workspace = own_gemm(Isa::amx).workspace;
        return table;
    }();
    return kTable;
}

std::vector<const KernelTable*> tables() {
    std::vector<const KernelTable*> list;
    for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
        if (best_isa() >= isa) list.push_back(&cpu_table(isa));
    if (best_isa() >= Isa::avx512) list.push_back(&emulated_amx_table());
    return list;
}

// Tables that have a function of their own for the case. Several share what is compiled once.
std::vector<const KernelTable*> tables_of(const Case& c) {
    std::vector<const KernelTable*> list;
    std::set<const void*> functions;
    for (const KernelTable* table : tables())
        if (functions.insert(c.entry(*table)).second) list.push_back(table);
    return list;
}

class Equivalence : public testing::TestWithParam<const char*> {};

TEST_P(Equivalence, OfCpuTablesAndReference) {
    const auto cases = cases_of(GetParam());
    ASSERT_GE(cases.size(), 10u);
    std::set<std::string> names;
    for (const Case& c : cases) {
        SCOPED_TRACE(concat(c.op, " ", c.name));
        EXPECT_TRUE(names.insert(c.name).second) << "two cases have this name";
        const auto expected = c.expected();
        expect_sound(c, expected);
        for (const KernelTable* table : tables_of(c))
            for (const int threads : {1, 2}) {
                SCOPED_TRACE(concat(table->name, ", threads ", threads));
                ASSERT_NE(c.entry(*table), nullptr);
                const auto first = c.run(*table, {.stream = {.threads = threads}});
                EXPECT_EQ(first_difference(expected, first), "");
                EXPECT_TRUE(same_bits(first, c.run(*table, {.stream = {.threads = threads}})))
                    << "a second run differs";
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, Equivalence, testing::ValuesIn(kOps), [](const auto& op) { return op.param; });

TEST(KernelCases, CoverEveryEntry) {
    std::set<std::string> ops;
    for (const Case& c : kernel_cases()) ops.insert(c.op);
    EXPECT_EQ(ops, std::set<std::string>(kOps.begin(), kOps.end()));
    // The entries of the table besides its two names, gemm_implementation and the four of workspaces, which the cases
    // call, the two of packed b (cpu/cpu_test.cpp), slow_work, gemm_tuning, loss_chunk_bytes, the two that name
    // attention (cuda/attention_test.cpp), gemm_of_codes (tests/cuda/cublaslt) and scale_form
    // (scale_layout_test.cpp).
    EXPECT_EQ(sizeof(KernelTable) / sizeof(void*), 2 + kOps.size() + 5 + 2 + 3 + 2 + 2)
        << "an entry of KernelTable has no case";
}

}  // namespace
}  // namespace tutti::kernels
