// cuDNN in a build without cuDNN's headers, such as the emulated build; all kernels on emulated GPUs whose blocks have
// less shared memory than Hopper's; and grids of very long matrices.
#include <gtest/gtest.h>

#include <random>

#include "tests/cuda/emulation/api.h"
#include "tutti/base/error.h"
#include "tutti/base/testing/draws.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/cudnn_graph.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"
#include "tutti/tensor/tensor.h"

namespace tutti::kernels::cuda {
namespace {

TEST(AttentionName, ALibraryThatIsMissingIsNamedWithItsRemedy) {
    try {
        cudnn_version();
        ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("pip install nvidia-cudnn-frontend"), std::string::npos)
            << error.what();
    }
}

// The largest head dims ask for the most shared memory, and their kernels must start.
TEST(AttentionOnSmallerGpus, ComputesTheLargestHeadDims) {
    int cases = 0;
    for (const char* op : {"attention_forward", "attention_backward"})
        for (const Case& c : cases_of(op)) {
            if (c.name.find(" D 256") == std::string::npos) continue;
            ++cases;
            const auto expected = c.expected();
            for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {12, 0}}) {
                SCOPED_TRACE(concat(major, ".", minor, ": ", c.op, " ", c.name));
                emulation::set_capability(major, minor);
                EXPECT_EQ(first_difference(expected, c.run(cuda_table(), cuda_place())), "");
            }
        }
    EXPECT_GE(cases, 12);
    emulation::set_capability(9, 0);
}

// A block of every kernel fits into the shared memory of GPUs that have 99 KiB of it, and none has instructions of 9.0a
// there. By day one case of each op, at night ten.
TEST(SmallerGpus, RunEveryOp) {
    std::minstd_rand random(86);
    for (const char* op : kOps) {
        const std::vector<Case> all = cases_of(op);
        for (int i = 0; i < testing::draws(1, 10); ++i) {
            const Case& c = all[random() % all.size()];
            if (c.name.find(" Dv ") != std::string::npos) continue;  // ops/ widens them
            const auto [major, minor] = random() % 2 == 0 ? std::pair(8, 6) : std::pair(12, 0);
            SCOPED_TRACE(concat(major, ".", minor, ": ", c.op, " ", c.name));
            emulation::set_capability(major, minor);
            EXPECT_EQ(first_difference(c.expected(), c.run(cuda_table(), cuda_place())), "");
        }
    }
    emulation::set_capability(9, 0);
}

// More than 65535 blocks of rows, the most that the second dimension of a grid has: of one group, and of groups of one
// column.
TEST(LongMatrices, AreQuantized) {
    constexpr int64_t kRows = 32 * 65535 + 1;
    std::vector<float> values(kRows, 1);
    values.back() = 448;
    for (const GroupShape group : {GroupShape{kRows, 1}, GroupShape{32, 1}}) {
        const auto codes_of = [&](Device& device, const KernelTable& table) {
            const auto empty = [&](int64_t n, DType dtype) {
                return Tensor::empty(device, {n, 1}, dtype, Purpose::workspace);
            };
            const Tensor x = Tensor::from_host<float>(device, {kRows, 1}, values, Purpose::workspace);
            const Tensor codes = empty(kRows, DType::e4m3);
            const Tensor divisors = empty((kRows + group.rows - 1) / group.rows, DType::f32);
            table.quantize(
                device.stream(),
                {.x = x.view(), .codes = codes.view(), .scales = {.values = divisors.view(), .group = group}});
            std::vector<uint8_t> bytes(kRows);
            device.copy_out(bytes.data(), codes.view().data, kRows);
            return std::pair(bytes, divisors.to_host<float>());
        };
        EXPECT_EQ(codes_of(*make_cuda_device(0), cuda_table()), codes_of(*make_cpu_device(1), reference_table()));
    }
}

}  // namespace
}  // namespace tutti::kernels::cuda
