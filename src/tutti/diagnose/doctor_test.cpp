// The checks of the host: a writable directory, and one that is not.
#include "tutti/diagnose/doctor.h"

#include <gtest/gtest.h>

namespace tutti::diagnose {
namespace {

TEST(Machine, FsyncIsTried) {
    EXPECT_EQ(fsync_problem("/tmp"), std::nullopt);
    ASSERT_TRUE(fsync_problem("/proc/self").has_value());
}

}  // namespace
}  // namespace tutti::diagnose
