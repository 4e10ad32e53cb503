// The small parts of the command line: text that comes in pieces, signals, columns.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tutti/base/units.h"
#include "tutti/cli/io.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/device/cpu/peak.h"

namespace tutti::cli {
namespace {

std::string byte_by_byte(const std::string& bytes) {
    Utf8Stream stream;
    std::string text;
    for (const char byte : bytes) text += stream.feed(std::string_view(&byte, 1));
    return text + stream.finish();
}

TEST(Utf8Stream, CharactersComeWhole) {
    Utf8Stream stream;
    EXPECT_EQ(stream.feed("a\xF0\x9F"), "a");
    EXPECT_EQ(stream.feed("\x98"), "");
    EXPECT_EQ(stream.feed("\x80z"), "\xF0\x9F\x98\x80z");
    EXPECT_EQ(stream.finish(), "");
    const std::string text = "d\xC3\xA9j\xC3\xA0 \xE2\x82\xAC\n\t\xF0\x9F\x98\x80 \xF4\x8F\xBF\xBF";
    EXPECT_EQ(byte_by_byte(text), text);
}

// Whatever the pieces, the text before the first stop word is shown, and nothing that could become one before it is
// known.
TEST(StopText, EndsBeforeTheFirstWord) {
    const std::string text = "one two\nthree ENENDfour";
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {{{"END"}, "one two\nthree EN"},
                                                                                 {{"\n"}, "one two"},
                                                                                 {{"END", "three"}, "one two\n"},
                                                                                 {{"NENDf"}, "one two\nthree E"},
                                                                                 {{"ENDfive", "our!"}, text},
                                                                                 {{}, text},
                                                                                 {{"one"}, ""},
                                                                                 {{"e t", "wo\n"}, "on"}};
    for (const auto& [words, expected] : cases)
        for (const size_t size : {size_t{1}, size_t{2}, size_t{5}, text.size()}) {
            StopText stop(words);
            std::string shown;
            for (size_t at = 0; at < text.size() && !stop.stopped(); at += size) {
                shown += stop.feed(text.substr(at, size));
                EXPECT_TRUE(expected.starts_with(shown)) << shown;
            }
            if (!stop.stopped()) shown += stop.finish();
            EXPECT_EQ(shown, expected) << "in pieces of " << size;
        }
}

// Unicode 15, table 3-8 and its neighbours: one U+FFFD for each maximal wrong part.
TEST(Utf8Stream, WrongBytesAreReplaced) {
    const std::string R = "\xEF\xBF\xBD";
    EXPECT_EQ(byte_by_byte("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
              "a" + R + R + R + "b" + R + "c" + R + R + "d");
    EXPECT_EQ(byte_by_byte("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), R + R + R + R + R + R + R + R + "A");  // overlong
    EXPECT_EQ(byte_by_byte("\xED\xA0\x80\x41"), R + R + R + "A");                                          // surrogate
    EXPECT_EQ(byte_by_byte("\xF4\x91\x92\x93\xFF\x41"), R + R + R + R + R + "A");  // beyond U+10FFFF
    EXPECT_EQ(byte_by_byte("end\xE2\x82"), "end" + R);
}

TEST(Utf8Stream, TerminalIsNotDriven) {
    const std::string R = "\xEF\xBF\xBD";
    EXPECT_EQ(byte_by_byte("\x1B[2Jx\x07\r\x7F"), R + "[2Jx" + R + R + R);
    EXPECT_EQ(byte_by_byte("\xC2\x9B"
                           "2J\xC2\xA0"),
              R + "2J\xC2\xA0");  // U+009B is CSI; U+00A0 is a space
}

// In a separate process, in which no earlier thread can take the signal.
class StopSignalsDeathTest : public ::testing::Test {
  protected:
    void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
    static void wait_until_requested(const StopSignals& signals) {
        for (int i = 0; i < 12000 && !signals.requested(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
};

TEST_F(StopSignalsDeathTest, FirstSignalIsAQuestion) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
        const auto body = [signal] {
            std::atomic<int> noticed = 0;
            int seen = 0;
            {
                const StopSignals signals([&](int s) { noticed = s; });
                if (signals.requested()) std::_Exit(1);
                kill(getpid(), signal);
                wait_until_requested(signals);
                seen = signals.signal();
            }
            std::_Exit(seen == signal && noticed == signal ? 42 : 1);
        };
        EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "") << signal;
    }
}

// The run is done: its exit code is its own.
TEST_F(StopSignalsDeathTest, ASignalInTheLastMomentKillsNothing) {
    EXPECT_EXIT(
        {
            for (int i = 0; i < 100; ++i) {
                const StopSignals signals([](int) {});
                for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) ::kill(::getpid(), signal);
            }
            std::exit(0);
        },
        ::testing::ExitedWithCode(0), "");
}

TEST_F(StopSignalsDeathTest, SecondInterruptStopsAtOnce) {
    const auto body = [] {
        const StopSignals signals([](int) {});
        kill(getpid(), SIGINT);
        wait_until_requested(signals);
        kill(getpid(), SIGINT);
        std::this_thread::sleep_for(std::chrono::seconds(120));
        std::_Exit(1);
    };
    EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGINT), "");
}

TEST_F(StopSignalsDeathTest, SecondTerminateWaitsForTheCheckpoint) {
    const auto body = [] {
        const StopSignals signals([](int) {});
        kill(getpid(), SIGUSR1);
        wait_until_requested(signals);
        kill(getpid(), SIGTERM);
        kill(getpid(), SIGINT);  // the first interrupt
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        std::_Exit(signals.signal() == SIGUSR1 ? 42 : 1);
    };
    EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

TEST(Text, Columns) {
    EXPECT_EQ(left("ab", 4) + "|", "ab  |");
    EXPECT_EQ(right("\xE2\x82\xAC", 3), "  \xE2\x82\xAC");
    EXPECT_EQ(right("long", 2), "long");
}

TEST(Peak, TwoFlopsPerLaneAndNoMoreThanThePossible) {
    const auto device = make_cpu_device(1);
    const ArithmeticPeak f32 = device->peak(ComputeType::f32, 0.01);
    // Two 512-bit multiply-adds a cycle, 6 GHz: no x86 core does more.
    EXPECT_GT(f32.flops_per_s, 0);
    EXPECT_LT(f32.flops_per_s, 2 * 2 * 16 * 6e9);
    EXPECT_TRUE(f32.origin.starts_with("vfmadd"));
}

}  // namespace
}  // namespace tutti::cli
