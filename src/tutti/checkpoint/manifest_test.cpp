// Digests against published values; the manifest: what is written comes back, and any change to it is noticed.
#include "tutti/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/checkpoint/testing/contains.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Manifest example() {
    FileRecord file{"rank-00000-of-00001.safetensors", kChunkBytes + 1, {1, 0xfedcba9876543210u}, {3, 4}};
    return {12000, "c0ffee", "data \xc3\xa9", "{\"loss\": 1.5, \"quote\": \"\\\"\"}", {file, {"empty", 0, {}, {5, 6}}}};
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
    ASSERT_EQ(with_new_digest(text), text);  // the tests below rely on it
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
    const std::string newer = replaced(write_manifest(example()), "\"version\": 1", "\"version\": 2");
    EXPECT_EQ(error_of<DamagedError>(write_manifest(example())), "accepted");
    try {
        parse_manifest(newer, "M");
        FAIL();
    } catch (const DamagedError&) {
        FAIL() << "a newer version must not be renamed to .corrupt";
    } catch (const DataError& error) {
        EXPECT_TRUE(contains(error.what(), "version 2; this Tutti reads tutti-checkpoint version 1"));
    }
}

// With a right digest: made by somebody who knows the format.
TEST(Manifest, RefusesHostileContent) {
    const std::string text = write_manifest(example());
    const auto error = [&](const std::string& from, const std::string& to) {
        return error_of<DamagedError>(replaced(text, from, to));
    };
    EXPECT_TRUE(contains(error("rank-00000-of-00001.safetensors", "../../etc/passwd"), "not a file name"));
    EXPECT_TRUE(contains(error("rank-00000-of-00001.safetensors", "MANIFEST.json"), "not a file name"));
    EXPECT_TRUE(contains(error("\"empty\"", "\"rank-00000-of-00001.safetensors\""), "comes twice"));
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

TEST(Manifest, RefusesToWriteWhatItCouldNotRead) {
    Manifest manifest = example();
    manifest.state = "\xff";
    EXPECT_THROW(write_manifest(manifest), Error);
    manifest = example();
    manifest.files[0].name = "a/b";
    EXPECT_THROW(write_manifest(manifest), Error);
    manifest = example();
    manifest.state.assign(static_cast<size_t>(kMaxManifestBytes), ' ');
    EXPECT_THROW(write_manifest(manifest), Error);
}

}  // namespace
}  // namespace tutti::checkpoint
