// The CUDA table against the reference, over the list of cases; and each case twice, which must give the same bits:
// when emulated, the second time with all threads in the opposite order. tests/cuda builds this file for a GPU and
// emulated.
#include <gtest/gtest.h>

#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

class CudaEquivalence : public testing::TestWithParam<const char*> {};

TEST_P(CudaEquivalence, OfTableAndReference) {
    for (const Case& c : cases_of(GetParam())) {
        SCOPED_TRACE(concat(c.op, " ", c.name));
        ASSERT_TRUE(c.present(cuda_table()));
        const auto expected = c.expected(), first = c.run(cuda_table(), cuda_place());
        EXPECT_EQ(first_difference(expected, first), "");
        run_backwards(true);
        EXPECT_TRUE(same_bits(first, c.run(cuda_table(), cuda_place()))) << "a second run differs";
        run_backwards(false);
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaEquivalence, testing::ValuesIn(kOps), [](const auto& op) { return op.param; });

}  // namespace
}  // namespace tutti::kernels
