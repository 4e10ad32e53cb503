// Attention by name, in a build without cuDNN's headers, such as the emulated build.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/kernels/cuda/fill.h"

namespace tutti::kernels::cuda {
namespace {

std::string refusal(const char* name) {
    KernelTable table;
    try {
        fill_attention(table, name);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(AttentionName, WhatIsMissingIsNotReplaced) {
    EXPECT_EQ(refusal(nullptr), "");
    EXPECT_NE(refusal("cudnn").find("pip install nvidia-cudnn-frontend"), std::string::npos) << refusal("cudnn");
}

}  // namespace
}  // namespace tutti::kernels::cuda
