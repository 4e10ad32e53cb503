// data/text_stream_test.cpp: compressed texts are those that were compressed, or an error with file and offset; tokens
// of a text do not depend on how it is stored. zlib's and Zstandard's own compressors are the reference.
#include "tutti/data/text_stream.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <random>

#include "tutti/base/to_size.h"
#include "tutti/data/encode_files.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/text_tokens.h"
#include "tutti/text/bpe_trainer.h"
#include "tutti/text/byte_level.h"

namespace tutti::data {
namespace {

using Random = std::mt19937_64;

std::string gzip_member(std::string_view text, int level) {
    z_stream z{};
    EXPECT_EQ(deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(deflateBound(&z, text.size()), '\0');
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.resize(out.size() - z.avail_out);
    deflateEnd(&z);
    return out;
}

std::string zstandard_frame(std::string_view text, int level) {
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    std::string out(ZSTD_compressBound(text.size()), '\0');
    const size_t size = ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size());
    EXPECT_FALSE(ZSTD_isError(size));
    out.resize(size);
    ZSTD_freeCCtx(context);
    return out;
}

constexpr std::array<const char*, 2> kEndings = {".gz", ".zst"};

// In up to `parts` members or frames, some of them of no text.
std::string compressed(std::string_view text, const std::string& ending, Random& random, int parts) {
    std::string out;
    for (; parts > 0; --parts) {
        const size_t size = parts == 1 ? text.size() : random() % (text.size() + 1);
        const int level = static_cast<int>(random() % 10);
        out +=
            ending == ".gz" ? gzip_member(text.substr(0, size), level) : zstandard_frame(text.substr(0, size), level);
        text.remove_prefix(size);
    }
    return out;
}

std::string read_all(const std::string& path, Random& random) {
    const auto stream = open_text_stream(path);
    std::string text;
    for (;;) {
        std::string part(1 + random() % (random() % 8 == 0 ? 1'000'000 : 5'000), '\0');
        const size_t got = stream->read(part.data(), part.size());
        if (got == 0) break;
        text.append(part, 0, got);
    }
    EXPECT_EQ(stream->stored(), static_cast<int64_t>(std::filesystem::file_size(path)));
    return text;
}

// Words that repeat, and bytes that do not.
std::string random_text(size_t size, Random& random) {
    std::string text;
    while (text.size() < size) {
        switch (random() % 6) {
            case 0: text += static_cast<char>(random()); break;
            case 1: text += random() % 3 == 0 ? "\n\n" : "\n"; break;
            case 2: text += std::string(random() % 40, ' '); break;
            case 3: text += "\u00e9\u2003\u4e2d"; break;  // an em space is one, too
            default: text += concat(" word", random() % 50);
        }
    }
    text.resize(size);
    return text;
}

TEST(TextStream, ReadsWhatWasCompressed) {
    const ScratchFolder folder;
    Random random(1);
    for (int trial = 0; trial < 40; ++trial) {
        const std::string text = random_text(1 + random() % (trial % 4 == 0 ? 2'000'000 : 3'000), random);
        if (compression_of(text).empty()) {
            EXPECT_EQ(read_all(folder.write("plain.txt", text), random), text);
        }
        for (const std::string ending : kEndings) {
            const std::string stored = compressed(text, ending, random, 1 + static_cast<int>(random() % 5));
            for (const std::string& name : {"a.txt" + ending, std::string("a.txt")})  // the content decides
                ASSERT_EQ(read_all(folder.write(name, stored), random), text) << name << ", trial " << trial;
        }
    }
    // What parallel and seekable compression puts before its frames.
    const std::string skipped("\x53\x2a\x4d\x18\x03\0\0\0abc", 11);
    EXPECT_EQ(read_all(folder.write("p.zst", skipped + zstandard_frame("text", 3) + skipped), random), "text");
}

// Every beginning of a file is refused, but those that end where a member ends.
TEST(TextStream, EveryTruncationIsFound) {
    const ScratchFolder folder;
    Random random(2);
    for (const std::string ending : kEndings) {
        const auto part = [&](const char* text) { return compressed(text, ending, random, 1); };
        const std::string first = part("one text\n"), second = part("and another one"), whole = first + second;
        for (size_t size = 1; size < whole.size(); ++size) {
            const auto path = folder.write("a" + ending, std::string_view(whole).substr(0, size));
            if (size == first.size()) {
                EXPECT_EQ(read_all(path, random), "one text\n");
                continue;
            }
            const auto message = message_of<DataError>([&] { read_all(path, random); });
            EXPECT_EQ(missing(path, message), "");
            if (size >= 4) {
                EXPECT_EQ(missing(concat("ends after ", size, " bytes inside a "), message), "");
            }
        }
    }
}

// With a checksum no changed bit passes for another text.
TEST(TextStream, EveryFlippedBitIsFoundOrHarmless) {
    const ScratchFolder folder;
    Random random(3);
    for (const std::string ending : kEndings) {
        const std::string text = random_text(700, random), stored = compressed(text, ending, random, 2);
        int found = 0;
        for (size_t bit = 0; bit < 8 * stored.size(); ++bit) {
            std::string damaged = stored;
            damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
            const auto path = folder.write("a" + ending, damaged);
            try {
                ASSERT_EQ(read_all(path, random), text) << ending << " bit " << bit;
            } catch (const DataError& error) {
                EXPECT_EQ(missing(path, error.what()), "");
                ++found;
            }
        }
        EXPECT_GT(found, static_cast<int>(7 * stored.size()));
    }
}

TEST(TextStream, SaysWhatIsWrongAndWhere) {
    const ScratchFolder folder;
    Random random(4);
    const auto refused = [&](const std::string& name, const std::string& content) {
        const auto path = folder.write(name, content);
        return message_of<DataError>([&] { read_all(path, random); });
    };
    EXPECT_EQ(missing("a.gz: is named .gz, but does not begin as data of gzip does", refused("a.gz", "plain")), "");
    EXPECT_EQ(missing("is named .zst", refused("a.zst", gzip_member("x", 6))), "");
    const std::string member = gzip_member("text", 6), frame = zstandard_frame("text", 3);
    EXPECT_EQ(missing("required the next member of gzip, or the end", refused("a.gz", member + "garbage")), "");
    EXPECT_EQ(missing(concat("byte ", frame.size()), refused("a.zst", frame + "garbage")), "");
    std::string damaged = member;
    damaged[damaged.size() - 6] = static_cast<char>(~damaged[damaged.size() - 6]);  // of the checksum
    EXPECT_EQ(missing("the compressed data is damaged; zlib says: incorrect data check", refused("a.gz", damaged)), "");
    EXPECT_EQ(missing("No such file", message_of<DataError>([&] { open_text_stream(folder.path("none.gz")); })), "");
    // A frame that asks for a window of 2 GiB: magic number, no content size, window descriptor.
    const auto wide = refused("a.zst", std::string("\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9));
    EXPECT_EQ(missing("zstd -dc --long=31 ", wide), "");
}

struct Encoded {
    std::vector<int32_t> ids;
    std::vector<int64_t> begins;
    std::vector<uint8_t> loss_mask;
    int64_t bytes = 0, stored = 0;
};
Encoded encoded(const text::Tokenizer& tokenizer, const std::string& path, const FileEncoding& options) {
    Encoded all;
    encode_files(tokenizer, {path}, options, [&](EncodedPiece&& piece) {
        for (const int64_t begin : piece.begins) all.begins.push_back(begin + static_cast<int64_t>(all.ids.size()));
        all.ids.insert(all.ids.end(), piece.ids.begin(), piece.ids.end());
        piece.loss_mask.resize(piece.ids.size(), 1);
        all.loss_mask.insert(all.loss_mask.end(), piece.loss_mask.begin(), piece.loss_mask.end());
        all.bytes += piece.bytes;
        all.stored += piece.stored;
    });
    return all;
}

text::ByteLevelTokenizer small_tokenizer() {
    const std::vector<std::string_view> texts = {" word1 word2 word34\n\n and the rest of the words\n"};
    return {text::train_bpe(texts, {.vocab = 300, .min_frequency = 1}), "t"};
}

// The reference cuts the whole text at the separators and encodes each document in one piece.
TEST(TextStream, TokensDoNotDependOnHowATextIsStored) {
    const ScratchFolder folder;
    const text::ByteLevelTokenizer bpe = small_tokenizer();
    const auto bytes = text::make_tokenizer("bytes");
    Random random(5);
    for (int trial = 0; trial < 16; ++trial) {
        const std::string text = random_text(1 + random() % 1'500'000, random);
        const text::Tokenizer& tokenizer = trial % 2 == 0 ? static_cast<const text::Tokenizer&>(bpe) : *bytes;
        const std::string separator = std::array{"", "\n\n", "\n", " word7 word8", "\u2003"}[random() % 5];
        std::vector<int32_t> ids;
        std::vector<int64_t> begins;
        for (size_t at = 0; at <= text.size();) {
            const size_t end = std::min(separator.empty() ? text.size() : text.find(separator, at), text.size());
            if (end > at) begins.push_back(static_cast<int64_t>(ids.size()));
            if (end > at) tokenizer.make_encoder()->encode(std::string_view(text).substr(at, end - at), ids);
            if (end > at) ids.push_back(0);
            at = end + std::max<size_t>(separator.size(), 1);
        }
        std::vector<std::string> paths = {folder.write("a.txt", text)};
        for (const std::string ending : kEndings)
            paths.push_back(folder.write("a.txt" + ending, compressed(text, ending, random, 3)));
        for (const std::string& path : paths) {
            const FileEncoding options{.separator = separator, .eod = 0, .threads = 1 + static_cast<int>(random() % 4)};
            const Encoded got = encoded(tokenizer, path, options);
            ASSERT_EQ(got.ids, ids) << path << ", trial " << trial << ", separator of " << separator.size();
            ASSERT_EQ(got.begins, begins);
            EXPECT_EQ(got.bytes, static_cast<int64_t>(text.size()));
            EXPECT_EQ(got.stored, static_cast<int64_t>(std::filesystem::file_size(path)));
        }
    }
}

TEST(TextStream, RecordsAndTheirLinesAreThoseOfThePlainFile) {
    const ScratchFolder folder;
    const text::ByteLevelTokenizer tokenizer = small_tokenizer();
    Random random(6);
    std::string lines, text;
    std::vector<int32_t> ids;
    for (int i = 0; i < 3000; ++i) {
        text.clear();
        for (uint64_t words = random() % (i == 1500 ? 200'000 : 60); words > 0; --words)
            text += concat(" word", random() % 90);
        if (random() % 10 == 0) lines += " \r\n";  // no record
        lines += i % 2 == 0 ? concat("{\"text\": \"", text, "\"}\n")
                            : concat("{\"prompt\": \"ask\", \"completion\": \"", text, "\"}\n");
        tokenizer.make_encoder()->encode(i % 2 == 0 ? text : "ask" + text, ids);
    }
    const FileEncoding options{.format = "jsonl", .threads = 3};
    const Encoded plain = encoded(tokenizer, folder.write("a.jsonl", lines), options);
    EXPECT_EQ(plain.ids, ids);
    const auto line = std::count(lines.begin(), lines.end(), '\n') + 1;
    const auto path_of_text = folder.write("text.txt", "{ no JSON\n" + lines);
    for (const char* other : {"{\n\"pretty\": 1}\n", "[1, 2]\n{}\n", "", "7\n"})
        EXPECT_FALSE(is_jsonl({path_of_text, folder.write("other.txt", other), folder.path("missing")}, "auto"))
            << other;
    for (const std::string ending : kEndings) {
        const auto path = folder.write("a.jsonl" + ending, compressed(lines, ending, random, 4));
        EXPECT_TRUE(is_jsonl({path}, "auto"));
        const Encoded got = encoded(tokenizer, path, options);
        EXPECT_EQ(got.ids, plain.ids);
        EXPECT_EQ(got.begins, plain.begins);
        EXPECT_EQ(got.loss_mask, plain.loss_mask);
        const auto bad = folder.write("bad.jsonl" + ending, compressed(lines + "{bad}\n", ending, random, 2));
        EXPECT_EQ(missing(concat("bad.jsonl", ending, ":", line, ":2: "),
                          message_of<DataError>([&] { encoded(tokenizer, bad, options); })),
                  "");
        // A run reads them as well.
        const auto source = open_records({path}, tokenizer, {.encode = {.write = false}});
        std::vector<int32_t> of_run(to_size(source->size()));
        source->read(0, of_run);
        EXPECT_EQ(of_run, plain.ids);
        // By another name it is not taken for text in silence.
        const auto named = folder.write("a.json" + ending, compressed(lines, ending, random, 2));
        EXPECT_EQ(missing(concat("a.json", ending, " begins with a JSON object"), message_of<UsageError>([&] {
                              is_jsonl({path_of_text, named}, "auto");
                          })),
                  "");
        EXPECT_TRUE(is_jsonl({named}, "jsonl"));
        EXPECT_FALSE(is_jsonl({named}, "text"));
        // Text of a run is read by its bytes.
        const auto packed = folder.write("text" + ending, compressed(lines, ending, random, 1));
        EXPECT_EQ(missing("make token files of it, `tutti data tokenize ",
                          message_of<DataError>([&] { open_tokens({packed}, "auto"); })),
                  "");
    }
    EXPECT_EQ(missing("give --input text or --input jsonl", message_of<UsageError>([] { is_jsonl({"-"}, "auto"); })),
              "");
    EXPECT_EQ(missing("once", message_of<UsageError>([&] {
                          encode_files(tokenizer, {"-", "-"}, options, [](EncodedPiece&&) {});
                      })),
              "");
}

}  // namespace
}  // namespace tutti::data
