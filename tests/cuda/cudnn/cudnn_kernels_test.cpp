// Attention by cuDNN among the kernels of the CUDA table, over the emulated GPU and a fake cuDNN: who computes a
// request.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cuda/cudnn/fake_cudnn.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

namespace fake = cuda::fake_cudnn;

// What cuDNN can compute, by the names of the cases and by the documentation: bf16, head dims in steps of 8, masks from
// the first key or to the last one.
TEST(CudnnAttention, ComputesWhatItTakesAndLeavesTheRestToOurKernels) {
    for (const char* op : {"attention_forward", "attention_backward"}) {
        int taken = 0, left = 0;
        for (const Case& c : cases_of(op)) {
            SCOPED_TRACE(concat(c.op, " ", c.name));
            if (c.name.find(" Dv ") != std::string::npos) continue;  // ops/ widens them
            const PlaceOfAttention by("cudnn");
            fake::forget();
            const auto result = c.run(cuda_table(), by.place);
            EXPECT_EQ(first_difference(c.expected(), result), "");
            const bool by_cudnn = fake::forwards() + fake::backwards() > 0;
            EXPECT_NE(by_cudnn, by.had_others()) << (by.had_others() ? by.choice.others.begin()->second : "");
            const auto has = [&](const char* text) { return c.name.find(text) != std::string::npos; };
            EXPECT_FALSE(by_cudnn && (!c.name.starts_with("bf16") || has(" cap ") || has("documents")));
            ++(by_cudnn ? taken : left);
        }
        EXPECT_GE(taken, 10) << op;
        EXPECT_GE(left, 10) << op;
    }
}

// A graph whose workspace a plan does not count is not used.
TEST(CudnnAttention, AGraphBeyondThePlanIsLeftToOurKernels) {
    PlaceOfAttention by("cudnn");
    fake::set_more_workspace(int64_t{1} << 30);
    const std::vector<Case> all = cases_of("attention_backward");
    const auto first = std::find_if(all.begin(), all.end(), [](const Case& c) {
        return c.name.starts_with("bf16") && c.name.find(" D 64 ") != std::string::npos &&
               c.name.find(" Tq 1 ") == std::string::npos;
    });
    ASSERT_NE(first, all.end());
    fake::forget();
    cudaStream_t stream = nullptr;  // graphs are kept by stream, and other tests use the other one
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    Place place = by.place;
    place.stream.native = stream;
    place.wait = [stream] { cudaStreamSynchronize(stream); };
    const auto result = first->run(cuda_table(), place);
    fake::set_more_workspace(0);
    EXPECT_EQ(first_difference(first->expected(), result), "");
    EXPECT_EQ(fake::backwards(), 0);
    ASSERT_EQ(by.choice.others.size(), 1U);
    EXPECT_NE(by.choice.others.begin()->second.find("bytes of workspace, more than the"), std::string::npos)
        << by.choice.others.begin()->second;
    cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace tutti::kernels
