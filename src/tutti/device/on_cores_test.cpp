#include "tutti/device/on_cores.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti {
namespace {

TEST(OnCores, EachPieceOnce) {
    for (const size_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> calls(count);
        for_each_on_cores(count, [&](size_t i) { ++calls[i]; });
        for (const std::atomic<int>& n : calls) EXPECT_EQ(n, 1);
    }
}

TEST(OnCores, AllEndAndTheFirstFailureIsThrown) {
    std::atomic<int> calls = 0;
    try {
        for_each_on_cores(100, [&](size_t i) {
            ++calls;
            if (i % 30 == 17) throw std::runtime_error(std::to_string(i));
        });
        ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "17");
    }
    EXPECT_EQ(calls, 100);
}

}  // namespace
}  // namespace tutti
