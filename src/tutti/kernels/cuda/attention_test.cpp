// Every kernel that computes attention, by its name, over the list of cases: against the reference, and twice with the
// same bits. What a kernel does not take is an error that says so. tests/cuda builds this file for a GPU and emulated.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

KernelTable table_with(const char* kernel) {
    KernelTable table = cuda_table();
    cuda::fill_attention(table, kernel);
    return table;
}

// The emulated GPU is one of Hopper.
bool is_hopper() {
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    return major == 9;
}

// From the names of the cases: "bf16 B 1 Tq 63 Tk 63 H 2/1 D 80 causal".
bool takes(const std::string& kernel, const std::string& name) {
    if (kernel == "plain") return true;
    const int D = std::stoi(name.substr(name.find(" D ") + 3));
    return name.starts_with("bf16") && D % 8 == 0 && (kernel == "tensor" || (D <= 128 && is_hopper()));
}

class CudaAttention : public testing::TestWithParam<const char*> {};

TEST_P(CudaAttention, OfEachKernelAndReference) {
    const KernelTable table = table_with(GetParam());
    int taken = 0;
    for (const char* op : {"attention_forward", "attention_backward"})
        for (const Case& c : cases_of(op)) {
            SCOPED_TRACE(concat(c.op, " ", c.name));
            if (!takes(GetParam(), c.name)) {
                try {
                    c.run(table, cuda_place());
                    ADD_FAILURE() << "no error";
                } catch (const UsageError& error) {
                    EXPECT_NE(std::string(error.what()).find(concat("TUTTI_CUDA_ATTENTION=", GetParam(), " takes")),
                              std::string::npos)
                        << error.what();
                }
                continue;
            }
            ++taken;
            const auto first = c.run(table, cuda_place());
            EXPECT_EQ(first_difference(c.expected(), first), "");
            run_backwards(true);
            EXPECT_TRUE(same_bits(first, c.run(table, cuda_place()))) << "a second run differs";
            run_backwards(false);
        }
    EXPECT_GE(taken, GetParam() == std::string("hopper") && !is_hopper() ? 0 : 60);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaAttention, testing::Values("hopper", "tensor", "plain"),
                         [](const auto& kernel) { return kernel.param; });

TEST(CudaAttention, AnUnknownNameIsAnError) {
    try {
        table_with("fast");
        ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(), "TUTTI_CUDA_ATTENTION must be one of cudnn, hopper, tensor, plain; got \"fast\"");
    }
}

}  // namespace
}  // namespace tutti::kernels
