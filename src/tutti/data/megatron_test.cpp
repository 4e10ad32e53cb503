// data/megatron_test.cpp: the golden file is read as Megatron meant it, every id type too; each damage of the index is
// named with its place, and hostile sizes are refused before anything is computed from them.
#include <gtest/gtest.h>

#include <array>

#include "tutti/base/philox.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/token_source.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

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

Ids all(const TokenSource& source) {
    Ids ids(static_cast<size_t>(source.size()));
    source.read(0, ids);
    return ids;
}
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

// Counts whose products overflow 64 bits, or that only just do not fit.
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

// Whatever one or a few bytes say, the file is refused with a DataError or reads as what it then says.
TEST_F(Megatron, MutatedIndexesAreReadOrRefused) {
    // Values that are likely to be legal somewhere, or to be the largest or negative.
    constexpr std::array<int, 8> kValues = {0, 1, 2, 3, 6, 8, 0x7f, 0xff};
    folder.write("d.bin", kBin);
    int opened = 0;
    for (uint64_t i = 0; i < 600; ++i) {
        const auto draw = [&](uint64_t what, uint64_t n) {
            return static_cast<size_t>(uniform_below(random_key(i, "mutations"), what, n));
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
