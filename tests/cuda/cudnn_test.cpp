// cuDNN's attention against the reference, on a GPU: the bf16 cases, of which it must take some.
#include <gtest/gtest.h>

#include <iostream>

#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

class Cudnn : public testing::TestWithParam<const char*> {};

TEST_P(Cudnn, IsTheReferenceOrLeavesTheRequestToOurKernels) {
    int taken = 0;
    for (const Case& c : cases_of(GetParam())) {
        if (!c.name.starts_with("bf16") || c.name.find(" Dv ") != std::string::npos) continue;
        SCOPED_TRACE(c.name);
        const PlaceOfAttention by("cudnn");
        const auto first = c.run(cuda_table(), by.place);
        EXPECT_EQ(first_difference(c.expected(), first), "");
        EXPECT_TRUE(same_bits(first, c.run(cuda_table(), by.place))) << "a second run differs";
        if (!by.had_others()) ++taken;
        for (const auto& [key, text] : by.choice.others) std::cout << c.name << ": " << text << '\n';
    }
    EXPECT_GE(taken, 10);
}

INSTANTIATE_TEST_SUITE_P(Attention, Cudnn, testing::Values("attention_forward", "attention_backward"),
                         [](const auto& op) { return op.param; });

}  // namespace
}  // namespace tutti::kernels
