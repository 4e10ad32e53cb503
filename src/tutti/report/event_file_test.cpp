// report/event_file_test.cpp: records with the bytes that TensorFlow's own writer makes, and files that sort by time.
#include "tutti/report/event_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::report {
namespace {

std::string hex(std::string_view bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (const char c : bytes) {
        text += kDigits[static_cast<unsigned char>(c) >> 4];
        text += kDigits[static_cast<unsigned char>(c) & 15];
    }
    return text;
}

// The first record is that of TensorFlow's writer; the second was computed with another program.
TEST(EventFile, GoldenRecords) {
    EXPECT_EQ(hex(record_of(version_event(1700000000.0))),
              "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
    EXPECT_EQ(hex(record_of(scalars_event(1700000001.0, 7, {{"train/loss", 2.5}}))),
              "200000000000000029eda9500900004040fc54d94110072a130a110a0a747261696e2f6c6f7373150000204055c9c66f");
}

// Steps of more than seven bits, several values in one summary: fields and lengths by hand from the protobuf encoding.
TEST(EventFile, VarintsAndSeveralValues) {
    EXPECT_EQ(hex(scalars_event(0, 300, {{"a", 1}, {"b", -2}})),
              "090000000000000000"
              "10ac02"
              "2a14"
              "0a080a0161150000803f"
              "0a080a016215000000c0");
    EXPECT_EQ(hex(session_event(0, 5)),
              "090000000000000000"
              "1005"
              "3a020801");
}

TEST(EventFile, SessionsSort) {
    const ScratchFolder scratch;
    std::string before;
    for (int64_t session = 0; session < 3; ++session) {
        EventFile file(scratch.path("tensorboard"), 1 + 10 * session, "host");
        EXPECT_TRUE(file.add(1 + 10 * session, {{"train/loss", 1.5}}));
        EXPECT_LT(before, file.path());
        before = file.path();
        std::ifstream in(file.path(), std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(in), {}};
        EXPECT_EQ(bytes.size(), 40u + (16 + 15) + (16 + 32));  // version, session, scalars
    }
    EXPECT_THROW(EventFile(scratch.write("file", "a file"), 1, "host"), UsageError);
}

}  // namespace
}  // namespace tutti::report
