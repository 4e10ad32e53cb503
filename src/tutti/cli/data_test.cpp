// `tutti data` as its users see it: text to tokens and back to numbers, errors with file and offset, JSON on stdout.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/cli/testing/run.h"

namespace tutti::cli {
namespace {

struct DataCommand : CommandTest {
    int run_data(const std::vector<std::string>& words) { return run_words("data", words); }
};

TEST_F(DataCommand, TextGoesThroughEveryFormat) {
    const auto text = write("a.txt", "one two\n\nthree\n\n\n\nfour");
    for (const std::string format : {"nanogpt", "llmc", "megatron"}) {
        ASSERT_EQ(run_data({"tokenize", text, "--out", path(format), "--format", format, "--separator", "\\n\\n",
                            "--append-eod", "--eod", "0", "--json"}),
                  0)
            << err;
        const Json made = Json::parse(out);
        EXPECT_EQ(made["tokens"], 7 + 5 + 4 + 3);
        EXPECT_EQ(made["documents"], 3);
        std::vector<std::string> inspect = {"inspect", path(format) + ".bin", "--tokenizer", "bytes", "--json"};
        if (format != "megatron") inspect.insert(inspect.end(), {"--eod", "0"});
        ASSERT_EQ(run_data(inspect), 0) << err;
        const Json seen = Json::parse(out)["files"][0];
        EXPECT_EQ(seen["tokens"], made["tokens"]);
        EXPECT_EQ(seen["documents"], 3);
        EXPECT_EQ(seen["shortest_document"], 5);
        EXPECT_EQ(seen["longest_document"], 8);
        EXPECT_EQ(seen["largest_id"], 'w');
        EXPECT_EQ(seen["lengths"], Json::parse(R"([{"from": 4, "below": 8, "documents": 2},
                                                   {"from": 8, "below": 16, "documents": 1}])"));
        EXPECT_EQ(seen["first_text"], std::string("one two\0three\0fo", 16));
        EXPECT_EQ(run_data({"verify", path(format) + ".bin", "--vocab", "120"}), 0) << err;
        EXPECT_TRUE(says("sound"));
        EXPECT_EQ(run_data({"verify", path(format) + ".bin", "--vocab", "119"}), 3);
        EXPECT_TRUE(says(concat(format, ".bin, token 5 (byte offset ", format == "llmc" ? 1034 : 10, "): id 119")))
            << err;
    }
}

// A member of gzip (RFC 1952) with one stored block, of less than 64 KiB.
std::string gzipped(const std::string& text) {
    uint32_t crc = ~0u;
    for (const char c : text) {
        crc ^= static_cast<uint8_t>(c);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0u);
    }
    std::string bytes("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01", 11);
    const auto append = [&](uint32_t x, int size) {
        for (int i = 0; i < size; ++i) bytes += static_cast<char>(x >> (8 * i));
    };
    const auto size = static_cast<uint32_t>(text.size());
    append(size, 2);
    append(~size, 2);
    bytes += text;
    append(~crc, 4);
    append(size, 4);
    return bytes;
}

// The texts of records, not the JSON around them; compressed files as if they were not.
TEST_F(DataCommand, ATokenizerIsLearntFromTheTextsOfRecords) {
    std::string text, records;
    for (int i = 0; i < 60; ++i) {
        const std::string line = concat("so \"", i, "\" is\tsaid");
        text += line + '\n';
        records += Json{{"id", i}, {"body", line + '\n'}}.dump() + '\n';
    }
    const auto learnt = [&](const std::string& file, const std::string& field) {
        EXPECT_EQ(run_data({"train-tokenizer", file, "--vocab", "290", "--field", field, "--out", path("t.json")}), 0)
            << err;
        return read_file(path("t.json"));
    };
    const std::string of_text = learnt(write("t.txt", text), "text");
    EXPECT_EQ(learnt(write("r.jsonl", records), "body"), of_text);
    EXPECT_EQ(learnt(write("t.txt.gz", gzipped(text)), "text"), of_text);
    EXPECT_EQ(learnt(write("r.jsonl.gz", gzipped(records)), "body"), of_text);
    EXPECT_EQ(run_data({"train-tokenizer", path("r.jsonl"), "--out", path("t.json")}), 3);
    EXPECT_TRUE(says("r.jsonl:1: a record needs the field \"text\"")) << err;
}

// data.tokenizer takes a file of another name for a sentencepiece model, or for none.
TEST_F(DataCommand, ATokenizerHasANameThatConfigsTake) {
    const auto text = write("a.txt", "one two one two");
    for (const char* name : {"t", "t.txt", "t.model", "json", "t.json.bak", "t.JSON"}) {
        EXPECT_EQ(run_data({"train-tokenizer", text, "--vocab", "260", "--out", path(name)}), 2) << name;
        EXPECT_TRUE(says(concat(name, ".json"))) << err;
        EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
    }
    EXPECT_EQ(run_data({"train-tokenizer", text, "--vocab", "260", "--out", path("t.json")}), 0) << err;
    EXPECT_EQ(run_data({"inspect", text, "--format", "text", "--tokenizer", path("t.json")}), 0) << err;
    ASSERT_EQ(
        run_data({"tokenize", text, "--tokenizer", path("t.json"), "--out", path("t"), "--eod", "300", "--append-eod"}),
        0)
        << err;
    EXPECT_TRUE(says(
        concat("--set data.train=", path("t"), " --set data.tokenizer=", path("t.json"), " --set model.vocab=301")))
        << out << err;
    EXPECT_TRUE(says("of 1 document, ")) << out;
    EXPECT_EQ(run_data({"train-tokenizer", text, "--vocab", "260", "--out", "/dev/null"}), 0) << err;
}

TEST_F(DataCommand, PromptsBecomeAMask) {
    const auto records = write("r.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"body\": \"xyz\"}\n");
    ASSERT_EQ(run_data({"tokenize", records, "--out", path("r"), "--field", "body", "--json"}), 0) << err;
    EXPECT_EQ(Json::parse(out)["masked_tokens"], 2);
    EXPECT_EQ(Json::parse(out)["out"].size(), 4u);  // tokens, documents, mask, tokenizer
    ASSERT_EQ(run_data({"inspect", path("r"), "--json"}), 0) << err;
    EXPECT_EQ(Json::parse(out)["files"][0]["masked_tokens"], 2);
    write("r.mask", "\1\1\7\1\1\1\1");
    EXPECT_EQ(run_data({"verify", path("r")}), 3);
    EXPECT_TRUE(says("r.mask: byte offset 2: a mask has bytes 0 and 1, got 7")) << err;
    EXPECT_EQ(run_data({"tokenize", records, "--out", path("r")}), 2);  // would leave the mask beside other ids
    EXPECT_TRUE(says("is there already")) << err;
}

// Standard input of this process for as long as the object lives.
class Input {
  public:
    explicit Input(const std::string& path) : before_(dup(STDIN_FILENO)) {
        const int file = open(path.c_str(), O_RDONLY);
        dup2(file, STDIN_FILENO);
        close(file);
    }
    ~Input() {
        dup2(before_, STDIN_FILENO);
        close(before_);
    }

  private:
    int before_;
};

TEST_F(DataCommand, PatternsAndStandardInput) {
    const std::vector<std::string> parts = {"{\"text\": \"first\"}\n", "{\"text\": \"second\"}\n"};
    const auto all = write("all.jsonl", parts[0] + parts[1]);
    write("s-10.jsonl", parts[0]);
    write("s-20.jsonl", parts[1]);
    ASSERT_EQ(run_data({"tokenize", all, "--out", path("all")}), 0) << err;
    ASSERT_EQ(run_data({"tokenize", path("s-*.jsonl"), "--out", path("pattern")}), 0) << err;
    {
        const Input input(all);
        ASSERT_EQ(run_data({"tokenize", "-", "--input", "jsonl", "--out", path("input")}), 0) << err;
    }
    for (const std::string name : {"pattern", "input"})
        for (const std::string end : {".bin", ".idx"})
            EXPECT_EQ(read_file(path(name) + end), read_file(path("all") + end));
    {
        const Input input(write("bad.jsonl", "\n{\"text\": 7}\n"));
        EXPECT_EQ(run_data({"tokenize", "-", "--input", "jsonl", "--out", path("x")}), 3);
        EXPECT_TRUE(says("standard input:2: \"text\" must be a text")) << err;
    }
    EXPECT_EQ(run_data({"tokenize", "-", "--out", path("x")}), 2);
    EXPECT_TRUE(says("give --input text or --input jsonl")) << err;
    EXPECT_EQ(run_data({"tokenize", path("t-*.jsonl"), "--out", path("x")}), 2);
    EXPECT_TRUE(says("t-*.jsonl: no file has such a name")) << err;
    EXPECT_EQ(run_data({"tokenize", write("[a].txt", "one"), "--out", path("literal")}), 0) << err;  // no pattern
    EXPECT_EQ(run_data({"tokenize", write("cut.gz", "\x1f\x8b\x08"), "--out", path("x")}), 3);
    EXPECT_TRUE(says("cut.gz: ends after 3 bytes inside a member of gzip")) << err;
    EXPECT_FALSE(std::filesystem::exists(path("x.bin")));
}

TEST_F(DataCommand, WhatCannotBeIsRefused) {
    const auto text = write("a.txt", "abc"), records = write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 7}\n");
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("x"), "--append-eod"}), 2);
    EXPECT_TRUE(says("no file names the end-of-document token")) << err;
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("x"), "--eod", "0"}), 2);
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("x"), "--append-eod", "--eod", "70000", "--format", "nanogpt"}),
              2);
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("x"), "--format", "arrow"}), 2);
    EXPECT_EQ(run_data({"tokenize", records, "--out", path("x"), "--separator", "x"}), 2);
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("x"), "--field", "body"}), 2);
    EXPECT_EQ(run_data({"tokenize", records, "--out", path("x")}), 3);
    EXPECT_TRUE(says("bad.jsonl:2: \"text\" must be a text")) << err;
    EXPECT_EQ(run_data({"tokenize", path("missing.txt"), "--out", path("x"), "--json"}), 3);
    EXPECT_EQ(Json::parse(out)["exit_code"], 3);
    EXPECT_FALSE(std::filesystem::exists(path("x.bin")));
    for (const char* ending : {".bin", ".idx", ".mask", ".tokenizer"}) {  // what is read is not replaced
        const auto own = write(concat("own", ending), "text");
        EXPECT_EQ(run_data({"tokenize", text, own, "--input", "text", "--out", path("own")}), 2) << ending;
        EXPECT_TRUE(says("which is to be read")) << err;
        EXPECT_EQ(read_file(own), "text");
        std::filesystem::remove(own);
    }
    EXPECT_EQ(run_data({"inspect", write("x.idx", "MMIDIDX"), "--format", "megatron"}), 3);
    EXPECT_EQ(run_data({"inspect", text, "--eod", "<eos>"}), 2);
}

TEST_F(DataCommand, OptionsWithoutEffectAreRefused) {
    const auto text = write("a.txt", "one two");
    EXPECT_EQ(run_data({"tokenize", text, "--out", path("a")}), 0) << err;
    EXPECT_EQ(run_data({"inspect", path("a"), "--eod", "0"}), 2);
    EXPECT_TRUE(says(concat("--eod 0: has no effect on ", path("a"), ", a megatron file that says where"))) << err;
    EXPECT_EQ(run_data({"verify", text, path("a"), "--tokenizer", "bytes"}), 2);
    EXPECT_TRUE(says("--tokenizer bytes: encodes the records of JSONL, and no file is JSONL")) << err;
    const auto records = write("a.jsonl", "{\"text\": \"one\"}\n");
    EXPECT_EQ(run_data({"verify", text, records, "--tokenizer", "bytes"}), 0) << err;
}

TEST_F(DataCommand, HelpFitsTheTerminalAndHasExamples) {
    for (const char* command : {"tokenize", "inspect", "verify"}) {
        EXPECT_EQ(run_data({command, "--help"}), 0);
        EXPECT_TRUE(says("Example") && says("--json")) << out;
        std::istringstream lines(out);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
    }
}

// In a process of its own, forked where its folder is known: an endless standard input, and one that gives nothing.
TEST(DataDeathTest, ASignalLeavesNoFiles) {
    GTEST_FLAG_SET(death_test_style, "fast");
    for (const bool endless : {true, false}) {
        for (const int signal : {SIGINT, SIGTERM}) {
            const ScratchFolder folder;
            const auto body = [&] {
                int ends[2];
                if (pipe(ends) != 0) std::_Exit(1);
                dup2(ends[0], STDIN_FILENO);
                sigset_t both;
                sigemptyset(&both);
                for (const int blocked : {signal, SIGPIPE}) sigaddset(&both, blocked);
                pthread_sigmask(SIG_BLOCK, &both, nullptr);
                std::thread feeder([&] {
                    const std::string line = "a line of text\n";
                    while (endless && write(ends[1], line.data(), line.size()) > 0) continue;
                });
                kill(getpid(), signal);
                const Ran ran = tutti({"data", "tokenize", "-", "--input", "text", "--out", folder.path("o")});
                std::cerr << ran.err << std::flush;
                std::_Exit(ran.code);
            };
            EXPECT_EXIT(body(), ::testing::ExitedWithCode(75), endless ? name_of_signal(signal) : "") << endless;
            EXPECT_TRUE(std::filesystem::is_empty(folder.path(""))) << endless;
        }
    }
}

}  // namespace
}  // namespace tutti::cli
