// Completion and the manual page: every command, option and choice of the table is offered, and the shells ask the
// built program for it; man reads the page. zsh, fish and man are asked where they are installed; CI has them.
#include "tutti/cli/completion.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::cli {

namespace {

namespace fs = std::filesystem;
using Words = std::set<std::string>;

// A command line whose last word is to be completed, and all that must be offered for it.
struct Question {
    std::string line;
    Words expected;
    bool exactly = true;  // nothing else may be offered
};

class Shells : public testing::Test {
  protected:
    void SetUp() override {
        folder_.write("config-of-the-test.toml", "");
        folder_.write("tutti.bash", completion_script("bash"));
        folder_.write("_tutti", completion_script("zsh"));
        folder_.write("tutti.fish", completion_script("fish"));
        folder_.write("tutti.1", manual_page(table_, "1.2.3"));
        fs::create_directory(folder_.path("bin"));
        fs::create_symlink(TUTTI_PROGRAM, folder_.path("bin/tutti"));
    }

    // Output and errors of a command in the test's directory; its exit code must be 0.
    std::string run(const std::string& command) const {
        std::FILE* pipe = popen(
            concat("cd ", folder_.path(), " && export PATH=$PWD/bin:$PATH && ( ", command, " ) 2>&1").c_str(), "r");
        std::string output;
        std::array<char, 4096> part{};
        for (size_t n = 0; (n = fread(part.data(), 1, part.size(), pipe)) > 0;) output.append(part.data(), n);
        EXPECT_EQ(pclose(pipe), 0) << command << ": " << output;
        return output;
    }
    static bool installed(const std::string& program) {
        return std::system(concat("command -v ", program, " >/dev/null 2>&1").c_str()) == 0;
    }

    std::vector<Question> questions() const;
    // `setup`: what zsh does first.
    void ask_zsh(const std::string& setup) const;
    // `answers`: a line for each question.
    static void expect_answers(const std::vector<Question>& questions, const std::string& answers);

    Arguments arguments_;
    const Io io_{std::cout, std::cerr};
    const Command table_ = program(arguments_, io_);
    ScratchFolder folder_;
};

// Every command for its options, every group for its commands, every option for its choices; a path for a file.
std::vector<Question> Shells::questions() const {
    std::vector<Question> all;
    for (const NamedCommand& command : all_commands(table_)) {
        Words options = {"--help"};
        if (command.command == &table_) options.insert("--version");
        for (const Option& option : command.command->options) {
            const Choices* choices = std::get_if<Choices>(&option.rule);
            const Suggestions* suggestions = std::get_if<Suggestions>(&option.rule);
            const auto ask = [&](const std::string& line) {
                if (choices) all.push_back({line, Words(choices->begin(), choices->end())});
                if (!suggestions) return;
                if (suggestions->files) all.push_back({line + "config-of-the-", {":files"}, false});
                if (!suggestions->words.empty())
                    all.push_back({line + suggestions->words[0], {suggestions->words[0]}, false});
            };
            if (is_positional(option)) {
                ask(command.words + " ");
                continue;
            }
            for (const std::string& name : names_of(option)) {
                if (name.starts_with("--")) options.insert(name);
                ask(command.words + " " + name + " ");
            }
        }
        all.push_back({command.words + " --", options});
        Words below;
        for (const Command& each : command.command->commands) below.insert(each.name);
        if (!below.empty()) all.push_back({command.words + " ", below});
    }
    return all;
}

void Shells::expect_answers(const std::vector<Question>& questions, const std::string& answers) {
    std::istringstream lines(answers);
    for (const Question& question : questions) {
        std::string line;
        ASSERT_TRUE(std::getline(lines, line)) << "no answer to: " << question.line;
        std::istringstream words(line);
        const Words offered{std::istream_iterator<std::string>(words), {}};
        if (question.exactly)
            EXPECT_EQ(offered, question.expected) << question.line;
        else
            EXPECT_TRUE(
                std::includes(offered.begin(), offered.end(), question.expected.begin(), question.expected.end()))
                << question.line << " offers: " << line;
    }
    std::string more;
    EXPECT_FALSE(std::getline(lines, more)) << more;
}

TEST_F(Shells, AllOfTheTableIsOffered) {
    const std::vector<Question> all = questions();
    std::string answers;
    for (const Question& question : all) {
        std::istringstream line(question.line);
        std::vector<std::string> words{std::istream_iterator<std::string>(line), {}};
        if (question.line.ends_with(' ')) words.emplace_back();
        words.erase(words.begin());
        for (const Candidate& candidate : complete(table_, words)) answers += candidate.word + ' ';
        answers += '\n';
    }
    expect_answers(all, answers);
}

// One of each kind: commands, options of a command below another, choices, keys, a value behind =, and files.
const std::vector<Question> kAsked = {
    {"tutti bench ge", {"gemm"}},
    {"tutti completion ", {"bash", "zsh", "fish"}},
    {"tutti bench gemm --devi", {"--device"}},
    {"tutti bench gemm --device ", {"auto", "cpu", "cuda"}},
    {"tutti train run.toml --set parallel.sched", {"parallel.schedule="}},
    {"tutti train config-of-the-", {"config-of-the-test.toml"}},
    {"tutti train run.toml --out config-of-the-", {"config-of-the-test.toml"}},
};

TEST_F(Shells, BashAsks) {
    std::string script =
        "source ./tutti.bash\n"
        "ask() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _tutti; echo \"${COMPREPLY[*]}\"; }\n";
    for (const Question& question : kAsked)  // no word of a question is special to a shell
        script += concat("ask ", question.line, question.line.ends_with(' ') ? "''" : "", '\n');
    folder_.write("ask.bash", script);
    expect_answers(kAsked, run("bash --norc ask.bash"));
}

TEST_F(Shells, BashFollowsAnEqualsSign) {
    folder_.write(
        "ask.bash",
        "source ./tutti.bash\n"
        "ask() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _tutti; echo \"${COMPREPLY[*]}\"; }\n"
        "ask tutti bench gemm --device =\n"
        "ask tutti bench gemm --device = cu\n"
        "ask tutti train run.toml --set train.steps = 1\n"
        "ask tutti train run.toml --threads ''\n"
        "ask tutti train run.toml --out = 'config-of-the'\n");
    EXPECT_EQ(run("bash --norc ask.bash"), "auto cpu cuda\ncuda\n\n\nconfig-of-the-test.toml\n");
}

TEST_F(Shells, FishAsks) {
    if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
    std::string script = "source tutti.fish\n";
    for (const Question& question : kAsked)
        script += concat("echo (complete -C '", question.line, "' | string split -f1 \\t)\n");
    folder_.write("ask.fish", script);
    expect_answers(kAsked, run("HOME=$PWD fish --no-config ask.fish"));
}

// zsh completes only in an interactive shell, which gets a pseudo-terminal here; its candidates go through `compadd`.
constexpr const char* kAskZsh = R"(
zmodload zsh/zpty
export ANSWERS=$PWD/answers
: > $ANSWERS
zpty inner zsh -f -i
zpty -w inner 'source ./inner.zsh'
count=0
wait_for() { while (( $(grep -c -- "$1" $ANSWERS) < $2 )); do sleep 0.01; zpty -r -t inner ignored; done }
wait_for READY 1
: > $ANSWERS
while IFS= read -r line; do
    zpty -w -n inner "$line"$'\t'
    wait_for '^$' $(( ++count ))
    zpty -w -n inner $'\C-u'
done < questions
zpty -d inner
)";
constexpr const char* kInnerZsh = R"(
bindkey '^I' complete-word
bindkey '^U' kill-whole-line
PROMPT='' LISTMAX=100000
compadd() {
    if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)* ]]; then
        local -a hits
        builtin compadd -A hits "$@"
        print -rn -- "${hits[@]} " >> $ANSWERS
    fi
    builtin compadd "$@"
}
end_answer() { print >> $ANSWERS; print >> $ANSWERS; comppostfuncs=(end_answer) }
comppostfuncs=(end_answer)
print READY >> $ANSWERS
)";

void Shells::ask_zsh(const std::string& setup) const {
    if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
    std::string lines;
    for (const Question& question : kAsked) lines += question.line + '\n';
    folder_.write("questions", lines);
    folder_.write("inner.zsh", setup + kInnerZsh);
    folder_.write("ask.zsh", kAskZsh);
    run("timeout 100 zsh -f ask.zsh");
    // An empty line follows each answer.
    std::istringstream answers(read_file(folder_.path("answers")));
    std::string without;
    for (std::string line; std::getline(answers, line); std::getline(answers, line)) without += line + '\n';
    expect_answers(kAsked, without);
}

TEST_F(Shells, ZshAsksFromAPackage) { ask_zsh("fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u"); }

TEST_F(Shells, ZshAsksWhenSourced) { ask_zsh("autoload -Uz compinit; compinit -D -u; source ./_tutti"); }

// The page as people read it, without the marks of its fonts.
TEST_F(Shells, TheManualPageHasAllOfTheTable) {
    if (!installed("man")) GTEST_SKIP() << "man is not installed";
    const std::string warnings = run("man --warnings -l tutti.1 2>&1 >/dev/null");
    EXPECT_EQ(warnings, "");
    const std::string page = run("MANWIDTH=120 man -P cat -l tutti.1 | col -b");
    EXPECT_NE(page.find("tutti 1.2.3"), std::string::npos);
    EXPECT_NE(page.find("Exit codes: 0 done, 2 usage or config"), std::string::npos);
    EXPECT_NE(page.find("found a difference, or"), std::string::npos);
    const std::vector<NamedCommand> commands = all_commands(table_);
    size_t begin = page.find("\nCOMMANDS");
    for (size_t i = 1; i < commands.size(); ++i) {
        begin = page.find("\n   " + commands[i].words + "\n", begin);
        ASSERT_NE(begin, std::string::npos) << commands[i].words;
        const size_t end =
            i + 1 < commands.size() ? page.find("\n   " + commands[i + 1].words + "\n", begin) : page.size();
        const std::string section = page.substr(begin, end - begin);
        for (const Option& option : commands[i].command->options)
            for (const std::string& name : names_of(option))
                EXPECT_NE(section.find(" " + name), std::string::npos) << commands[i].words << ' ' << name;
    }
}

TEST_F(Shells, TheManualPageSaysWhatAnOptionNeeds) {
    EXPECT_NE(manual_page(table_, "1").find("\nwith \\-\\-json: also the log"), std::string::npos);
}

TEST_F(Shells, TheManualPageKeepsWhatTroffWouldChange) {
    const Command odd = {.name = "tutti",
                         .description = "d",
                         .commands = {{.name = "odd",
                                       .description = ".x 'y' `z` \\n ~^-\"",
                                       .footer = ".starts with a dot\n'and a quote",
                                       .run = [] { return 0; }}}};
    folder_.write("odd.1", manual_page(odd, "1"));
    if (!installed("man")) GTEST_SKIP() << "man is not installed";
    const std::string page = run("MANWIDTH=120 man -P cat --warnings -l odd.1 2>&1 | col -b");
    EXPECT_NE(page.find(".x 'y' `z` \\n ~^-\""), std::string::npos) << page;
    EXPECT_NE(page.find(".starts with a dot\n       'and a quote"), std::string::npos) << page;
}

}  // namespace

}  // namespace tutti::cli
