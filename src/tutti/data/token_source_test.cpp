// data/token_source_test.cpp: each layout reads back what its own writer wrote, Megatron's from a golden file; errors
// name each damage and its offset, and hostile sizes are refused before anything is computed from them.
#include "tutti/data/token_source.h"

#include <gtest/gtest.h>

#include <array>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/data/testing/token_files.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

Ids all(const TokenSource& source) {
    Ids ids(to_size(source.size()));
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
    const std::vector<uint64_t> stars(249, 0x2a2a2a2a);  // the writer's placeholder for the header
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
    // A command that is shown can be copied, whatever the name of the file.
    const std::string compressed = folder.write("my text.zst", "\x28\xb5\x2f\xfd....");
    EXPECT_EQ(missing(concat("`tutti data tokenize '", compressed, "' --out PREFIX`"), open_error(compressed)), "");
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
    EXPECT_EQ(missing("must be one of auto, text, jsonl, megatron, nanogpt, llmc, llmq, got \"json\"",
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

std::string from_hex(std::string_view hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    return bytes;
}

// Documents [1, 2, 3] and [4, 5], u16, as Megatron's own writer makes them.
const std::string kBin = from_hex("01000200030004000500");
const std::string kIdx = from_hex(
    "4d4d49444944580000"
    "0100000000000000"
    "08"
    "0200000000000000"
    "0300000000000000"
    "03000000"
    "02000000"
    "0000000000000000"
    "0600000000000000"
    "0000000000000000"
    "0100000000000000"
    "0200000000000000");

std::vector<int64_t> begins(const TokenSource& source, int64_t begin, int64_t end) {
    std::vector<int64_t> found;
    source.document_begins(begin, end, found);
    return found;
}

std::string index_of(int code, const std::vector<uint64_t>& lengths, const std::vector<uint64_t>& offsets,
                     const std::vector<uint64_t>& documents) {
    return std::string("MMIDIDX\0\0", 9) + little_endian({1}, 8) + static_cast<char>(code) +
           little_endian({lengths.size(), documents.size()}, 8) + little_endian(lengths, 4) +
           little_endian(offsets, 8) + little_endian(documents, 8);
}

struct Megatron : testing::Test {
    ScratchFolder folder;
    std::string write(const std::string& bin, const std::string& idx) const {
        folder.write("d.bin", bin);
        folder.write("d.idx", idx);
        return folder.path("d");
    }
    std::string refused(const std::string& bin, const std::string& idx) const {
        const std::string prefix = write(bin, idx);
        return message_of<DataError>([&] { open_tokens({prefix}); });
    }
    // The golden index with `bytes` written at `offset`.
    std::string damaged(size_t offset, const std::string& bytes) const {
        std::string idx = kIdx;
        return refused(kBin, idx.replace(offset, bytes.size(), bytes));
    }
};

TEST_F(Megatron, GoldenFileByAnyOfItsNames) {
    const std::string prefix = write(kBin, kIdx);
    for (const char* end : {"", ".bin", ".idx"}) {
        const auto source = open_tokens({prefix + end}, end == std::string(".idx") ? "megatron" : "auto");
        EXPECT_EQ(all(*source), (Ids{1, 2, 3, 4, 5}));
        EXPECT_EQ(source->format(), "megatron");
        EXPECT_TRUE(source->knows_documents());
        EXPECT_EQ(begins(*source, 0, 5), (std::vector<int64_t>{3}));
        EXPECT_EQ(source->where(3), prefix + ".bin, token 3 (byte offset 6)");
    }
    EXPECT_EQ(missing("name the .bin or the prefix", message_of<DataError>([&] { open_tokens({prefix + ".idx"}); })),
              "");
}

TEST_F(Megatron, PrefixesJoinAndDocumentsMoveAlong) {
    const std::string prefix = write(kBin, kIdx);
    const auto source = open_tokens({prefix, prefix});
    EXPECT_EQ(all(*source), (Ids{1, 2, 3, 4, 5, 1, 2, 3, 4, 5}));
    EXPECT_EQ(begins(*source, 0, 10), (std::vector<int64_t>{3, 5, 8}));
    EXPECT_EQ(begins(*source, 3, 8), (std::vector<int64_t>{5}));
    EXPECT_EQ(begins(*source, 4, 6), (std::vector<int64_t>{5}));
}

// Two documents of several sequences, one without tokens, one of one token.
TEST_F(Megatron, DocumentsOfSeveralSequences) {
    const auto source = open_tokens(
        {write(from_hex("010203040506"), index_of(1, {2, 1, 0, 1, 2}, {0, 2, 3, 3, 4}, {0, 2, 3, 4, 4, 5}))});
    EXPECT_EQ(all(*source), (Ids{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(begins(*source, 0, 6), (std::vector<int64_t>{3, 4}));
}

TEST_F(Megatron, EveryWholeType) {
    const auto read = [&](int code, const std::string& bin, int width) {
        const auto count = static_cast<uint64_t>(bin.size()) / static_cast<uint64_t>(width);
        return all(*open_tokens({write(bin, index_of(code, {count}, {0}, {0, 1}))}));
    };
    EXPECT_EQ(read(1, from_hex("01ff"), 1), (Ids{1, 255}));
    EXPECT_EQ(read(2, from_hex("01ff"), 1), (Ids{1, -1}));
    EXPECT_EQ(read(3, from_hex("0100ffff"), 2), (Ids{1, -1}));
    EXPECT_EQ(read(4, from_hex("40e20100ffffffff"), 4), (Ids{123456, -1}));
    EXPECT_EQ(read(5, from_hex("40e20100000000000000000001000000"), 8), (Ids{123456, -1}));  // 2^32 fits nowhere
    EXPECT_EQ(read(8, from_hex("0100ffff"), 2), (Ids{1, 65535}));
}

TEST_F(Megatron, DamagedHeader) {
    EXPECT_EQ(missing("d.idx: a Megatron index begins with 34 bytes of header, the file has 33",
                      refused(kBin, kIdx.substr(0, 33))),
              "");
    EXPECT_EQ(missing("byte offset 0: a Megatron index begins with MMIDIDX", damaged(3, "X")), "");
    EXPECT_EQ(missing("byte offset 9: version must be 1, got 2", damaged(9, "\x02")), "");
    for (const char* code : {"\x06", "\x07"})
        EXPECT_EQ(missing("byte offset 17: type code " + std::to_string(code[0]) + " is of floating-point numbers",
                          damaged(17, code)),
                  "");
    EXPECT_EQ(missing("byte offset 17: type code must be 1 to 5 or 8, got 9", damaged(17, "\x09")), "");
    EXPECT_EQ(missing("byte offset 17: type code must be 1 to 5 or 8, got 0", damaged(17, std::string(1, '\0'))), "");
}

// Counts whose products overflow 64 bits, or that are one too large.
TEST_F(Megatron, HostileCounts) {
    for (const uint64_t count : {uint64_t{3}, uint64_t{7}, uint64_t{1} << 32, uint64_t{1} << 62, ~uint64_t{0},
                                 (~uint64_t{0}) / 12, (~uint64_t{0}) / 12 + 1}) {
        const auto sequences = damaged(18, little_endian({count}, 8));
        EXPECT_EQ(missing("d.idx: ", sequences), "") << count;
        const auto documents = damaged(26, little_endian({count == 3 ? 4 : count}, 8));
        EXPECT_EQ(missing("d.idx: ", documents), "") << count;
    }
    EXPECT_EQ(missing("byte offset 18: has no sequence", refused(kBin, index_of(8, {}, {}, {0, 0}))), "");
    EXPECT_EQ(missing("byte offset 26: the document index must have an entry more",
                      refused("\x01", index_of(1, {1}, {0}, {0}))),
              "");
    EXPECT_EQ(missing("need 82 bytes, the file has 81; is the copy complete?", refused(kBin, kIdx.substr(0, 81))), "");
    EXPECT_EQ(missing("need 82 bytes, the file has 83; was something appended?", refused(kBin, kIdx + "x")), "");
    EXPECT_EQ(missing("byte offset 82: has sequence modes", refused(kBin, kIdx + std::string(2, '\0'))), "");
}

TEST_F(Megatron, DamagedSequences) {
    EXPECT_EQ(missing("byte offset 34: sequence 0 has the length -1", damaged(34, "\xff\xff\xff\xff")), "");
    EXPECT_EQ(missing("byte offset 34: sequence 0 of 2147483647 tokens ends at byte 4294967294",
                      damaged(34, "\xff\xff\xff\x7f")),
              "");
    EXPECT_EQ(missing("byte offset 38: sequence 1 of 3 tokens ends at byte 12, but", damaged(38, "\x03")), "");
    EXPECT_EQ(missing("byte offset 42: sequence 0 must begin at byte 0", damaged(42, "\x02")), "");
    EXPECT_EQ(missing("byte offset 50: sequence 1 must begin at byte 6", damaged(50, "\x04")), "");
    EXPECT_EQ(missing("byte offset 50: sequence 1 must begin at byte 6", damaged(50, std::string(8, '\xff'))), "");
    EXPECT_EQ(missing("d.bin: byte offset 8: the sequences of", damaged(38, "\x01")), "");
    EXPECT_EQ(missing("d.bin: byte offset 10: the sequences of", refused(kBin + "xy", kIdx)), "");
    EXPECT_EQ(missing("ends at byte 10, but", refused(kBin.substr(0, 9), kIdx)), "");
}

TEST_F(Megatron, DamagedDocuments) {
    EXPECT_EQ(missing("byte offset 58: the document index must begin with 0, got 1", damaged(58, "\x01")), "");
    EXPECT_EQ(missing("byte offset 66: document 1 must begin at a sequence from 0 to 2, got 3", damaged(66, "\x03")),
              "");
    EXPECT_EQ(missing("byte offset 66: document 1 must begin at a sequence from 0 to 2, got -1",
                      damaged(66, std::string(8, '\xff'))),
              "");
    EXPECT_EQ(missing("byte offset 74: the document index must end with the number of sequences, 2, got 1",
                      damaged(74, "\x01")),
              "");
    EXPECT_EQ(missing("byte offset 74: document 2 must begin at a sequence from 2 to 2, got 1",
                      damaged(66, little_endian({2, 1}, 8))),
              "");
}

// With one or a few bytes changed, the file is refused with a DataError or reads as the changed bytes say.
TEST_F(Megatron, MutatedIndexesAreReadOrRefused) {
    // Values that are legal in some field, largest or negative.
    constexpr std::array<int, 8> kValues = {0, 1, 2, 3, 6, 8, 0x7f, 0xff};
    folder.write("d.bin", kBin);
    int opened = 0;
    for (uint64_t i = 0; i < 600; ++i) {
        const auto draw = [&](uint64_t what, uint64_t n) {
            return to_size(uniform_below(random_key(i, "mutations"), what, n));
        };
        std::string idx = kIdx;
        for (uint64_t m = 0; m <= draw(0, 3); ++m)
            idx[draw(2 * m + 1, idx.size())] = static_cast<char>(kValues[draw(2 * m + 2, kValues.size())]);
        if (i % 7 == 0) idx.resize(draw(10, idx.size()) + 1);
        folder.write("d.idx", idx);
        const std::string prefix = folder.path("d");
        try {
            const auto source = open_tokens({prefix});
            EXPECT_LE(all(*source).size(), kBin.size());
            for (const int64_t begin : begins(*source, 0, source->size())) EXPECT_LT(begin, source->size());
            ++opened;
        } catch (const DataError&) {
        }
    }
    EXPECT_GT(opened, 0);    // zeros over zeros, another type, another beginning of a document
    EXPECT_LT(opened, 300);  // most are damage
}

TEST_F(Megatron, MissingHalves) {
    folder.write("alone.idx", kIdx);
    EXPECT_EQ(missing("alone.bin: cannot open", message_of<DataError>([&] { open_tokens({folder.path("alone")}); })),
              "");
    folder.write("b.bin", kBin);
    EXPECT_EQ(
        missing("b.idx: cannot open", message_of<DataError>([&] { open_tokens({folder.path("b")}, "megatron"); })), "");
}

TEST_F(Megatron, MaskBesideTheIds) {
    const std::string prefix = write(kBin, kIdx);
    folder.write("d.mask", std::string("\0\1\1\0\1", 5));
    const auto source = open_tokens({prefix});
    ASSERT_TRUE(source->has_mask());
    std::vector<uint8_t> mask(4);
    source->read_mask(1, mask);
    EXPECT_EQ(mask, (std::vector<uint8_t>{1, 1, 0, 1}));

    folder.write("d.mask", std::string("\0\1\2\0\1", 5));
    const auto bad = open_tokens({prefix});
    EXPECT_EQ(missing("d.mask: byte offset 2: a mask has bytes 0 and 1, got 2",
                      message_of<DataError>([&] { bad->read_mask(1, mask); })),
              "");
    folder.write("d.mask", "1234");
    EXPECT_EQ(missing("d.mask: must have one byte for each of the 5 tokens of",
                      message_of<DataError>([&] { open_tokens({prefix}); })),
              "");
}

}  // namespace
}  // namespace tutti::data
