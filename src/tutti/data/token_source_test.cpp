// data/token_source_test.cpp: each layout is read as its writer meant it; each damage is named with its place.
#include "tutti/data/token_source.h"

#include <gtest/gtest.h>

#include "tutti/data/testing/token_files.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

Ids all(const TokenSource& source) {
    Ids ids(static_cast<size_t>(source.size()));
    source.read(0, ids);
    return ids;
}

std::string open_error(const std::string& path, std::string_view format = "auto") {
    return message_of<DataError>([&] { open_tokens({path}, format); });
}

TEST(TokenSource, TextIsItsBytes) {
    ScratchFolder folder;
    const auto source = open_tokens({folder.write("a.txt", "Aa\n\xc3\xa9")});
    EXPECT_EQ(all(*source), (Ids{65, 97, 10, 0xc3, 0xa9}));
    EXPECT_EQ(source->format(), "text");
    EXPECT_EQ(source->vocab_bound(), 256);
    EXPECT_EQ(source->description(), "text, 5 tokens: " + folder.path("a.txt"));
}

TEST(TokenSource, FilesJoinInOrderWithNothingBetween) {
    ScratchFolder folder;
    const auto source = open_tokens(
        {folder.write("b.md", "xy"), folder.write("a", "z"), folder.write("c.txt", "123"), folder.path("a")});
    EXPECT_EQ(all(*source), (Ids{'x', 'y', 'z', '1', '2', '3', 'z'}));
    Ids middle(4);
    source->read(1, middle);
    EXPECT_EQ(middle, (Ids{'y', 'z', '1', '2'}));
    EXPECT_EQ(source->where(0), folder.path("b.md") + ", token 0 (byte offset 0)");
    EXPECT_EQ(source->where(2), folder.path("a") + ", token 0 (byte offset 0)");
    EXPECT_EQ(source->where(5), folder.path("c.txt") + ", token 2 (byte offset 2)");
    EXPECT_EQ(missing("and 1 more files", source->description()), "");
}

TEST(TokenSource, NanoGptIsU16WithoutHeader) {
    ScratchFolder folder;
    const auto source = open_tokens({folder.write("train.bin", std::string("\x01\x00\x50\xc4\xff\xff", 6))});
    EXPECT_EQ(all(*source), (Ids{1, 50256, 65535}));
    EXPECT_EQ(source->format(), "nanogpt");
    EXPECT_EQ(source->vocab_bound(), 65536);
    EXPECT_EQ(source->where(2), folder.path("train.bin") + ", token 2 (byte offset 4)");
}

// Header bytes of llm.c's own writer, for 5 tokens.
TEST(TokenSource, LlmcU16ByGoldenHeader) {
    ScratchFolder folder;
    std::string bytes("\x88\xd8\x34\x01\x01\x00\x00\x00\x05\x00\x00\x00", 12);
    bytes.resize(1024, '\0');
    bytes += std::string("\x50\xc4\x01\x00\x02\x00\x03\x00\x00\x01", 10);
    const auto source = open_tokens({folder.write("tiny_train.bin", bytes)});
    EXPECT_EQ(all(*source), (Ids{50256, 1, 2, 3, 256}));
    EXPECT_EQ(source->format(), "llmc-u16");
    EXPECT_EQ(source->where(1), folder.path("tiny_train.bin") + ", token 1 (byte offset 1026)");
}

TEST(TokenSource, LlmcU32ByGoldenMagic) {
    ScratchFolder folder;
    std::string bytes("\xa1\xd9\x34\x01\x07\x00\x00\x00\x02\x00\x00\x00", 12);
    bytes.resize(1024, '\0');
    bytes += std::string("\x01\xf4\x01\x00\xff\xff\xff\xff", 8);
    const auto source = open_tokens({folder.write("llama3.bin", bytes)});
    EXPECT_EQ(all(*source), (Ids{128001, -1}));
    EXPECT_EQ(source->format(), "llmc-u32");
    EXPECT_EQ(source->vocab_bound(), int64_t{1} << 32);
    EXPECT_EQ(source->where(1), folder.path("llama3.bin") + ", token 1 (byte offset 1028)");
}

std::string llmq_file(const std::vector<uint64_t>& words, const std::vector<uint64_t>& ids, const std::string& behind) {
    std::string bytes = "BIN.TOK\n" + little_endian(words, 4);
    bytes.resize(1024, '\0');
    return bytes + little_endian(ids, 4) + behind;
}

// As scripts/tokenize_data.py of llmq writes them: numpy.packbits(mask, bitorder="little") behind the ids.
TEST(TokenSource, LlmqWithAndWithoutAMask) {
    ScratchFolder folder;
    const std::vector<uint64_t> ids = {1, 50303, 3, 4, 5, 6, 7, 8, 9, 10};
    const std::vector<uint64_t> stars(249, 0x2a2a2a2a);  // what its writer reserves the header with
    std::vector<uint64_t> first = {1, 4, 10};
    first.insert(first.end(), stars.begin(), stars.end());
    const auto plain = open_tokens({folder.write("a.bin", llmq_file(first, ids, ""))});
    EXPECT_EQ(all(*plain), (Ids{1, 50303, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(plain->format(), "llmq");
    EXPECT_FALSE(plain->has_mask());
    EXPECT_EQ(plain->where(2), folder.path("a.bin") + ", token 2 (byte offset 1032)");
    // 0 0 1 1 0 1 1 1 | 0 1
    const auto path = folder.write("b.bin", llmq_file({2, 4, 10, 50304, 1}, ids, "\xec\x02"));
    const auto masked = open_tokens({path, folder.path("a.bin"), path}, "llmq");
    EXPECT_EQ(masked->size(), 30);
    EXPECT_TRUE(masked->has_mask());
    std::vector<uint8_t> mask(25);
    masked->read_mask(3, mask);
    EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1}));
}

TEST(TokenSource, LlmqDamage) {
    ScratchFolder folder;
    const auto error = [&](const std::string& bytes, std::string_view format = "auto") {
        return open_error(folder.write("t.bin", bytes), format);
    };
    EXPECT_EQ(missing("begins with \"BIN.TOK\", this one does not", error(std::string(2000, '\1'), "llmq")), "");
    EXPECT_EQ(missing("header of 1024 bytes, the file has 8", error("BIN.TOK\n")), "");
    EXPECT_EQ(
        missing("byte offset 8: llmq token files have version 1 or 2, got 3", error(llmq_file({3, 4, 1}, {1}, ""))),
        "");
    EXPECT_EQ(missing("byte offset 12: llmq ids have 4 bytes, the header says 2", error(llmq_file({2, 2, 1}, {1}, ""))),
              "");
    EXPECT_EQ(
        missing("byte offset 16: the header counts 2 tokens, so the file must have 1032 bytes, it has 1028; is the",
                error(llmq_file({2, 4, 2}, {1}, ""))),
        "");
    EXPECT_EQ(missing("counts 1 tokens with a mask, so the file must have 1029 bytes, it has 1028",
                      error(llmq_file({2, 4, 1, 9, 1}, {1}, ""))),
              "");
    EXPECT_EQ(missing("was something appended?", error(llmq_file({2, 4, 1, 9, 0}, {1}, "x"))), "");
    EXPECT_EQ(missing("whether there is a mask is 0 or 1, got 7", error(llmq_file({2, 4, 1, 9, 7}, {1}, ""))), "");
    EXPECT_EQ(missing("counts 0 tokens", error(llmq_file({2, 4, 0}, {}, ""))), "");
    EXPECT_EQ(
        missing("has the header of an llmq file; set data.format", error(llmq_file({2, 4, 1}, {1}, ""), "nanogpt")),
        "");
}

TEST(TokenSource, NanoGptDamage) {
    ScratchFolder folder;
    const auto odd = open_error(folder.write("odd.bin", "12345"));
    EXPECT_EQ(missing(folder.path("odd.bin"), odd), "");
    EXPECT_EQ(missing("size must be even, the file has 5 bytes (one is left at byte offset 4)", odd), "");
    const auto llmc = folder.write("llmc.bin", llmc_file(20240520, 1, 2, {5, 6}, 2));
    EXPECT_EQ(missing("header of an llm.c file (magic 20240520)", open_error(llmc, "nanogpt")), "");
}

TEST(TokenSource, LlmcDamage) {
    ScratchFolder folder;
    const auto version = open_error(folder.write("version.bin", llmc_file(20240520, 7, 2, {5, 6}, 2)));
    EXPECT_EQ(
        missing(folder.path("version.bin") + ": byte offset 4: magic 20240520 goes with version 1, got 7", version),
        "");
    const auto other = open_error(folder.write("v.bin", llmc_file(20240801, 1, 1, {5}, 4)));
    EXPECT_EQ(missing("goes with version 7, got 1", other), "");

    const auto magic = open_error(folder.write("magic.bin", llmc_file(12345678, 1, 2, {5, 6}, 2)), "llmc");
    EXPECT_EQ(
        missing(
            "byte offset 0: the magic number of llm.c tokens is 20240520 (u16 ids) or 20240801 (u32 ids), got 12345678",
            magic),
        "");

    const auto cut = open_error(folder.write("cut.bin", llmc_file(20240520, 1, 3, {5, 6}, 2)));
    EXPECT_EQ(missing("byte offset 8: the header counts 3 tokens, so the file must have 1030 bytes, it has 1028", cut),
              "");
    const auto longer = open_error(folder.write("long.bin", llmc_file(20240801, 7, 1, {5, 6}, 4)));
    EXPECT_EQ(missing("counts 1 tokens, so the file must have 1028 bytes, it has 1032", longer), "");
    EXPECT_EQ(missing("counts 0 tokens", open_error(folder.write("none.bin", llmc_file(20240520, 1, 0, {}, 2)))), "");

    const std::string only_magic("\x88\xd8\x34\x01", 4);
    EXPECT_EQ(missing("header of 1024 bytes, the file has 4", open_error(folder.write("short.bin", only_magic))), "");
    EXPECT_EQ(missing("header of 1024 bytes, the file has 2", open_error(folder.write("tiny.bin", "ab"), "llmc")), "");
}

TEST(TokenSource, AutoRefusesWhatWouldBeNoise) {
    ScratchFolder folder;
    const auto wide = open_error(folder.write("utf16.txt", std::string("h\0i\0", 4)));
    EXPECT_EQ(missing("byte offset 1: a zero byte, so this is not plain text", wide), "");
    EXPECT_EQ(open_tokens({folder.path("utf16.txt")}, "text")->size(), 4);

    EXPECT_EQ(missing("zip archive", open_error(folder.write("model.bin", "PK\x03\x04...."))), "");
    EXPECT_EQ(missing("gzip", open_error(folder.write("corpus.txt.gz", "\x1f\x8b\x08...."))), "");
    EXPECT_EQ(missing("llm.c evaluation file", open_error(folder.write("eval.bin", llmc_file(20240522, 1, 1, {1}, 2)))),
              "");

    folder.write("megatron.idx", "MMIDIDX");
    EXPECT_EQ(missing("a Megatron index begins with 34 bytes", open_error(folder.write("megatron.bin", "1234"))), "");
    EXPECT_EQ(open_tokens({folder.path("megatron.bin")}, "nanogpt")->size(), 2);
}

TEST(TokenSource, UsageErrors) {
    ScratchFolder folder;
    const auto text = folder.write("a.txt", "abc"), tokens = folder.write("b.bin", "ab");
    const auto mixed = message_of<UsageError>([&] { open_tokens({text, tokens}); });
    EXPECT_EQ(missing(tokens + ": is nanogpt data, but " + text + " is text", mixed), "");
    EXPECT_EQ(missing("must be auto, text, jsonl, megatron, nanogpt, llmc or llmq, got \"json\"",
                      message_of<UsageError>([&] { open_tokens({text}, "json"); })),
              "");
    EXPECT_EQ(missing("no data file is named", message_of<UsageError>([] { open_tokens({}); })), "");
}

TEST(TokenSource, ReadsOutsideAreRefused) {
    ScratchFolder folder;
    const auto source = open_tokens({folder.write("a.txt", "abcdef")});
    Ids two(2);
    source->read(4, two);
    EXPECT_EQ(two, (Ids{'e', 'f'}));
    EXPECT_EQ(missing("tokens [5, 7) of 6", message_of<Error>([&] { source->read(5, two); })), "");
    EXPECT_EQ(missing("tokens [-1, 1) of 6", message_of<Error>([&] { source->read(-1, two); })), "");
    source->read(6, std::span<int32_t>());  // nothing, at the end
}

TEST(Fingerprint, FollowsTheTokensAndNothingElse) {
    ScratchFolder folder;
    const auto of = [](const std::vector<std::string>& paths) { return open_tokens(paths)->fingerprint(); };
    const auto original = of({folder.write("a.txt", "abcdef")});
    EXPECT_EQ(of({folder.write("renamed.md", "abcdef")}), original);
    EXPECT_EQ(of({folder.write("1.txt", "abc"), folder.write("2.txt", "def")}), original);
    EXPECT_EQ(of({folder.write("u16.bin", little_endian({'a', 'b', 'c', 'd', 'e', 'f'}, 2))}), original);
    EXPECT_NE(of({folder.write("b.txt", "abcdeF")}), original);
    EXPECT_NE(of({folder.write("c.txt", "abcde")}), original);
    EXPECT_NE(of({folder.write("d.txt", "abcdeff")}), original);
    EXPECT_NE(of({folder.path("2.txt"), folder.path("1.txt")}), original);
}

TEST(Fingerprint, OfALargeFileSeesBothEnds) {
    ScratchFolder folder;
    std::string content(20'000'000, 'a');
    const auto of = [&] { return open_tokens({folder.write("large.txt", content)})->fingerprint(); };
    const auto original = of();
    for (size_t at : {size_t{0}, content.size() - 1}) {
        content[at] = 'b';
        EXPECT_NE(of(), original) << "byte " << at;
        content[at] = 'a';
    }
    EXPECT_EQ(of(), original);
}

TEST(VisitSample, CoversAllOfASmallRowOnce) {
    ScratchFolder folder;
    const auto source = open_tokens({folder.write("a.txt", std::string(100'000, 'a'))});
    int64_t next = 10;
    visit_sample(*source, 10, 99'999, [&](int64_t at, std::span<const int32_t> ids) {
        EXPECT_EQ(at, next);
        next = at + static_cast<int64_t>(ids.size());
    });
    EXPECT_EQ(next, 99'999);
}

}  // namespace
}  // namespace tutti::data
