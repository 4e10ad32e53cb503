// data/token_writer_test.cpp: writes the same bytes as other trainers' own writers, and our readers read them back; no
// file has its final name before the end.
#include "tutti/data/token_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tutti/data/data_set.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/token_source.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

EncodedPiece piece(Ids ids, std::vector<int64_t> begins, std::vector<uint8_t> loss_mask = {}) {
    return {.ids = std::move(ids), .loss_mask = std::move(loss_mask), .begins = std::move(begins)};
}

// Documents [1, 2, 3] and [4, 5]; the second piece begins inside the first document.
TEST(TokenWriter, MegatronByTheGoldenFile) {
    ScratchFolder folder;
    TokenWriter writer("megatron", folder.path("d"), 6);
    writer.append(piece({1, 2}, {0}));
    writer.append(piece({3, 4, 5}, {1}));
    EXPECT_FALSE(std::filesystem::exists(folder.path("d.bin")));
    EXPECT_EQ(writer.finish(), (std::vector<std::string>{folder.path("d.bin"), folder.path("d.idx")}));
    EXPECT_EQ(bytes_of(folder.path("d.bin")), little_endian({1, 2, 3, 4, 5}, 2));
    EXPECT_EQ(bytes_of(folder.path("d.idx")), std::string("MMIDIDX\0\0", 9) + little_endian({1}, 8) + "\x08" +
                                                  little_endian({2, 3}, 8) + little_endian({3, 2}, 4) +
                                                  little_endian({0, 6, 0, 1, 2}, 8));
    EXPECT_EQ(writer.documents(), 2);
    EXPECT_EQ(writer.tokens(), 5);
}

TEST(TokenWriter, LlmcByTheGoldenHeader) {
    ScratchFolder folder;
    TokenWriter narrow("llmc", folder.path("gpt2"), 50257);
    narrow.append(piece({1, 2, 3, 4, 50256}, {0}));
    narrow.finish();
    const std::string bytes = bytes_of(folder.path("gpt2.bin"));
    EXPECT_EQ(bytes.substr(0, 12), std::string("\x88\xd8\x34\x01\x01\0\0\0\x05\0\0\0", 12));
    EXPECT_EQ(bytes.substr(12, 1012), std::string(1012, '\0'));
    EXPECT_EQ(bytes.substr(1024), little_endian({1, 2, 3, 4, 50256}, 2));

    TokenWriter wide("llmc", folder.path("llama3"), 128256);
    wide.append(piece({128001, 7}, {0}));
    wide.finish();
    EXPECT_EQ(bytes_of(folder.path("llama3.bin")), llmc_file(20240801, 7, 2, {128001, 7}, 4));
}

// Megatron's rule is u16 below 65500, not 65536.
TEST(TokenWriter, WidthsFollowTheVocabulary) {
    ScratchFolder folder;
    const auto size = [&](const char* format, int64_t vocab) {
        TokenWriter writer(format, folder.path("w"), vocab);
        writer.append(piece({1}, {0}));
        writer.finish();
        std::filesystem::remove(folder.path("w.idx"));
        return std::filesystem::file_size(folder.path("w.bin"));
    };
    EXPECT_EQ(size("megatron", 65499), 2u);
    EXPECT_EQ(size("megatron", 65500), 4u);
    EXPECT_EQ(size("llmc", 65536), 1026u);
    EXPECT_EQ(size("llmc", 65537), 1028u);
    EXPECT_EQ(size("nanogpt", 65536), 2u);
    EXPECT_EQ(missing("nanogpt has ids of 16 bits, the tokenizer makes them up to 65536",
                      message_of<UsageError>([&] { size("nanogpt", 65537); })),
              "");
}

TEST(TokenWriter, MaskBeginsWhereItIsNeeded) {
    ScratchFolder folder;
    TokenWriter writer("nanogpt", folder.path("m"), 10);
    writer.append(piece({1, 2}, {0}));
    writer.append(piece({3, 4, 5}, {0}, {0, 0, 1}));
    writer.append(piece({6}, {0}));
    EXPECT_EQ(writer.finish().back(), folder.path("m.mask"));
    EXPECT_EQ(bytes_of(folder.path("m.mask")), std::string("\1\1\0\0\1\1", 6));
    EXPECT_EQ(writer.masked_tokens(), 2);
    const auto source = open_tokens({folder.path("m.bin")});
    EXPECT_TRUE(source->has_mask());
}

TEST(TokenWriter, LeavesNothingBehindAndTouchesNothingOfOthers) {
    ScratchFolder folder;
    { TokenWriter("megatron", folder.path("x"), 10).append(piece({1}, {0})); }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path("")), {}), 0);

    EXPECT_EQ(
        missing("hold no token", message_of<DataError>([&] { TokenWriter("llmc", folder.path("x"), 9).finish(); })),
        "");
    folder.write("x.mask", "1");
    EXPECT_EQ(
        missing("x.mask: is there already", message_of<UsageError>([&] { TokenWriter("llmc", folder.path("x"), 9); })),
        "");
    folder.write("y.idx", "1");
    EXPECT_EQ(missing("y.idx: is there already",
                      message_of<UsageError>([&] { TokenWriter("nanogpt", folder.path("y"), 9); })),
              "");
    EXPECT_EQ(missing("none/x.bin cannot be written: No such file or directory; choose a folder that is there",
                      message_of<UsageError>([&] { TokenWriter("llmc", folder.path("none/x"), 9); })),
              "");
}

// A token file names the tokenizer that made its ids, and a run with another one does not start.
TEST(TokenWriter, TheTokenizerOfAFileIsCompared) {
    const ScratchFolder folder;
    const std::string json = (std::filesystem::path(__FILE__).parent_path() / "../text/testdata/gpt2.json").string();
    const std::string other = (std::filesystem::path(__FILE__).parent_path() / "../text/testdata/qwen.json").string();
    const auto tokenizer = text::make_tokenizer(json);
    TokenWriter writer("megatron", folder.path("t"), tokenizer->vocab());
    writer.append({.ids = tokenizer->encode("a few words of text"), .begins = {0}});
    writer.finish();
    EXPECT_FALSE(read_tokenizer_identity(folder.path("t")).has_value());
    write_tokenizer_identity(folder.path("t"), {tokenizer->fingerprint(), tokenizer->description()});
    EXPECT_EQ(read_tokenizer_identity(folder.path("t.bin"))->fingerprint, tokenizer->fingerprint());
    spec::DataSpec data;
    data.train = {folder.path("t")};
    const auto warnings = [&](const std::string& named) {
        data.tokenizer = named;
        return open(data, 100000, 1).warnings;
    };
    EXPECT_TRUE(warnings(json).empty());
    ASSERT_EQ(warnings("bytes").size(), 1u);
    EXPECT_EQ(missing("was made with another tokenizer (byte-level BPE (gpt2)", warnings("bytes")[0]), "");
    EXPECT_EQ(missing("for which its ids mean other text; set data.tokenizer",
                      message_of<UsageError>([&] { warnings(other); })),
              "");
    folder.write("t.tokenizer", "no digest\n");
    EXPECT_EQ(missing("t.tokenizer: required: 16 hexadecimal", message_of<DataError>([&] { warnings(json); })), "");
}

}  // namespace
}  // namespace tutti::data
