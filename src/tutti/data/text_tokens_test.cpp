// data/text_tokens_test.cpp: the token files of a text are made once, found again, never stale or damaged, and nothing
// is left of them when writing fails.
#include "tutti/data/text_tokens.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tutti/base/to_size.h"
#include "tutti/data/data_set.h"
#include "tutti/data/encode_files.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/token_writer.h"
#include "tutti/text/bpe_trainer.h"
#include "tutti/text/byte_level.h"
#include "tutti/text/tokenizer_json.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kText = "the cat and the hat, the rat and the mat\n";

text::ByteLevelModel small_model(int64_t vocab) {
    const std::vector<std::string_view> texts = {kText};
    return text::train_bpe(texts, {.vocab = vocab, .min_frequency = 1});
}

std::vector<int32_t> ids_of(const TokenSource& source) {
    std::vector<int32_t> ids(to_size(source.size()));
    source.read(0, ids);
    return ids;
}

// Everything in the folder but texts and tokenizers.
std::vector<std::string> made_in(const ScratchFolder& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path("")))
        if (!entry.path().extension().string().starts_with(".json") && entry.path().extension() != ".txt")
            names.push_back(entry.path().string());
    return names;
}

// With a name that says nothing, before any id is made.
TEST(TextTokens, AZeroByteIsNoText) {
    const ScratchFolder folder;
    check_is_text(folder.write("a.txt", kText));
    try {
        check_is_text(folder.write("wide.txt", std::string("a\0b\0", 4)));
        FAIL();
    } catch (const DataError& error) {
        EXPECT_EQ(missing("wide.txt: byte offset 1: a zero byte, so this is not plain text", error.what()), "");
    }
}

// By every reader of text: the tokens are those of the same text without the mark.
TEST(TextTokens, AByteOrderMarkIsNoPartOfTheText) {
    const ScratchFolder folder;
    const std::string marked = "\xef\xbb\xbf" + std::string(kText);
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    const auto text = folder.write("a.txt", marked);
    for (const bool write : {false, true})
        EXPECT_EQ(ids_of(*open_text({text}, tokenizer, {.write = write})), tokenizer.encode(kText));
    for (const char* format : {"auto", "text"})
        EXPECT_EQ(ids_of(*open_tokens({text}, format)), std::vector<int32_t>(kText.begin(), kText.end()));
    std::vector<int32_t> ids;
    encode_files(tokenizer, {text}, {}, [&](const EncodedPiece& piece) { ids = piece.ids; });
    EXPECT_EQ(ids, tokenizer.encode(kText));
    // One behind the beginning is a character as any other.
    const auto later = folder.write("b.txt", "a" + marked);
    EXPECT_EQ(ids_of(*open_tokens({later}, "auto")).size(), kText.size() + 4);

    const auto empty = folder.write("empty.txt", "\xef\xbb\xbf");
    const auto refused = [](const auto& open) {
        try {
            open();
        } catch (const DataError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(missing("empty.txt: has no byte of text", refused([&] { open_tokens({empty}, "auto"); })), "");
    EXPECT_EQ(missing("empty.txt: has no byte of text",
                      refused([&] { encode_files(tokenizer, {empty}, {}, [](EncodedPiece&&) {}); })),
              "");
}

TEST(TextTokens, AreWrittenOnceAndFoundAgain) {
    const ScratchFolder folder;
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    const auto text = folder.write("a.txt", kText);
    int encoded = 0;
    const EncodeOptions options{.progress = [&](const EncodeProgress& p) {
        ++encoded;
        EXPECT_EQ(p.bytes, p.bytes_total);
        EXPECT_EQ(p.bytes_total, static_cast<int64_t>(kText.size()));
    }};
    for (int i = 0; i < 2; ++i) {
        const auto source = open_text({text}, tokenizer, options);
        EXPECT_EQ(ids_of(*source), tokenizer.encode(kText));
        EXPECT_EQ(source->format(), "llmc-u16");
        EXPECT_EQ(made_in(folder).size(), 1u);
        EXPECT_EQ(encoded, 1);
    }
    // Another text or another tokenizer is another file.
    folder.write("a.txt", "the other text\n");
    EXPECT_EQ(ids_of(*open_text({text}, tokenizer, {})), tokenizer.encode("the other text\n"));
    EXPECT_EQ(made_in(folder).size(), 2u);
    const text::ByteLevelTokenizer other(small_model(265), "t");
    EXPECT_EQ(ids_of(*open_text({text}, other, {})), other.encode("the other text\n"));
    EXPECT_EQ(made_in(folder).size(), 3u);
}

// The file is read some pieces ahead of what is encoded.
TEST(TextTokens, ProgressIsCompleteOnce) {
    const ScratchFolder folder;
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    std::string many;
    while (many.size() < (1 << 20)) many += kText;
    for (const bool write : {true, false}) {
        std::vector<EncodeProgress> told;
        const auto source =
            open_text({folder.write("a.txt", many)}, tokenizer,
                      {.write = write, .progress = [&](const EncodeProgress& p) { told.push_back(p); }});
        ASSERT_EQ(told.size(), 1u);
        EXPECT_EQ(told[0].bytes, std::ssize(many));
        EXPECT_EQ(told[0].bytes_total, std::ssize(many));
        EXPECT_EQ(told[0].tokens, source->size());
        EXPECT_EQ(ids_of(*source), tokenizer.encode(many));
        many += kText;  // another text is another file
    }
}

TEST(TextTokens, SeveralTextsAreOneRow) {
    const ScratchFolder folder;
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    const std::vector<std::string> paths = {folder.write("a.txt", "the c"), folder.write("b.txt", "at the")};
    auto expected = tokenizer.encode("the c");  // no word crosses the end of a file
    const auto second = tokenizer.encode("at the");
    expected.insert(expected.end(), second.begin(), second.end());
    for (const bool write : {false, true}) {
        EXPECT_EQ(ids_of(*open_text(paths, tokenizer, {.write = write})), expected);
        EXPECT_EQ(made_in(folder).size(), write ? 2u : 0u);
    }
}

TEST(TextTokens, WideIdsOfALargeVocabulary) {
    const ScratchFolder folder;
    text::ByteLevelModel model = small_model(270);
    const auto last = static_cast<int32_t>(model.tokens.size());
    for (int32_t id = last; id <= 65536; ++id) model.added.push_back({.id = id, .content = concat("<", id, ">")});
    const text::ByteLevelTokenizer tokenizer(std::move(model), "t");
    ASSERT_EQ(tokenizer.vocab(), 65537);
    const auto source = open_text({folder.write("a.txt", "the <65536> cat")}, tokenizer, {});
    EXPECT_EQ(source->format(), "llmc-u32");
    EXPECT_EQ(ids_of(*source), tokenizer.encode("the <65536> cat"));
}

TEST(TextTokens, AFolderThatCannotBeWritten) {
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    const ScratchFolder folder;
    const auto text = folder.write(std::string(250, 'a'), kText);  // the name with its digits is too long for a file
    EXPECT_EQ(missing("put the text into a folder that can be written",
                      message_of<UsageError>([&] { open_text({text}, tokenizer, {}); })),
              "");
    EXPECT_EQ(open_text({text}, tokenizer, {.write = false})->size(),
              static_cast<int64_t>(tokenizer.encode(kText).size()));
}

TEST(TextTokens, TheVocabularyMustFitTheModel) {
    const ScratchFolder folder;
    spec::DataSpec data;
    data.train = {folder.write("a.txt", std::string(kText) + std::string(kText))};
    data.tokenizer = folder.write("tokenizer.json", text::tokenizer_json(small_model(270)));
    const text::ByteLevelTokenizer tokenizer(small_model(270), "t");
    EXPECT_EQ(missing("makes ids up to 269, model.vocab is 269; set model.vocab = 270 or more",
                      message_of<UsageError>([&] { open(data, 269, 4); })),
              "");
    for (const int64_t vocab : {int64_t{270}, int64_t{320}}) {  // padded: fine
        const DataSet set = open(data, vocab, 4);
        EXPECT_EQ(set.train.size(), static_cast<int64_t>(tokenizer.encode(kText).size()) * 2);
        EXPECT_EQ(set.tokenizer->vocab(), 270);
    }
}

constexpr const char* kRecords =
    "{\"text\": \"ab\", \"other\": \"xyz\"}\n\n"
    "{\"prompt\": \"cde\", \"completion\": \"fg\"}\n"
    "{\"text\": \"\"}\n"
    "{\"text\": \"h\"}\n";

struct All {
    std::vector<int32_t> ids;
    std::vector<int64_t> begins;
    std::vector<uint8_t> mask;
    bool operator==(const All&) const = default;
};
All all_of(const TokenSource& source) {
    const auto size = to_size(source.size());
    All all{.ids = std::vector<int32_t>(size), .begins = {}, .mask = std::vector<uint8_t>(size)};
    source.read(0, all.ids);
    source.document_begins(0, source.size(), all.begins);
    source.read_mask(0, all.mask);
    return all;
}

// Records with files of ids, and how often the records were encoded.
struct Kept {
    explicit Kept(std::optional<int32_t> eod = std::nullopt) {
        options.eod = eod;
        options.kept_from = 0;
        options.encode.progress = [this](const EncodeProgress& p) { encoded += p.bytes == p.bytes_total; };
    }
    std::shared_ptr<const TokenSource> open(const std::vector<std::string>& paths, const text::Tokenizer& with) {
        return open_records(paths, with, options);
    }
    RecordOptions options;
    int encoded = 0;
};

TEST(KeptTokens, RecordsAreThoseOfMemoryAndEncodedOnce) {
    const ScratchFolder folder;
    const auto bytes = text::make_tokenizer("bytes");
    const std::vector<std::string> paths = {folder.write("a.jsonl", kRecords),
                                            folder.write("b.jsonl", "{\"text\": \"ij\"}")};
    Kept kept(0);
    for (int round = 0; round < 2; ++round) {
        const auto source = kept.open(paths, *bytes);
        EXPECT_EQ(all_of(*source).ids,
                  (std::vector<int32_t>{'a', 'b', 0, 'c', 'd', 'e', 'f', 'g', 0, 0, 'h', 0, 'i', 'j', 0}));
        EXPECT_EQ(all_of(*source).begins, (std::vector<int64_t>{3, 9, 10, 12}));
        EXPECT_EQ(all_of(*source).mask, (std::vector<uint8_t>{1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
        RecordOptions memory = kept.options;
        memory.encode = {.write = false};
        const auto same = open_records(paths, *bytes, memory);
        EXPECT_EQ(all_of(*source), all_of(*same));
        EXPECT_EQ(source->description(), same->description());
        EXPECT_EQ(source->fingerprint(), same->fingerprint());
        EXPECT_EQ(source->format(), "jsonl");
        EXPECT_EQ(source->vocab_bound(), 256);
        EXPECT_TRUE(source->knows_documents() && source->has_mask());
        EXPECT_EQ(kept.encoded, 2) << round;
        EXPECT_EQ(made_in(folder).size(), 2u);
    }
}

// Each value that ids depend on changes the directory.
TEST(KeptTokens, AreNeverStale) {
    const ScratchFolder folder;
    const auto bytes = text::make_tokenizer("bytes");
    const auto path = folder.write("a.jsonl", kRecords);
    size_t directories = 0;
    const auto opens_anew = [&](const text::Tokenizer& tokenizer, Kept kept) {
        kept.options.encode.progress = [](const EncodeProgress&) {};
        RecordOptions memory = kept.options;
        memory.encode = {.write = false};
        EXPECT_EQ(all_of(*kept.open({path}, tokenizer)), all_of(*open_records({path}, tokenizer, memory)));
        EXPECT_EQ(made_in(folder).size(), ++directories);
    };
    opens_anew(*bytes, Kept());
    opens_anew(*bytes, Kept(0));
    opens_anew(*bytes, Kept(7));
    folder.write("a.jsonl", std::string(kRecords) + "{\"text\": \"more\"}\n");
    opens_anew(*bytes, Kept());
    folder.write("a.jsonl", "{\"text\": \"ab\", \"other\": \"xyz\"}\n");
    opens_anew(*bytes, Kept());
    Kept other;
    other.options.field = "other";
    opens_anew(*bytes, other);
    const std::vector<std::string_view> texts = {"abab xyz"};
    text::ByteLevelModel model = text::train_bpe(texts, {.vocab = 260, .min_frequency = 1});
    opens_anew(text::ByteLevelTokenizer(model, "t"), Kept());
    model.prefix = {5};  // a template of the same tokenizer
    opens_anew(text::ByteLevelTokenizer(model, "t"), Kept());
    model.suffix = {5};
    opens_anew(text::ByteLevelTokenizer(model, "t"), Kept());
}

TEST(KeptTokens, DamageIsNoticed) {
    const auto bytes = text::make_tokenizer("bytes");
    for (const char* file : {"tokens.bin", "tokens.idx", "tokens.mask"}) {
        const ScratchFolder folder;
        const auto path = folder.write("a.jsonl", kRecords);
        const auto open_kept = [&] { Kept(0).open({path}, *bytes); };
        open_kept();
        const std::string directory = made_in(folder).at(0), name = directory + "/" + file;
        const auto size = fs::file_size(name);
        for (const uintmax_t at : {uintmax_t{0}, size / 2, size - 1}) {
            std::fstream damaged(name, std::ios::binary | std::ios::in | std::ios::out);
            const auto flip = [&] {
                damaged.seekg(static_cast<std::streamoff>(at));
                const int byte = damaged.get();
                damaged.seekp(static_cast<std::streamoff>(at));
                damaged.put(static_cast<char>(byte ^ 4)).flush();
            };
            flip();
            const auto message = message_of<DataError>(open_kept);
            EXPECT_EQ(missing(concat(name, ": the digest of its bytes is "), message), "");
            EXPECT_EQ(missing(concat("remove ", directory, ", it will be made again"), message), "");
            flip();
            open_kept();
        }
        fs::rename(name, name + "x");
        EXPECT_EQ(missing(": is missing; remove", message_of<DataError>(open_kept)), "");
        fs::remove_all(directory);
        open_kept();
    }
    const ScratchFolder folder;
    const auto path = folder.write("a.jsonl", "{\"text\": \"no prompt\"}");
    const auto open_kept = [&] { Kept(0).open({path}, *bytes); };
    open_kept();
    const std::string directory = made_in(folder).at(0);
    std::ofstream(directory + "/tokens.mask") << std::string(10, '\0');
    EXPECT_EQ(missing("is not among the digests", message_of<DataError>(open_kept)), "");
    fs::remove(directory + "/tokens.mask");
    fs::resize_file(directory + "/digests", 1);
    EXPECT_NE(message_of<DataError>(open_kept), "nothing was thrown");
}

// As on a full disk: writing fails beyond some bytes.
TEST(KeptTokens, WhatCannotBeWrittenLeavesNothing) {
    const ScratchFolder folder;
    const auto bytes = text::make_tokenizer("bytes");
    const auto path = folder.write("a.jsonl", "{\"text\": \"" + std::string(5000, 'x') + "\"}");
    struct rlimit old {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit low { .rlim_cur = 4096, .rlim_max = old.rlim_max };
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
    const auto message = message_of<DataError>([&] { Kept().open({path}, *bytes); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(missing("cannot be written: File too large", message), "");
    EXPECT_EQ(made_in(folder).size(), 0u);
    EXPECT_EQ(Kept().open({path}, *bytes)->size(), 5000);

    // A wrong record and an unwritable folder leave no files either.
    const auto wrong = folder.write("b.jsonl", "{\"text\": \"x\"}\n{\n");
    EXPECT_EQ(missing("b.jsonl:2:2: ", message_of<DataError>([&] { Kept().open({wrong}, *bytes); })), "");
    EXPECT_EQ(made_in(folder).size(), 1u);
    const auto longest = folder.write(std::string(249, 'a') + ".jsonl", "{\"text\": \"x\"}\n");
    EXPECT_EQ(missing("put the text into a folder that can be written",
                      message_of<UsageError>([&] { Kept().open({longest}, *bytes); })),
              "");
}

// A killed process cannot remove what it was making; the next one that opens the text does, and leaves what a running
// process makes.
TEST(KeptTokens, OfKilledProcessesAreRemoved) {
    const ScratchFolder folder;
    const std::string text = folder.write("a.txt", "text"), directory = text + ".0123456789abcdef.tokens";
    const auto killed_inside = [&](const std::string& of) {
        const pid_t child = ::fork();
        if (child == 0)
            cached_tokens(of, [&](const std::string& prefix) -> std::vector<std::string> {
                AtomicFile file(prefix + ".bin");
                file.write("half", 4);
                ::kill(::getpid(), SIGKILL);
                return {};
            });
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(WTERMSIG(status), SIGKILL);
        return of + "." + std::to_string(child) + ".part";
    };
    const std::string left = killed_inside(directory);
    EXPECT_TRUE(std::filesystem::exists(left) && !std::filesystem::is_empty(left));
    const std::string of_other = killed_inside(text + ".fedcba9876543210.tokens");  // of another tokenizer
    EXPECT_FALSE(std::filesystem::exists(left));
    EXPECT_TRUE(std::filesystem::exists(of_other));
    const std::string file_left = folder.write("a.txt.1.part", "half");
    const std::string of_another_text = folder.write("b.txt.1.part", "half");
    const AtomicFile running(folder.path("a.txt"));
    EXPECT_FALSE(std::filesystem::exists(file_left));
    cached_tokens(directory, [](const std::string& prefix) {
        std::ofstream(prefix + ".bin") << "ids";
        return std::vector<std::string>{prefix + ".bin"};
    });
    EXPECT_FALSE(std::filesystem::exists(of_other));
    EXPECT_FALSE(std::filesystem::exists(directory + "/lock"));
    EXPECT_TRUE(std::filesystem::exists(of_another_text));
    EXPECT_TRUE(std::filesystem::exists(folder.path("a.txt." + std::to_string(::getpid()) + ".part")));
}

// Another process makes the files at the same time.
TEST(KeptTokens, OfTwoThatMakeThemEitherWins) {
    const ScratchFolder folder;
    const std::string directory = folder.path("a.tokens");
    const auto make = [](const std::string& prefix) {
        std::ofstream(prefix + ".bin") << "ids";
        return std::vector<std::string>{prefix + ".bin"};
    };
    const std::string made = cached_tokens(directory, [&](const std::string& prefix) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(cached_tokens(directory, make) == directory + "/tokens.bin" ? 0 : 1);
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        return make(prefix);
    });
    EXPECT_EQ(made, directory + "/tokens.bin");
    EXPECT_EQ(made_in(folder), std::vector<std::string>{directory});
}

}  // namespace
}  // namespace tutti::data
