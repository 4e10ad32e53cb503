// data/kept_tokens_test.cpp: what is made of a text is made once, is right when it is found, and leaves nothing when it
// fails.
#include "tutti/data/kept_tokens.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tutti/data/jsonl.h"
#include "tutti/data/testing/token_files.h"
#include "tutti/data/tokenizers/bpe_trainer.h"
#include "tutti/data/tokenizers/byte_level.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecords =
    "{\"text\": \"ab\", \"other\": \"xyz\"}\n\n"
    "{\"prompt\": \"cde\", \"completion\": \"fg\"}\n"
    "{\"text\": \"\"}\n"
    "{\"text\": \"h\"}\n";

std::vector<std::string> directories_in(const ScratchFolder& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path("")))
        if (entry.is_directory()) names.push_back(entry.path().string());
    return names;
}

struct All {
    std::vector<int32_t> ids;
    std::vector<int64_t> begins;
    std::vector<uint8_t> mask;
    bool operator==(const All&) const = default;
};
All all_of(const TokenSource& source) {
    const auto size = static_cast<size_t>(source.size());
    All all{.ids = std::vector<int32_t>(size), .begins = {}, .mask = std::vector<uint8_t>(size)};
    source.read(0, all.ids);
    source.document_begins(0, source.size(), all.begins);
    source.read_mask(0, all.mask);
    return all;
}

// Records that are kept, and how often they were encoded.
struct Kept {
    explicit Kept(std::optional<int32_t> eod = std::nullopt) {
        options.eod = eod;
        options.kept_from = 0;
        options.encode.progress = [this](const EncodeProgress& p) { encoded += p.bytes == p.bytes_total; };
    }
    std::shared_ptr<const TokenSource> open(const std::vector<std::string>& paths, const Tokenizer& with) {
        return open_records(paths, with, options);
    }
    RecordOptions options;
    int encoded = 0;
};

TEST(KeptTokens, RecordsAreThoseOfMemoryAndEncodedOnce) {
    const ScratchFolder folder;
    const auto bytes = make_tokenizer("bytes");
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
        EXPECT_EQ(directories_in(folder).size(), 2u);
    }
}

// Each thing that ids depend on has a directory of its own.
TEST(KeptTokens, AreNeverStale) {
    const ScratchFolder folder;
    const auto bytes = make_tokenizer("bytes");
    const auto path = folder.write("a.jsonl", kRecords);
    size_t directories = 0;
    const auto opens_anew = [&](const Tokenizer& tokenizer, Kept kept) {
        kept.options.encode.progress = [](const EncodeProgress&) {};
        RecordOptions memory = kept.options;
        memory.encode = {.write = false};
        EXPECT_EQ(all_of(*kept.open({path}, tokenizer)), all_of(*open_records({path}, tokenizer, memory)));
        EXPECT_EQ(directories_in(folder).size(), ++directories);
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
    ByteLevelModel model = train_bpe(texts, {.vocab = 260, .min_frequency = 1});
    opens_anew(ByteLevelTokenizer(model, "t"), Kept());
    model.prefix = {5};  // a template of the same tokenizer
    opens_anew(ByteLevelTokenizer(model, "t"), Kept());
    model.suffix = {5};
    opens_anew(ByteLevelTokenizer(model, "t"), Kept());
}

TEST(KeptTokens, DamageIsNoticed) {
    const auto bytes = make_tokenizer("bytes");
    for (const char* file : {"tokens.bin", "tokens.idx", "tokens.mask"}) {
        const ScratchFolder folder;
        const auto path = folder.write("a.jsonl", kRecords);
        const auto open_kept = [&] { Kept(0).open({path}, *bytes); };
        open_kept();
        const std::string directory = directories_in(folder).at(0), name = directory + "/" + file;
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
    const std::string directory = directories_in(folder).at(0);
    std::ofstream(directory + "/tokens.mask") << std::string(10, '\0');
    EXPECT_EQ(missing("is not among the digests", message_of<DataError>(open_kept)), "");
    fs::remove(directory + "/tokens.mask");
    fs::resize_file(directory + "/digests", 1);
    EXPECT_NE(message_of<DataError>(open_kept), "nothing was thrown");
}

// As when the disk is full: writing fails beyond some bytes.
TEST(KeptTokens, WhatCannotBeWrittenLeavesNothing) {
    const ScratchFolder folder;
    const auto bytes = make_tokenizer("bytes");
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
    EXPECT_EQ(directories_in(folder).size(), 0u);
    EXPECT_EQ(Kept().open({path}, *bytes)->size(), 5000);

    // Nor does a record that is wrong, nor a folder that cannot be written.
    const auto wrong = folder.write("b.jsonl", "{\"text\": \"x\"}\n{\n");
    EXPECT_EQ(missing("b.jsonl:2:2: ", message_of<DataError>([&] { Kept().open({wrong}, *bytes); })), "");
    EXPECT_EQ(directories_in(folder).size(), 1u);
    const auto longest = folder.write(std::string(249, 'a') + ".jsonl", "{\"text\": \"x\"}\n");
    EXPECT_EQ(missing("put the text into a folder that can be written",
                      message_of<UsageError>([&] { Kept().open({longest}, *bytes); })),
              "");
}

// Another process makes them meanwhile.
TEST(KeptTokens, OfTwoThatMakeThemEitherWins) {
    const ScratchFolder folder;
    const std::string directory = folder.path("a.tokens");
    const auto make = [](const std::string& prefix) {
        std::ofstream(prefix + ".bin") << "ids";
        return std::vector<std::string>{prefix + ".bin"};
    };
    const std::string made = kept_tokens(directory, [&](const std::string& prefix) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(kept_tokens(directory, make) == directory + "/tokens.bin" ? 0 : 1);
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        return make(prefix);
    });
    EXPECT_EQ(made, directory + "/tokens.bin");
    EXPECT_EQ(directories_in(folder), std::vector<std::string>{directory});
}

}  // namespace
}  // namespace tutti::data
