// checkpoint/testing/contains.h: EXPECT_TRUE(contains(message, "part")) shows the message when it fails.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tutti::checkpoint::testing {

inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
    if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "'" << text << "' does not contain '" << part << "'";
}

}  // namespace tutti::checkpoint::testing
