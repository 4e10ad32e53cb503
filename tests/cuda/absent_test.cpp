// The table of a build without CUDA (kernels/cuda/absent.cpp), linked in the place of CUDA's: rehearsals for a GPU
// equal those of this build's program, which has CUDA if nvcc is installed.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/program.h"
#include "tutti/base/error.h"
#include "tutti/cli/cli.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::testing {
namespace {

using AbsentCuda = ProgramTest;

TEST_F(AbsentCuda, ARehearsalForAGpuIsThatOfABuildWithCuda) {
    for (const char* model : {"gpt2-124m", "llama3.2-1b", "moe-tiny"}) {
        write("run.toml", concat("[model]\npreset = \"", model, "\"\n[data]\ntrain = \"not read\"\n",
                                 "[train]\nseq_len = 1024\nmicro_batch = 2\nglobal_batch = 8\n[precision]\n",
                                 "compute = \"bf16\"\n"));
        const std::vector<std::string> words = {"rehearse", path("run.toml"), "--for", "h100", "--ranks",
                                                "4",        "--kernels",      "--json"};
        std::vector<const char*> argv = {"tutti"};
        for (const std::string& word : words) argv.push_back(word.c_str());
        std::ostringstream out, err;
        EXPECT_EQ(cli::run(static_cast<int>(argv.size()), argv.data(), cli::Io{out, err}), 0) << err.str();
        const Result of_program = run(words);
        EXPECT_EQ(of_program.exit_code, 0) << of_program.err;
        EXPECT_NE(out.str().find("NVIDIA h100"), std::string::npos);
        EXPECT_EQ(out.str(), of_program.out) << model;
    }
}

TEST(AbsentCudaTable, SaysThatItDoesNotCompute) {
    EXPECT_EQ(std::string(kernels::cuda_table().name), "cuda");
    try {
        kernels::cuda_table().gemm_implementations();
        ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("-DTUTTI_CUDA=ON"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tutti::testing
