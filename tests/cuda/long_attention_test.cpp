// Attention on a GPU at lengths that models train with: many blocks in waves over all multiprocessors, rings of tiles
// many times around. Too slow to emulate.
#include <gtest/gtest.h>

#include <string>

#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cases.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

std::vector<Case> long_cases() {
    std::vector<Case> all;
    cases::add_long_attention(all);
    return all;
}

// By place among long_cases(): a process checks one.
class LongAttention : public testing::TestWithParam<size_t> {};

TEST_P(LongAttention, OfEachKernelAndReference) {
    const Case c = long_cases().at(GetParam());
    const auto expected = c.expected();
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    for (const std::string kernel : {"hopper", "tensor", "plain"}) {
        if (kernel == "hopper" && major != 9) continue;
        SCOPED_TRACE(concat(kernel, ": ", c.op, " ", c.name));
        const PlaceOfAttention by(kernel);
        const auto first = c.run(cuda_table(), by.place);
        EXPECT_FALSE(by.had_others());
        EXPECT_EQ(first_difference(expected, first), "");
        EXPECT_TRUE(same_bits(first, c.run(cuda_table(), by.place))) << "a second run differs";
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, LongAttention, testing::Range(size_t{0}, size_t{4}));

TEST(LongAttentionCases, AreFour) { EXPECT_EQ(long_cases().size(), 4U); }

}  // namespace
}  // namespace tutti::kernels
