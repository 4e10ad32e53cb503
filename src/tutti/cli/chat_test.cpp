// cli/chat_test.cpp: `tutti chat` through pipes, against `tutti generate` on the ids of conversations that are written
// out here, and on a terminal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/testing/run.h"

namespace tutti::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{{ mood | default('') }}";

class ChatTest : public ::testing::Test {
  protected:
    ChatTest() {
        std::string text;
        for (int i = 0; i < 200; ++i) text += "In the beginning God created the heaven and the earth. ";
        const std::string config = dir_.write(
            "c.toml", "[model]\nlayers = 1\n[data]\ntrain = \"" + dir_.write("t.txt", text) +
                          "\"\n[train]\nsteps = 2\nseq_len = 256\nglobal_batch = 2\nmicro_batch = 1\n[precision]\n"
                          "compute = \"f32\"\n");
        run_ = dir_.path("run");
        EXPECT_EQ(tutti({"train", config, "--out", run_}).code, 0);
        template_ = dir_.write("of_mine.jinja", kTemplate);
    }

    // `tutti chat` with standard input from a file.
    Ran chat(const std::string& input, std::vector<std::string> words) {
        const std::string path = dir_.write("input", input);
        const int before = dup(STDIN_FILENO), file = open(path.c_str(), O_RDONLY);
        dup2(file, STDIN_FILENO);
        close(file);
        words.insert(words.begin(), "chat");
        const Ran ran = tutti(words);
        dup2(before, STDIN_FILENO);
        close(before);
        return ran;
    }
    static std::vector<Json> documents(const std::string& out) {
        std::vector<Json> all;
        for (size_t begin = 0, end = 0; (end = out.find("\n}\n", begin)) != std::string::npos; begin = end + 3)
            all.push_back(Json::parse(out.substr(begin, end + 2 - begin)));
        return all;
    }
    // The tokens with which `tutti generate` continues a text.
    Json continued(const std::string& text, int seed) {
        const Ran ran =
            tutti({"generate", run_, "--prompt", text, "--max-tokens", "6", "--seed", std::to_string(seed), "--json"});
        EXPECT_EQ(ran.code, 0) << ran.err;
        return Json::parse(ran.out)["tokens"];
    }

    ScratchFolder dir_;
    std::string run_, template_;
};

TEST_F(ChatTest, AnswersAreContinuationsOfTheRenderedConversation) {
    const std::vector<std::string> options = {run_,       "--template",   template_, "--system",
                                              "Be kind.", "--max-tokens", "6",       "--json"};
    const Ran ran = chat("Hi\n\nMore?\r\n/reset\nHi\n/exit\nnever read\n", options);
    ASSERT_EQ(ran.code, 0) << ran.err;
    const std::vector<Json> answers = documents(ran.out);
    ASSERT_EQ(answers.size(), 3u) << ran.out;
    const auto content = [&](size_t i) { return answers[i]["message"]["content"].text(); };
    const std::string begin = "<system>Be kind.<user>Hi<assistant>";
    const std::string texts[] = {begin, begin + content(0) + "<user>More?<assistant>", begin};
    for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(answers[i]["tokens"], continued(texts[i], 1234 + static_cast<int>(i))) << i;
        EXPECT_EQ(answers[i]["prompt_tokens"], texts[i].size());
        EXPECT_EQ(answers[i]["message"]["role"], "assistant");
        EXPECT_EQ(answers[i]["ended_by"], "length");
    }
    EXPECT_EQ(answers[0]["cached_tokens"], 0);
    EXPECT_GE(answers[1]["cached_tokens"].get<size_t>(), begin.size());
    EXPECT_EQ(answers[2]["cached_tokens"], begin.size() - 1);

    // Without --json only the answers, and from two ranks the same ones.
    std::string plain;
    for (size_t i = 0; i < 3; ++i) plain += content(i) + "\n";
    for (const char* ranks : {"1", "2"}) {
        std::vector<std::string> words(options.begin(), options.end() - 1);
        words.insert(words.end(), {"--ranks", ranks});
        EXPECT_EQ(chat("Hi\nMore?\n/reset\nHi", words).out, plain) << ranks;
    }

    const Ran moody =
        chat("Hi", {run_, "--template", template_, "--set-template", "mood=[1, \"x\"]", "--max-tokens", "6", "--json"});
    EXPECT_EQ(documents(moody.out).at(0)["tokens"], continued("<user>Hi<assistant>[1, 'x']", 1234));
    const std::string both = "two\nlines \"of\" it", quoted = R"("two\nlines \"of\" it")"
                                                              "\n\"no JSON";
    const Ran several = chat(quoted, {run_, "--template", template_, "--max-tokens", "6", "--json"});
    EXPECT_EQ(documents(several.out).at(0)["tokens"], continued("<user>" + both + "<assistant>", 1234));
    EXPECT_EQ(documents(several.out).size(), 2u) << "a line that is no JSON is a message as it is";
    const Ran bound = chat("Hi", {run_, "--template", template_, "--context", "24", "--json"});
    EXPECT_EQ(documents(bound.out).at(0)["tokens"].size(), 24 - std::string("<user>Hi<assistant>").size());
}

TEST_F(ChatTest, SaysWhatIsWrong) {
    const auto message = [&](const std::string& input, std::vector<std::string> words, int code) {
        words.insert(words.begin(), run_);
        const Ran ran = chat(input, words);
        EXPECT_EQ(ran.code, code) << ran.err;
        return ran.err;
    };
    const auto has = [](const std::string& text, const std::string& part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(message("Hi", {}, 3),
        "has no chat template: looked for chat_template.jinja, and for chat_template in "
        "chat_template.json and tokenizer_config.json, in no folder");
    has(message("Hi", {}, 3), "`tutti generate` continues texts without one, and --template FILE gives one");
    has(message("Hi", {"--template", template_, "--context", "9"}, 2),
        "the conversation has 19 tokens and leaves no room");
    has(message("Hi", {"--template", template_, "--set-template", "thinking"}, 2),
        "--set-template thinking: required key=value");
    const std::string refuses = dir_.write("refuses.jinja", "{{ raise_exception('No system role!') }}");
    has(message("Hi", {"--template", refuses}, 3), "refuses.jinja, line 1, column 19: No system role!");
    has(message("Hi", {"--template", dir_.write("wrong.jinja", "\n{% nothing %}")}, 3),
        "wrong.jinja, line 2, column 4: no tag is named nothing");
    has(message("Hi", {"--template", dir_.write("empty.jinja", "{# nothing #}")}, 3),
        "empty.jinja: required: a text of at least one token, but this conversation renders as an empty one");
    has(message("M\xfcller\n", {"--template", template_}, 3), "the message 'M\xEF\xBF\xBDller' is not UTF-8; `iconv");
    EXPECT_EQ(tutti({"generate", run_, "--prompt", "x", "--prompt-logprobs"}).code, 2);
}

TEST_F(ChatTest, AMessageWithoutAnAnswerIsADocumentOfJson) {
    const std::string refuses =
        std::string("{% if messages[-1].content == 'No' %}{{ raise_exception('no') }}{% endif %}");
    const std::string picky = dir_.write("picky.jinja", refuses + kTemplate), input = "Hi\nNo\n/reset\nHi\n";
    for (const char* ranks : {"1", "2"}) {
        const std::vector<std::string> words = {run_, "--template", picky, "--max-tokens", "6", "--ranks", ranks};
        std::vector<std::string> with_json = words;
        with_json.emplace_back("--json");
        const Ran ran = chat(input, with_json);
        EXPECT_EQ(ran.code, 3);
        const std::vector<Json> answers = documents(ran.out);
        ASSERT_EQ(answers.size(), 3u) << ran.out;
        EXPECT_EQ(answers[1]["question"], "No");
        EXPECT_EQ(answers[1]["exit_code"], 3);
        EXPECT_NE(answers[1]["error"].text().find("picky.jinja, line 1"), std::string::npos);
        EXPECT_EQ(answers[2]["tokens"], continued("<user>Hi<assistant>", 1235));
        const Ran plain = chat(input, words);  // whose reader counts lines
        EXPECT_EQ(plain.code, 3);
        EXPECT_EQ(plain.out, answers[0]["message"]["content"].text() + "\n");
    }
}

TEST_F(ChatTest, TheTemplateIsTheOneOfTheModelsFiles) {
    const std::string hf = dir_.path("hf");
    ASSERT_EQ(tutti({"convert", "--from", run_, "--to", hf}).code, 0);
    fs::remove(hf + "/XXH128SUMS");
    const auto write = [&](const char* name, const std::string& text) { dir_.write(std::string("hf/") + name, text); };
    const auto prompt_tokens = [&] {
        const Ran ran = chat("Hi", {hf, "--max-tokens", "1", "--json"});
        return ran.code == 0 ? documents(ran.out).at(0)["prompt_tokens"].get<int>() : -ran.code;
    };
    EXPECT_EQ(prompt_tokens(), -3);
    write("tokenizer_config.json",
          R"({"chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": "four"}]})");
    EXPECT_EQ(prompt_tokens(), 4);
    write("tokenizer_config.json", R"({"chat_template": [{"name": "tools", "template": "x"}]})");
    EXPECT_EQ(prompt_tokens(), -3);
    const std::pair<const char*, const char*> wrong[] = {
        {R"({"chat_template": 3})",
         "tokenizer_config.json: chat_template = 3: required: a text, or a list of templates"},
        {R"({"chat_template": [{"name": "default"}]})",
         "tokenizer_config.json: template of the chat_template default = nothing: required: a text"}};
    for (const auto& [file, said] : wrong) {
        write("tokenizer_config.json", file);
        const Ran ran = chat("Hi", {hf});
        EXPECT_EQ(ran.code, 3);
        EXPECT_NE(ran.err.find(said), std::string::npos) << ran.err;
    }
    write("tokenizer_config.json", R"({"chat_template": "fives"})");
    EXPECT_EQ(prompt_tokens(), 5);
    write(
        "tokenizer_config.json",
        R"({"bos_token": {"content": "a"}, "eos_token": "b", "chat_template": "{{ bos_token ~ eos_token ~ pad_token }}."})");
    EXPECT_EQ(prompt_tokens(), 3);
    write("chat_template.json", R"({"chat_template": "sixsix"})");
    EXPECT_EQ(prompt_tokens(), 6);
    write("chat_template.jinja", "{{ 'eight' }}...\n");
    EXPECT_EQ(prompt_tokens(), 8);
}

// An answer that would last for half a minute ends at Ctrl-C; the program does not.
TEST_F(ChatTest, OnATerminalCtrlCStopsTheAnswerAndNotTheProgram) {
    const std::string hf = dir_.path("hf");
    ASSERT_EQ(tutti({"convert", "--from", run_, "--to", hf}).code, 0);
    fs::remove(hf + "/XXH128SUMS");
    Json config = Json::parse(read_file(hf + "/config.json"));
    config["max_position_embeddings"] = 60000;
    dir_.write("hf/config.json", config.dump());

    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    ASSERT_GE(child, 0);
    if (child == 0) {
        execl(TUTTI_PROGRAM, "tutti", "chat", hf.c_str(), "--template", template_.c_str(), "--max-tokens", "59000",
              "--context", "60000", nullptr);
        _exit(127);
    }
    std::string seen;
    const auto wait_for = [&](const std::string& word) {
        for (size_t at = 0; (at = seen.find(word)) == std::string::npos;) {
            char buffer[4096];
            const ssize_t size = read(terminal, buffer, sizeof buffer);
            if (size <= 0) return false;
            seen.append(buffer, to_size(size));
        }
        seen = seen.substr(seen.find(word) + word.size());
        return true;
    };
    const auto type = [&](const std::string& keys) {
        ASSERT_EQ(write(terminal, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    };
    EXPECT_TRUE(wait_for("> ")) << seen;
    for (int turn = 0; turn < 2; ++turn) {
        type("Hi\n");
        EXPECT_TRUE(wait_for("Hi\r\n")) << seen;
        char byte = 0;  // the answer has begun
        EXPECT_TRUE(!seen.empty() || read(terminal, &byte, 1) == 1);
        type("\x03");
        EXPECT_TRUE(wait_for("\n> ")) << seen;
    }
    type("typed and taken back\x03");
    EXPECT_TRUE(wait_for("\n> ")) << seen;
    type("/exit\n");
    EXPECT_FALSE(wait_for("\nnever")) << seen;
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    close(terminal);
}

}  // namespace
}  // namespace tutti::cli
