// cuDNN's attention against the reference, on a GPU: the bf16 cases that it supports. All others must throw UsageError.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/kernels/cuda/attention_cudnn.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

class Cudnn : public testing::TestWithParam<const char*> {};

TEST_P(Cudnn, IsTheReferenceOrRefuses) {
    KernelTable table = cuda_table();
    cuda::use_cudnn_attention(table);
    int taken = 0;
    for (const Case& c : cases_of(GetParam())) {
        if (!c.name.starts_with("bf16")) continue;
        SCOPED_TRACE(c.name);
        try {
            const auto first = c.run(table, cuda_place());
            EXPECT_EQ(first_difference(c.expected(), first), "");
            EXPECT_TRUE(same_bits(first, c.run(table, cuda_place()))) << "a second run differs";
            ++taken;
        } catch (const UsageError& refusal) {
            std::cout << c.name << ": " << refusal.what() << '\n';
        }
    }
    EXPECT_GE(taken, 10);
}

INSTANTIATE_TEST_SUITE_P(Attention, Cudnn, testing::Values("attention_forward", "attention_backward"));

}  // namespace
}  // namespace tutti::kernels
