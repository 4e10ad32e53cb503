// Limits of the process that refuse memory or a thread, each in a process of its own.
#include "tutti/base/refused.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "tutti/base/build_info.h"
#include "tutti/base/to_size.h"

namespace tutti {
namespace {

// Leaves this process no room for the stack of a thread, calls start(), and exits with the code of its error.
[[noreturn]] void start_without_room(void (*start)()) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = to_size(pages * sysconf(_SC_PAGESIZE)) + (1 << 20);
    const rlimit limit{.rlim_cur = room, .rlim_max = room};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
    try {
        start();
    } catch (const Error& error) {
        std::fputs(error.what(), stderr);
        _exit(error.exit_code());
    }
    _exit(0);
}

TEST(Refused, AThreadUnderALimitOfMemoryIsAnErrorThatAnotherStartWouldHave) {
    if (!build_info().sanitizer.empty()) GTEST_SKIP() << "a sanitizer maps memory of its own for a thread";
    constexpr auto kThread = [] { start_thread("counts sheep", [] {}).join(); };
    constexpr auto kAsync = [] { start_async("counts sheep", [] {}).get(); };
    for (void (*start)() : {+kThread, +kAsync})
        EXPECT_EXIT(start_without_room(start), ::testing::ExitedWithCode(exit_codes::kUsage),
                    "a thread that counts sheep cannot be started: .*; ulimit -v allows this process [0-9]+ KiB of "
                    "memory: raise it");
}

TEST(Refused, SaysHowManyThreadsCanBeStarted) {
    if (!build_info().sanitizer.empty()) GTEST_SKIP() << "a sanitizer maps memory of its own for a thread";
    EXPECT_EXIT(start_without_room([] { require_threads(100); }), ::testing::ExitedWithCode(exit_codes::kUsage),
                "100 CPU threads \\(train.threads, --threads\\), of which 1 can be started: .*; ulimit -v allows");
    require_threads(100);
}

TEST(Refused, WithoutALimitItIsAFailureOfTheHost) {
    ASSERT_EQ(memory_limit_text(), "") << "this test needs ulimit -v unlimited";
    try {
        throw_refused("rank 0 cannot map 7 bytes", ENOMEM);
    } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), exit_codes::kFailed);
        EXPECT_STREQ(error.what(),
                     "rank 0 cannot map 7 bytes: Cannot allocate memory (errno 12); raise the limits of this host or "
                     "its container (memory, ulimit -u, pids.max), or start fewer ranks on it");
    }
}

}  // namespace
}  // namespace tutti
