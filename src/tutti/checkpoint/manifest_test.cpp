// Digests against published values; a manifest reads back what was written, and every change to it is detected.
#include "tutti/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint::manifest_test {
namespace {

using testing::contains;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Manifest example() {
    FileRecord file{"rank-00000-of-00001.safetensors", kChunkBytes + 1, {1, 0xfedcba9876543210u}, {3, 4}};
    Manifest manifest{
        12000, "c0ffee", "data \xc3\xa9", "{\"loss\": 1.5, \"quote\": \"\\\"\"}", {file, {"empty", 0, {}, {5, 6}}}, {}};
    manifest.tensors = {{"h.0.w", DType::bf16, {4, 6}, {{0, {{0, 0}, {1, 6}}}, {1, {{1, 2}, {3, 4}}}}},
                        {"scale", DType::f32, {}, {{1, {{}, {}}}}}};
    return manifest;
}

std::string with_new_digest(std::string text) {
    const size_t members = text.size() - 32 - 4 - 14;
    text.replace(text.size() - 36, 32, to_hex(xxh3_128(bytes_of(std::string_view(text).substr(0, members)))));
    return text;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return with_new_digest(text.replace(text.find(from), from.size(), to));
}

template <class E>
std::string error_of(const std::string& text) {
    try {
        parse_manifest(text, "M");
    } catch (const E& error) {
        return error.what();
    }
    return "accepted";
}

// xxHash 0.8 specification and its command line: `printf '' | xxhsum -H3`, `-H2`.
TEST(Digest, EqualsThePublishedValues) {
    EXPECT_EQ(to_hex(xxh3_64({})), "2d06800538d394c2");
    EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
    EXPECT_EQ(to_hex(xxh3_64(bytes_of("abc"))), "78af5f94892f3950");
    EXPECT_EQ(to_hex(xxh3_128(bytes_of("abc"))), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, OfPiecesIsThatOfTheWhole) {
    const std::string text(10'000, 'x');
    Hasher128 hasher;
    for (size_t at = 0; at < text.size(); at += 777)
        hasher.update(bytes_of(text).subspan(at, std::min<size_t>(777, text.size() - at)));
    EXPECT_EQ(hasher.digest(), xxh3_128(bytes_of(text)));
}

TEST(Digest, HexIsLowerCaseAndComplete) {
    EXPECT_EQ(hex64_from("00000000000000ff"), 255u);
    EXPECT_FALSE(hex64_from("00000000000000FF"));
    EXPECT_FALSE(hex64_from("0000000000000ff"));
    EXPECT_EQ(hex128_from("0000000000000001000000000000000a"), (Digest128{1, 10}));
    EXPECT_FALSE(hex128_from("0000000000000001000000000000000g"));
}

TEST(Manifest, ComesBackAsWritten) {
    const std::string text = write_manifest(example());
    EXPECT_EQ(parse_manifest(text, "M"), example());
    EXPECT_TRUE(contains(text, "\"step\": 12000"));
    EXPECT_TRUE(contains(text, "\"fedcba9876543210\""));
    EXPECT_TRUE(contains(text, "\"1:1,2:3,4\""));
    ASSERT_EQ(with_new_digest(text), text);  // the tests below rely on it
}

TEST(Manifest, WithoutTensorsIsOfVersionOne) {
    Manifest manifest = example();
    manifest.tensors.clear();
    EXPECT_TRUE(contains(write_manifest(manifest), "\"version\": 1,"));
    EXPECT_EQ(parse_manifest(write_manifest(manifest), "M"), manifest);
}

TEST(Manifest, EveryFlippedBitAndEveryTruncationIsDamage) {
    const std::string text = write_manifest(example());
    for (size_t at = 0; at < text.size(); ++at) {
        EXPECT_THROW(parse_manifest(text.substr(0, at), "M"), DamagedError) << at;
        for (int bit = 0; bit < 8; ++bit) {
            std::string flipped = text;
            flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
            EXPECT_THROW(parse_manifest(flipped, "M"), DamagedError) << at << " bit " << bit;
        }
    }
    EXPECT_THROW(parse_manifest(text + " ", "M"), DamagedError);
}

TEST(Manifest, ANewerVersionIsNotDamage) {
    const std::string newer = replaced(write_manifest(example()), "\"version\": 2", "\"version\": 3");
    EXPECT_EQ(error_of<DamagedError>(write_manifest(example())), "accepted");
    try {
        parse_manifest(newer, "M");
        FAIL();
    } catch (const DamagedError&) {
        FAIL() << "a newer version must not be renamed to .corrupt";
    } catch (const DataError& error) {
        EXPECT_TRUE(contains(error.what(), "version 3; this Tutti reads tutti-checkpoint up to version 2"));
    }
}

// With a correct digest, as a program that knows the format could write.
TEST(Manifest, RefusesHostileContent) {
    const std::string text = write_manifest(example());
    const auto error = [&](const std::string& from, const std::string& to) {
        return error_of<DamagedError>(replaced(text, from, to));
    };
    EXPECT_TRUE(contains(error("rank-00000-of-00001.safetensors", "../../etc/passwd"), "not a file name"));
    EXPECT_TRUE(contains(error("rank-00000-of-00001.safetensors", "MANIFEST.json"), "not a file name"));
    EXPECT_TRUE(contains(error("\"empty\"", "\"rank-00000-of-00001.safetensors\""), "occurs twice"));
    EXPECT_TRUE(contains(error("4194305", "4194304"), "chunk digests"));
    EXPECT_TRUE(contains(error("4194305", "9223372036854775807"), "chunk digests"));
    EXPECT_TRUE(contains(error("4194305", "99999999999999999999"), "M: "));
    EXPECT_TRUE(contains(error("4194305", "4194305.0"), "not written as Tutti writes"));
    EXPECT_TRUE(contains(error("\"step\": 12000", "\"step\": -1"), "negative"));
    EXPECT_TRUE(contains(error("\"step\": 12000", "\"step\": 12000,\n \"step\": 12000"), "M: "));
    EXPECT_TRUE(contains(error("\"step\": 12000", "\"step\": 12000,\n \"more\": 1"), "not written as"));
    EXPECT_TRUE(contains(error("\"step\": 12000", "\"step\": \"12000\""), "M: "));
    EXPECT_TRUE(contains(error("\"step\": 12000", "\"step\": [[[[[[[[[]]]]]]]]]"), "nested"));
    EXPECT_TRUE(contains(error("fedcba9876543210", "FEDCBA9876543210"), "hexadecimal"));
}

TEST(Manifest, RefusesHostileTensors) {
    const std::string text = write_manifest(example());
    const auto error = [&](const std::string& from, const std::string& to) {
        return error_of<DamagedError>(replaced(text, from, to));
    };
    EXPECT_TRUE(contains(error("\"scale\"", "\"h.0.w\""), "tensor 'h.0.w' occurs twice"));
    EXPECT_TRUE(contains(error("\"bf16\"", "\"bf17\""), "unknown type"));
    EXPECT_TRUE(contains(error("\"4,6\"", "\"4,-6\""), "has the shape (4, -6)"));
    EXPECT_TRUE(contains(error("\"4,6\"", "\"4294967296,4294967296\""), "has the shape"));
    EXPECT_TRUE(contains(error("\"4,6\"", "\"1,1,1,1,1,1,1\""), "has the shape"));
    EXPECT_TRUE(contains(error("\"4,6\"", "\"4,6:\""), "has the shape"));
    EXPECT_TRUE(contains(error("\"4,6\"", "\"4,06\""), "not written as Tutti writes"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "2:1,2:3,4"), "cannot have the block 2:1,2:3,4 in 2 files"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "-1:1,2:3,4"), "cannot have the block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:2,2:3,4"), "cannot have the block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1,2:3,9223372036854775807"), "cannot have the block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1:3,4"), "cannot have the block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1,2"), "is not a block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1,2:3,4x"), "is not a block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1,2:3,4:"), "is not a block"));
    EXPECT_TRUE(contains(error("1:1,2:3,4", "1:1,2:3,99999999999999999999"), "is not a block"));
}

TEST(Manifest, PartsOfRanksBecomeOne) {
    const auto part = [](const std::string& file, std::vector<TensorRecord> tensors) {
        Manifest manifest;
        manifest.step = 5;
        manifest.files = {{file, 0, {}, {}}};
        manifest.tensors = std::move(tensors);
        return manifest;
    };
    const Block top{{0, 0}, {1, 3}}, bottom{{1, 0}, {1, 3}};
    Manifest first = part("a", {{"w", DType::f32, {2, 3}, {{0, top}}}});
    first.state = "state";
    const Manifest second =
        part("b", {{"v", DType::f32, {7}, {{0, {{0}, {7}}}}}, {"w", DType::f32, {2, 3}, {{0, bottom}}}});
    const Manifest whole = merge({first, second});
    EXPECT_EQ(whole.state, "state");
    ASSERT_EQ(whole.files.size(), 2u);
    EXPECT_EQ(whole.tensors, (std::vector<TensorRecord>{{"w", DType::f32, {2, 3}, {{0, top}, {1, bottom}}},
                                                        {"v", DType::f32, {7}, {{1, {{0}, {7}}}}}}));
    EXPECT_NO_THROW(check_complete(whole));
    EXPECT_THROW(check_complete(first), Error);                  // half of w
    EXPECT_THROW(check_complete(merge({first, first})), Error);  // twice
    EXPECT_THROW(merge({first, part("b", {{"w", DType::f32, {3, 2}, {}}})}), Error);
    EXPECT_THROW(merge({first, part("b", {{"w", DType::bf16, {2, 3}, {}}})}), Error);
    Manifest later = second;
    later.step = 6;
    EXPECT_THROW(merge({first, later}), Error);
}

TEST(Manifest, RefusesToWriteWhatItCouldNotRead) {
    Manifest manifest = example();
    manifest.state = "\xff";
    EXPECT_THROW(write_manifest(manifest), Error);
    manifest = example();
    manifest.files[0].name = "a/b";
    EXPECT_THROW(write_manifest(manifest), Error);
    manifest = example();
    manifest.state.assign(to_size(kMaxManifestBytes), ' ');
    EXPECT_THROW(write_manifest(manifest), Error);
}

TEST(Manifest, NamesSayWhereABlockBegins) {
    EXPECT_EQ(entry_name("w", {4, 6}, mesh::whole_block({4, 6})), "w");
    EXPECT_EQ(entry_name("w", {4, 6}, {{0, 0}, {2, 6}}), "w@0,0");
    EXPECT_EQ(entry_name("w", {4, 6}, {{2, 3}, {1, 3}}), "w@2,3");
    EXPECT_EQ(entry_name("scalar", {}, mesh::whole_block({})), "scalar");
}

}  // namespace
}  // namespace tutti::checkpoint::manifest_test
