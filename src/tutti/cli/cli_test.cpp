// The command line as its users see it: exit codes, messages, and stdout that is JSON and nothing else.
#include "tutti/cli/cli.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/cli/testing/run.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/toml.h"
#include "tutti/text/tokenizer.h"

namespace tutti::cli {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// dir / "name": a path in a folder of the test's own.
std::string operator/(const ScratchFolder& folder, const std::string& name) { return folder.path(name); }

// --- usage errors: exit code 2, on stderr, with the nearest right word -----------------------------------------------

TEST(CommandLine, UnknownCommandNamesTheNearest) {
    const Ran r = tutti({"trian", "config.toml"});
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.out, "");
    EXPECT_TRUE(r.err.starts_with("tutti: unknown command `trian` of `tutti`; the nearest is `train`")) << r.err;
    const Ran bench = tutti({"bench", "gem"});
    EXPECT_EQ(bench.code, 2);
    EXPECT_TRUE(contains(bench.err, "the nearest is `gemm`")) << bench.err;
}

TEST(CommandLine, UnknownOptionNamesTheNearest) {
    const Ran r = tutti({"train", "config.toml", "--dryrun"});
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(contains(r.err, "unknown option --dryrun of `tutti train`; the nearest is --dry-run")) << r.err;
    EXPECT_TRUE(contains(r.err, "try: tutti train --help")) << r.err;
    const Ran without_config = tutti({"train", "--rnaks=2"});
    EXPECT_TRUE(contains(without_config.err, "unknown option --rnaks of")) << without_config.err;
}

// Whether the option names files or directories, and what the table says of them.
const Suggestions* path_of(const Option& option) {
    const auto* known = std::get_if<Suggestions>(&option.rule);
    return known != nullptr && known->files ? known : nullptr;
}

// Values that an option takes; files have names of their own.
std::string value_for(const Option& option) {
    if (path_of(option) != nullptr) return "of" + option.name.substr(0, option.name.find(','));
    if (const auto* range = std::get_if<Between>(&option.rule)) return concat(range->low);
    if (const auto* choices = std::get_if<Choices>(&option.rule)) return choices->front();
    return "1";
}

void add_words(const Command& command, const std::string& name, std::vector<std::string>& words) {
    const auto option = std::find_if(command.options.begin(), command.options.end(),
                                     [&](const Option& o) { return o.name.substr(0, o.name.find(',')) == name; });
    ASSERT_NE(option, command.options.end()) << command.name << " has no " << name;
    if (name.starts_with('-')) words.push_back(name);
    if (!std::holds_alternative<bool*>(option->target)) words.push_back(value_for(*option));
}

// Of every command: an option that would have no effect is refused by name, beside the one that excludes it or without
// the one that it needs.
void refuses_what_has_no_effect(const Command& command, std::vector<std::string> words, int& tried) {
    words.push_back(command.name);
    for (const Command& below : command.commands) refuses_what_has_no_effect(below, words, tried);
    std::vector<std::string> needed = words;
    for (const Option& option : command.options)
        if (option.required) add_words(command, option.name, needed);
    const auto is_refused = [&](const std::vector<std::string>& line, const std::string& part) {
        const Ran r = tutti({line.begin() + 1, line.end()});
        EXPECT_EQ(r.code, 2) << joined(line, " ");
        EXPECT_TRUE(contains(r.err, part)) << joined(line, " ") << '\n' << r.err;
        ++tried;
    };
    for (const Option& option : command.options) {
        const std::string name = option.name.substr(0, option.name.find(','));
        for (const std::string& other : option.without) {
            std::vector<std::string> line = option.required ? words : needed;
            add_words(command, name, line);
            if (std::find(line.begin(), line.end(), other) == line.end()) add_words(command, other, line);
            is_refused(line, "exclude each other");
        }
        if (option.beside.empty()) continue;
        std::vector<std::string> line = needed;
        add_words(command, name, line);
        is_refused(line, concat(name, " has an effect only with ", joined(option.beside, " or ")));
    }
}

TEST(CommandLine, AnOptionWithoutEffectIsRefused) {
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    int tried = 0;
    refuses_what_has_no_effect(program(arguments, io), {}, tried);
    EXPECT_GT(tried, 100);
}

TEST(CommandLine, WrongValuesAreRefused) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"train"},
                                               {"train", "c.toml", "--ranks", "0"},
                                               {"train", "c.toml", "--ranks", "two"},
                                               {"train", "c.toml", "d.toml"},
                                               {"generate", "run"},
                                               {"generate", "run", "--prompt", "x", "--top-p", "1.5"},
                                               {"generate", "run", "--prompt", "x", "--temperature=-1"},
                                               {"generate", "run", "--prompt", "x", "--greedy", "--temperature", "1"},
                                               {"bench"},
                                               {"bench", "gemm", "--dtype", "fp8"},
                                               {"data"},
                                               {"data", "train-tokenizer", "text.txt"},
                                               {"data", "train-tokenizer", "--out", "t.json"},
                                               {"data", "train-tokenizer", "t.txt", "--out", "t", "--vocab", "255"},
                                               {"doctor", "now"}}) {
        const Ran r = tutti(words);
        EXPECT_EQ(r.code, 2) << words.back();
        EXPECT_EQ(r.out, "") << words.back();
        EXPECT_TRUE(r.err.starts_with("tutti: ")) << r.err;
    }
    EXPECT_TRUE(contains(tutti({"doctor", "now"}).err, "`tutti doctor` takes no argument now"));
    EXPECT_TRUE(contains(tutti({"train", "c.toml", "--ranks", "2", "--ranks", "3"}).err,
                         "--ranks is given more than once; give it once"));
    EXPECT_TRUE(contains(tutti({"train", "c.toml", "--out"}).err, "--out needs a value"));
    // By the name that was given, of several.
    EXPECT_TRUE(contains(tutti({"plan", "c.toml", "--gpus=0"}).err, "--gpus: required a whole number from 1 to "));
    EXPECT_TRUE(contains(tutti({"launch", "-n", "0", "c.toml"}).err, "-n: required a whole number from 1 to "));
    EXPECT_TRUE(contains(tutti({"rehearse", "c.toml", "--for"}).err, "--for needs a value"));
    // In words of this program.
    EXPECT_TRUE(contains(tutti({"train", "a.toml", "b.toml"}).err, "`tutti train` takes no argument b.toml"));
    EXPECT_TRUE(contains(tutti({"completion", "tcsh"}).err, "SHELL: required one of bash, zsh, fish, got tcsh"));
    EXPECT_TRUE(contains(tutti({"convert", "--from", "a", "--to", "b", "--max-shard-size", "1e3"}).err,
                         "--max-shard-size: required a size in bytes, or in KB, MB or GB such as 500MB, got 1e3"));
    EXPECT_TRUE(contains(tutti({"simulate", "c.toml", "--for", "h100", "--profile", "p.json"}).err,
                         "--profile and --for exclude each other"));
    EXPECT_TRUE(contains(tutti({"bench", "attention", "--tune", "a.json", "--seconds", "2"}).err,
                         "--tune and --seconds exclude each other"));
    // A rehearsal makes no run.
    for (const std::vector<std::string>& of_start :
         std::vector<std::vector<std::string>>{{"--out", "run"}, {"--resume", "never"}, {"--force"}}) {
        std::vector<std::string> words = {"train", "c.toml", "--dry-run"};
        words.insert(words.end(), of_start.begin(), of_start.end());
        EXPECT_TRUE(contains(tutti(words).err, of_start.front() + " and --dry-run exclude each other"));
    }
}

// The number that an option has set; nothing for an option without one.
std::optional<double> number_of(const Option::Target& target) {
    return std::visit(
        []<class T>(T* value) -> std::optional<double> {
            if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>) return static_cast<double>(*value);
            if constexpr (std::same_as<T, std::optional<int>> || std::same_as<T, std::optional<int64_t>>)
                return static_cast<double>(value->value_or(-1));
            return std::nullopt;
        },
        target);
}

void read_decimal_numbers(const Command& whole, const Command& command, std::vector<std::string> words, int& tried) {
    words.push_back(command.name);
    for (const Command& below : command.commands) read_decimal_numbers(whole, below, words, tried);
    for (const Option& option : command.options) {
        const auto* range = std::get_if<Between>(&option.rule);
        EXPECT_FALSE(std::holds_alternative<std::monostate>(option.rule) && number_of(option.target))
            << joined(words, " ") << ' ' << option.name << " has no bounds";
        if (range == nullptr) continue;
        std::vector<std::string> line = words;
        for (const Option& other : command.options)
            if (other.required && &other != &option)
                add_words(command, other.name.substr(0, other.name.find(',')), line);
        const std::string name = option.name.substr(0, option.name.find(','));
        if (name.starts_with('-')) line.push_back(name);
        const double number = range->high < 12 ? range->high : std::max(range->low, 12.0);
        const std::string digits = format_fixed(number, number == std::floor(number) ? 0 : 3);
        const auto parse_with = [&](const std::string& value) {
            std::vector<const char*> all;
            for (const std::string& word : line) all.push_back(word.c_str());
            all.push_back(value.c_str());
            parse(whole, "", static_cast<int>(all.size()), all.data());
        };
        try {
            parse_with("0" + digits);
        } catch (const UsageError& error) {  // without what it stands beside; the numbers are read before
            EXPECT_FALSE(contains(error.what(), ": required ")) << joined(line, " ") << error.what();
        }
        EXPECT_EQ(number_of(option.target), std::stod(digits)) << joined(line, " ") << " 0" << digits;
        for (const char* form : {"0x", "+", " ", "1_", "1'"}) try {
                parse_with(form + digits);
                ADD_FAILURE() << joined(line, " ") << ' ' << form << digits;
            } catch (const UsageError& error) {
                EXPECT_TRUE(contains(error.what(), ": required a ")) << joined(line, " ") << error.what();
            }
        ++tried;
    }
}

// 012 is no octal number: 12 ranks, not 10.
TEST(CommandLine, NumbersAreDecimal) {
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    int tried = 0;
    const Command whole = program(arguments, io);
    read_decimal_numbers(whole, whole, {}, tried);
    EXPECT_GT(tried, 50);
    const Options& of_convert = command_named(whole, {"convert"}).options;
    const auto largest = std::ranges::find(of_convert, "--max-shard-size", &Option::name);
    const std::vector<const char*> words = {"tutti", "convert", "--from",           "a",
                                            "--to",  "b",       "--max-shard-size", "010KB"};
    parse(whole, "", static_cast<int>(words.size()), words.data());
    EXPECT_EQ(*std::get<std::optional<int64_t>*>(largest->target), 10000);
}

// Gives `value` to every option that takes it, alone.
void refuse_value(const Command& command, std::vector<std::string> words, const std::string& value,
                  const std::function<bool(const Option&)>& takes, const std::string& problem, int& tried) {
    for (const Command& below : command.commands) {
        words.push_back(below.name);
        refuse_value(below, words, value, takes, problem, tried);
        words.pop_back();
    }
    for (const Option& option : command.options) {
        if (!takes(option)) continue;
        const std::string name = option.name.substr(0, option.name.find(','));
        std::vector<std::string> line = words;
        if (name.starts_with('-')) line.push_back(name);
        line.push_back(value);
        const Ran r = tutti(line);
        EXPECT_EQ(r.code, 2) << testing::PrintToString(line);
        EXPECT_TRUE(contains(r.err, problem)) << testing::PrintToString(line) << r.err;
        ++tried;
    }
}

// "$OUT" of a script that has not set it: the command does not run as if the option were not given.
TEST(CommandLine, EmptyValuesAreRefused) {
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    int tried = 0;
    const auto takes = [](const Option& option) { return !std::holds_alternative<bool*>(option.target); };
    refuse_value(program(arguments, io), {}, "", takes, ": required a value, got an empty text", tried);
    EXPECT_GT(tried, 200);
}

// --out=~/run makes no directory of the name ~.
TEST(CommandLine, ATildeThatNoShellExpandedIsRefused) {
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    int tried = 0;
    for (const char* path : {"~", "~/run"})
        refuse_value(
            program(arguments, io), {}, path, [](const Option& option) { return path_of(option) != nullptr; },
            concat("write $HOME, or ./~ for a directory of this name, got ", path), tried);
    EXPECT_GT(tried, 100);
}

void refuse_one_file(const Command& command, std::vector<std::string> words, const std::string& file, int& tried) {
    for (const Command& below : command.commands) {
        words.push_back(below.name);
        refuse_one_file(below, words, file, tried);
        words.pop_back();
    }
    const auto add = [](std::vector<std::string>& line, const Option& option, const std::string& value) {
        const std::string name = option.name.substr(0, option.name.find(','));
        if (name.starts_with('-')) line.push_back(name);
        line.push_back(value);
    };
    for (const Option& output : command.options) {
        if (path_of(output) == nullptr || !path_of(output)->written) continue;
        for (const Option& other : command.options) {
            if (&other == &output || path_of(other) == nullptr) continue;
            std::vector<std::string> line = words;
            for (const Option& option : command.options)
                if (&option == &output || &option == &other)
                    add(line, option, file);
                else if (option.required)
                    add(line, option, value_for(option));
            const Ran r = tutti(line);
            EXPECT_EQ(r.code, 2) << testing::PrintToString(line);
            EXPECT_TRUE(contains(r.err, " are one file, " + file)) << testing::PrintToString(line) << r.err;
            ++tried;
        }
    }
}

// A slip such as `rehearse run.toml --svg run.toml` costs no file, and two outputs are two files.
TEST(CommandLine, AFileIsNotReadAndWritten) {
    const ScratchFolder folder;
    const std::string file = folder.write("mine.toml", "by hand\n");
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    const Command table = program(arguments, io);
    int tried = 0;
    refuse_one_file(table, {}, file, tried);
    refuse_one_file(table, {}, folder / "new", tried);
    EXPECT_GT(tried, 100);
    EXPECT_EQ(read_file(file), "by hand\n");
    EXPECT_FALSE(fs::exists(folder / "new"));

    const std::vector<std::string> schedule = {"schedule", "--kind", "1f1b", "--stages", "2", "--microbatches", "2"};
    const auto to = [&](const std::string& csv, const std::string& svg) {
        std::vector<std::string> line = schedule;
        line.insert(line.end(), {"--csv", csv, "--svg", svg});
        return tutti(line).code;
    };
    fs::create_symlink(file, folder / "link");
    EXPECT_EQ(to(file, folder / "link"), 2);
    EXPECT_EQ(to(folder / "new", folder / "./new"), 2);
    EXPECT_EQ(to("/dev/null", "/dev/null"), 0);  // loses nothing
    EXPECT_EQ(to(folder / "new", folder / "other"), 0);
}

TEST(CommandLine, AnOutputLeavesNoUnfinishedFileOfAKilledProcess) {
    const ScratchFolder folder;
    const std::string left = folder.write("s.svg.1234.part", "half of a page");
    EXPECT_EQ(
        tutti({"schedule", "--kind", "1f1b", "--stages", "2", "--microbatches", "2", "--svg", folder / "s.svg"}).code,
        0);
    EXPECT_TRUE(fs::exists(folder / "s.svg"));
    EXPECT_FALSE(fs::exists(left));
}

TEST(CommandLine, AnOutputThatFailsHasThePathThatWasGiven) {
    const ScratchFolder folder;
    const std::string name(250, 's');  // leaves no room for the ending of the unfinished file
    folder.write(name, "an older one");
    const Ran ran =
        tutti({"schedule", "--kind", "1f1b", "--stages", "2", "--microbatches", "2", "--svg", folder / "./" + name});
    EXPECT_EQ(ran.code, 2);
    EXPECT_TRUE(contains(ran.err, folder / "./" + name)) << ran.err;
}

// Before the work, whose result would be lost: the missing config is not looked for.
TEST(CommandLine, AnOutputThatCannotBeWrittenIsSaidFirst) {
    const ScratchFolder folder;
    const std::string file = folder.write("file", "");
    for (const std::string& place : {folder / "no/such.svg", file + "/a.svg", folder / ""}) {
        const Ran r = tutti({"rehearse", folder / "absent.toml", "--svg", place});
        EXPECT_EQ(r.code, 2) << place << r.err;
        EXPECT_TRUE(contains(r.err, place + " cannot be written: ") && contains(r.err, "; --svg names another place"))
            << r.err;
    }
    EXPECT_TRUE(contains(tutti({"rehearse", folder / "absent.toml", "--svg", file}).err, "absent.toml"));
    EXPECT_EQ(read_file(file), "");
}

// As `--csv /dev/stdout | sort`: the link of a pipe leads to no file.
TEST(CommandLine, AnOutputMayBeAPipe) {
    const ScratchFolder folder;
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const Ran ran = tutti({"schedule", "--kind", "1f1b", "--stages", "2", "--microbatches", "2", "--csv",
                           concat("/proc/self/fd/", ends[1])});
    ::close(ends[1]);
    std::string text(1 << 16, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
    ::close(ends[0]);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_TRUE(contains(text, "0F0,0F1,")) << text;
}

TEST(CommandLine, AFullDiskUnderStandardOutputIsAnError) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"--help"}, {"--version"}, {"train", "--help"}, {"models"}}) {
        std::vector<const char*> argv = {"tutti"};
        for (const std::string& word : words) argv.push_back(word.c_str());
        std::ofstream full("/dev/full");
        std::ostringstream err;
        EXPECT_EQ(run(static_cast<int>(argv.size()), argv.data(), Io{full, err}), 4) << words.back();
        EXPECT_TRUE(contains(err.str(), "is its disk full?")) << err.str();
    }
}

// More runs than the terminal has lines, with longer names than it has columns: each picture fits, so that the next one
// is drawn over it.
TEST(WatchCommand, APictureFitsTheTerminal) {
    const ScratchFolder folder;
    std::vector<std::string> words = {"tutti", "watch"};
    for (int i = 0; i < 20; ++i) {
        words.push_back(folder / concat("a-run-with-a-rather-long-name-", i));
        fs::create_directory(words.back());
        std::ofstream(words.back() + "/run.lock");  // of a run that starts
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    constexpr struct winsize kSize = {.ws_row = 12, .ws_col = 30, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &kSize);
    ASSERT_GE(child, 0);
    if (child == 0) {
        execv(TUTTI_PROGRAM, argv.data());
        _exit(127);
    }
    std::string seen;
    char buffer[4096];
    for (ssize_t size = 1; size > 0 && !contains(seen, "\033[J");) {
        size = read(terminal, buffer, sizeof buffer);
        if (size > 0) seen.append(buffer, to_size(size));
    }
    EXPECT_EQ(write(terminal, "\x03", 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    close(terminal);
    const std::string begin = "\033[2J\033[H";
    ASSERT_TRUE(seen.starts_with(begin)) << seen;
    std::istringstream lines(seen.substr(begin.size(), seen.find("\033[J") - begin.size()));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count)
        EXPECT_LE(columns_of(line.substr(0, line.find("\033[K"))), 30U) << line;
    EXPECT_EQ(count, 11);
    EXPECT_TRUE(contains(seen, "more lines: a taller")) << seen;
}

TEST(WatchCommand, ADirectoryWithoutARunIsNotWaitedFor) {
    const ScratchFolder folder;
    const std::string path = folder / "texts";
    fs::create_directory(path);
    std::ofstream(path + "/corpus.txt") << "abc";
    for (const char* how : {"--once", "--http"}) {
        const Ran ran = tutti({"watch", path, how});
        EXPECT_EQ(ran.code, 3);
        EXPECT_TRUE(contains(ran.err, "texts holds no run: it has no metrics.jsonl, and no run.lock")) << ran.err;
    }
}

TEST(Cli, WhatIsNoRunIsTheSameErrorForEachCommandThatReadsRuns) {
    const ScratchFolder folder;
    fs::create_directory(folder / "texts");
    std::ofstream(folder / "file") << "abc";
    const std::vector<std::pair<std::string, std::string>> places = {
        {"absent", ": required: the directory of a run, as `tutti train --out DIR` makes it; it does not exist\n"},
        {"file", ": required: the directory of a run, as `tutti train --out DIR` makes it; this is not a directory\n"},
        {"texts",
         " holds no run: it has no metrics.jsonl, and no run.lock of one that starts; required: the directory of "
         "a run, as `tutti train --out DIR` makes it\n"}};
    for (const auto& [name, said] : places)
        for (std::vector<std::string> words :
             {std::vector<std::string>{"report"}, {"watch"}, {"simulate", "--model", "gpt2-124m", "--run"}}) {
            words.push_back(folder / name);
            const Ran ran = tutti(words);
            EXPECT_EQ(ran.code, 3) << words[0];
            EXPECT_EQ(ran.err, concat("tutti: ", folder / name, said));
        }
}

// `tutti config` explains every key that a config may have, alone, in its section and in the document.
TEST(ConfigCommand, ExplainsEveryKey) {
    const Json document = Json::parse(tutti({"config", "--json"}).out);
    size_t keys = 0;
    const spec::RunSpec defaults{};
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto& value) {
        ++keys;
        const Ran alone = tutti({"config", field.path()});
        EXPECT_EQ(alone.code, 0) << field.path();
        EXPECT_TRUE(contains(alone.out, field.path())) << alone.out;
        if (contains(alone.out, "# the default")) {  // else a group of keys, such as model.moe
            EXPECT_TRUE(alone.out.starts_with(concat(field.path(), " = ", spec::toml_text(value)))) << alone.out;
        }
        EXPECT_TRUE(contains(tutti({"config", std::string(field.section)}).out, field.path() + " ")) << field.path();
    });
    EXPECT_EQ(document["keys"].size(), keys);
    for (const char* shown : {"", "model", "parallel"}) {
        std::istringstream lines(*shown != 0 ? tutti({"config", shown}).out : tutti({"config"}).out);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    }
    const Ran group = tutti({"config", "rope_scaling"});
    EXPECT_TRUE(contains(group.out, "model.rope_scaling.factor") && !contains(group.out, "rope_theta")) << group.out;
    const Ran unknown = tutti({"config", "train.step"});
    EXPECT_EQ(unknown.code, 2);
    EXPECT_TRUE(contains(unknown.err, "the nearest is train.steps")) << unknown.err;
}

// What `tutti init` writes is a run that can start; what is there already is kept, and never overwritten.
TEST(InitCommand, WritesARunAndOverwritesNothing) {
    const ScratchFolder folder;
    const std::string directory = folder / "mine", config = directory + "/run.toml";
    const Ran first = tutti({"init", directory});
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_TRUE(contains(first.out, "next: tutti train " + config)) << first.out;
    const std::string text = read_file(config);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 45);
    const Ran dry = tutti({"train", config, "--dry-run", "--json"});
    EXPECT_EQ(dry.code, 0) << dry.err;
    EXPECT_TRUE(read_file(directory + "/text.txt").starts_with("Matthew 1\n\nThe book of the generation"));
    EXPECT_EQ(text::make_tokenizer(directory + "/tokenizer.json")->vocab(), 1024);

    EXPECT_EQ(tutti({"init", directory}).code, 0);
    std::ofstream(config, std::ios::app) << "# mine\n";
    const Ran changed = tutti({"init", directory});
    EXPECT_EQ(changed.code, 2);
    EXPECT_TRUE(contains(changed.err, config + " is there already and differs")) << changed.err;
    EXPECT_EQ(read_file(config), text + "# mine\n");
    EXPECT_EQ(tutti({"init", config}).code, 2);  // no directory
}

// The commands that it prints can be pasted, and the config can be read, whatever the directory is called.
TEST(InitCommand, AnyNameOfADirectory) {
    const ScratchFolder folder;
    for (const char* name : {"two words", "it's", "a\nb", "$HOME `x`", "q\"\\"}) {
        const Ran r = tutti({"init", folder / name});
        ASSERT_EQ(r.code, 0) << r.err;
        EXPECT_TRUE(contains(r.out, concat("tutti train ", quoted_for_shell((folder / name) + "/run.toml"), " --out ",
                                           quoted_for_shell((folder / name) + "/run"), " ")))
            << r.out;
        const Ran dry = tutti({"train", (folder / name) + "/run.toml", "--dry-run"});
        EXPECT_EQ(dry.code, 0) << dry.err;
    }
}

TEST(CommandLine, NothingAskedShowsWhatThereIs) {
    const Ran r = tutti({});
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.out, "");
    for (const char* command : {"train", "generate", "report", "bench", "doctor"})
        EXPECT_TRUE(contains(r.err, command)) << command;
}

// `visit(words)` for every command that runs.
void for_each_command(const Command& command, const std::vector<std::string>& words,
                      const std::function<void(const Command&, const std::vector<std::string>&)>& visit) {
    if (command.run) visit(command, words);
    for (const Command& below : command.commands) {
        std::vector<std::string> more = words;
        more.push_back(below.name);
        for_each_command(below, more, visit);
    }
}

TEST(CommandLine, HelpFitsTheTerminalAndHasExamples) {
    Arguments arguments;
    std::ostringstream out, err;
    const Io io{out, err};
    const Command table = program(arguments, io);
    int commands = 0;
    for_each_command(table, {}, [&](const Command& command, std::vector<std::string> words) {
        ++commands;
        words.emplace_back("--help");
        const Ran r = tutti(words);
        EXPECT_EQ(r.code, 0);
        EXPECT_EQ(r.err, "");
        EXPECT_TRUE(contains(r.out, "--json")) << r.out;
        if (!command.options.empty() && command.options.size() > 1) {
            EXPECT_TRUE(contains(r.out, "Example")) << r.out;
        }
        std::istringstream lines(r.out);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), 100U) << line;
    });
    EXPECT_GT(commands, 25);
    const std::string page = tutti({"train", "--help"}).out;
    EXPECT_LE(std::count(page.begin(), page.end(), '\n'), 50);
    EXPECT_TRUE(contains(page, "`tutti config`")) << page;
}

TEST(CommandLine, Version) {
    const Ran r = tutti({"--version"});
    EXPECT_EQ(r.code, 0);
    EXPECT_TRUE(contains(r.out, "tutti 0.1.0")) << r.out;
    EXPECT_EQ(Json::parse(tutti({"version", "--json"}).out)["version"], "0.1.0");
}

// --- config and data errors ------------------------------------------------------------------------------------------

TEST(Train, ConfigErrorsAreUsageErrors) {
    const ScratchFolder dir;
    const std::string config = dir.write("c.toml", "[train]\nstepss = 3\n");
    const Ran unknown_key = tutti({"train", config, "--out", dir / "out"});
    EXPECT_EQ(unknown_key.code, 2);
    EXPECT_TRUE(contains(unknown_key.err, config + ":2:1")) << unknown_key.err;
    EXPECT_FALSE(fs::exists(dir / "out"));
    EXPECT_EQ(tutti({"train", dir / "absent.toml"}).code, 2);

    const std::string good = dir.write("good.toml", "[data]\ntrain = \"absent.txt\"\n");
    // Each --set takes one value; with more, the config would be swallowed.
    const Ran bad_set = tutti({"train", "--set", "train.steps=zero", good});
    EXPECT_EQ(bad_set.code, 2);
    EXPECT_TRUE(contains(bad_set.err, "train.steps=zero")) << bad_set.err;
    EXPECT_TRUE(contains(tutti({"train", good, "--device", "tpu"}).err, "tpu"));
    const Ran resume = tutti({"train", good, "--resume", "nevr"});
    EXPECT_EQ(resume.code, 2);
    EXPECT_TRUE(contains(resume.err, "the nearest is never")) << resume.err;
}

TEST(CommandLine, MissingRunsAreNamed) {
    const ScratchFolder dir;
    EXPECT_EQ(tutti({"report", dir / "absent"}).code, 3);
    const Ran generated = tutti({"generate", dir / "absent", "--prompt", "x"});
    EXPECT_TRUE(generated.code == 2 || generated.code == 3) << generated.code;
    EXPECT_TRUE(contains(generated.err, dir / "absent")) << generated.err;
}

TEST(CommandLine, FailuresAreJsonToo) {
    const ScratchFolder dir;
    for (const auto& [words, code] :
         std::vector<std::pair<std::vector<std::string>, int>>{{{"train", dir / "absent.toml", "--json"}, 2},
                                                               {{"report", "--json", dir / "absent"}, 3},
                                                               {{"train", "--jso", "--json"}, 2}}) {
        const Ran r = tutti(words);
        EXPECT_EQ(r.code, code);
        const Json document = Json::parse(r.out);
        EXPECT_EQ(document["exit_code"], code);
        EXPECT_TRUE(contains(r.err, document["error"].get<std::string>()));
    }
}

// --- commands that succeed -------------------------------------------------------------------------------------------

TEST(Doctor, SaysWhatIsThere) {
    const Ran r = tutti({"doctor", "--json"});
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.err, "");
    const Json document = Json::parse(r.out);
    EXPECT_EQ(document["gpu"]["gpus"].size(), find_gpus().found.size());
    EXPECT_EQ(document["processor"]["cores_online"], sysconf(_SC_NPROCESSORS_ONLN));
    EXPECT_EQ(document["disk"]["directory"], fs::current_path().string());
    EXPECT_GT(document["memory"]["total_bytes"].get<double>(), document["memory"]["available_bytes"].get<double>());
    EXPECT_TRUE(document["problems"].empty());
    EXPECT_TRUE(contains(tutti({"doctor"}).out, document["processor"]["model"].get<std::string>()));
}

TEST(Report, WritesThePageAndNothingElse) {
    const ScratchFolder dir;
    fs::create_directory(dir / "run");
    dir.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"loss\": 5.25}\n");
    const Ran r = tutti({"report", dir / "run", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    const Json document = Json::parse(r.out);
    EXPECT_EQ(document["report"], dir / "run/report.html");
    EXPECT_EQ(document["last_step"], 2);
    EXPECT_EQ(document["bytes"], fs::file_size(dir / "run/report.html"));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir / "run"), {}), 2);

    EXPECT_EQ(tutti({"report", dir / "run"}).out, (dir / "run/report.html") + "\n");
    EXPECT_EQ(tutti({"report", dir / "run", "--out", dir / "no/such/place.html"}).code, 2);
    EXPECT_EQ(tutti({"report", dir / "run", dir / "run", "--out", dir / "two.html", "--step", dir / "s.html"}).code, 2);
    EXPECT_FALSE(fs::exists(dir / "two.html"));  // a refused command writes nothing
    const std::string log = read_file(dir / "run/metrics.jsonl");
    for (const char* option : {"--out", "--csv", "--step"})
        for (const char* name : {"metrics.jsonl", "config.toml", "./run.json", "../run/trace.json"})
            EXPECT_EQ(tutti({"report", dir / "run", option, (dir / "run/") + name}).code, 2) << option << name;
    EXPECT_EQ(tutti({"report", dir / "run", "--csv", dir / "run/./report.html"}).code, 2);
    EXPECT_EQ(tutti({"report", dir / "run", "--csv", dir / "run/losses.csv"}).code, 0);
    EXPECT_EQ(read_file(dir / "run/metrics.jsonl"), log);
}

TEST(Report, NamesTheRankThatWentAnotherWay) {
    const ScratchFolder dir;
    EXPECT_ANY_THROW(comm::run_ranks(2, {.flight_directory = dir / "run/flight"}, [](comm::World& world) {
        world.everyone("dp")->barrier();
        if (world.rank() == 1) throw DataError("the disk of rank 1 is gone");
        world.everyone("tp")->barrier();
    }));
    const Ran text = tutti({"report", "--flight", dir / "run"});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_TRUE(contains(text.out, "records of 2 of 2 ranks")) << text.out;
    EXPECT_TRUE(contains(text.out, "=> rank 1 failed: the disk of rank 1 is gone")) << text.out;
    EXPECT_TRUE(contains(text.out, "rank 0 was stopped: rank 1 failed: the disk of rank 1 is gone")) << text.out;
    const Ran json = tutti({"report", "--flight", dir / "run/flight", "--json"});
    const Json document = Json::parse(json.out);
    EXPECT_EQ(document["findings"][0]["finding"], "failed");
    EXPECT_EQ(document["findings"][0]["ranks"], Json({1}));
    EXPECT_EQ(document["records"][1]["begun"]["dp"], 1);

    dir.write("run/flight/rank-0.json", "{\"rank\": ");
    const Ran damaged = tutti({"report", "--flight", dir / "run"});
    EXPECT_EQ(damaged.code, 3);
    EXPECT_TRUE(contains(damaged.err, "rank-0.json: damaged at byte 9 of 9")) << damaged.err;
    EXPECT_EQ(tutti({"report", "--flight", dir / "absent"}).code, 3);
    EXPECT_EQ(tutti({"report", "--flight", dir / "run", dir / "run"}).code, 2);
    EXPECT_TRUE(contains(tutti({"report"}).err, "RUN_DIR is required")) << tutti({"report"}).err;
}

TEST(Bench, GemmIsOneDocument) {
    const Ran r = tutti({"bench", "gemm", "--dtype", "f32", "--seconds", "0.01", "--threads", "1", "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const Json document = Json::parse(r.out);
    EXPECT_EQ(document["threads"], 1);
    ASSERT_GE(document["rows"].size(), 1u);
    const Json& row = document["rows"][0];
    EXPECT_EQ(row["flops"], 2.0 * 512 * 512 * 512);
    EXPECT_DOUBLE_EQ(row["flops_per_s"].get<double>(), row["flops"].get<double>() / row["median_s"].get<double>());
    EXPECT_DOUBLE_EQ(row["share_of_peak"].get<double>(),
                     row["flops_per_s"].get<double>() / document["peak_flops_per_s"].get<double>());
    EXPECT_EQ(tutti({"bench", "gemm", "--model", "gpt3"}).code, 2);
    const Ran sizes = tutti({"bench", "gemm", "--dtype", "f32", "--seconds", "0.01", "--threads", "1", "--sizes",
                             "3x5x7,64x32x16", "--json"});
    EXPECT_EQ(Json::parse(sizes.out)["rows"][1]["flops"].get<double>(), 2.0 * 64 * 32 * 16) << sizes.err;
    for (const char* wrong : {"", "3x5", "3x5x0", "3x5x7x9", "axbxc", "3x5x7,,", "99999999x1x1", "+3x5x7", " 3x5x7",
                              "3x5x7, 3x5x8", "3x5x7,3x5x7"})
        EXPECT_EQ(tutti({"bench", "gemm", "--sizes", wrong}).code, 2) << wrong;
}

// Lists on a command line: no element is empty, blank at an end, or there twice.
TEST(CommandLine, ListsHaveElementsOfTheirOwn) {
    const std::pair<std::vector<std::string>, std::string> lists[] = {
        {{"plan", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--global-batch", "8", "--without"},
         "pp,cp"},
        {{"rehearse", "--model", "llama-tiny", "--vary"}, "parallel.zero=0,1"},
        {{"bench", "gemm", "--sizes"}, "3x5x7,3x5x8"}};
    for (const auto& [words, list] : lists) {
        const size_t comma = list.find(',');
        const std::string first = list.substr(0, comma), last = list.substr(comma + 1);
        const std::string value = first.substr(first.find('=') == std::string::npos ? 0 : first.find('=') + 1);
        for (const std::string& wrong :
             {first + ",", first + ",," + last, first + ", " + last, first + " ," + last, list + "," + value}) {
            std::vector<std::string> line = words;
            line.push_back(wrong);
            const Ran r = tutti(line);
            EXPECT_EQ(r.code, 2) << wrong;
            EXPECT_TRUE(contains(r.err, "none empty, and no blanks") || contains(r.err, value + " is given twice"))
                << r.err;
        }
    }
}

// No message of 64 MiB fits a share of a millisecond.
TEST(Bench, CommLeavesOutMessagesThatItsTimeDoesNotHold) {
    const Ran r = tutti({"bench", "comm", "--seconds", "0.001", "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const Json document = Json::parse(r.out);
    EXPECT_EQ(document["left_out"].size(), 6u);
    EXPECT_GE(document["rows"].size(), 6u);
    const double copy = document["copy_bytes_per_s"].get<double>();
    for (const Json& row : document["rows"])
        EXPECT_DOUBLE_EQ(row["share_of_copy"].get<double>() * copy, row["bus_bytes_per_s"].get<double>());
    EXPECT_TRUE(contains(r.err, "larger messages are left out: they need more than --seconds 0.001")) << r.err;
}

// Each weight of a matrix costs 6 FLOPs a token: 2 in the forward, 4 in the two gradients.
TEST(Bench, GemmOfAModelHasAllProductsOfAStep) {
    const auto rows_of = [](const char* model) {
        const Ran r = tutti({"bench", "gemm", "--model", model, "--dtype", "f32", "--seconds", "0.01", "--json"});
        EXPECT_EQ(r.code, 0) << r.err;
        return Json::parse(r.out);
    };
    const auto flops = [](const Json& document) {
        double sum = 0;
        for (const Json& row : document["rows"])
            if (row.find("calls")) sum += row["calls"].get<double>() * row["flops"].get<double>();
        return sum;
    };
    const spec::ModelSpec m = spec::preset("llama-tiny");
    const int64_t head = m.head_dim, block = m.width * head * (2 * m.heads + 2 * m.kv_heads) + 3 * m.width * m.ffn;
    const Json document = rows_of("llama-tiny");
    EXPECT_EQ(flops(document), 6.0 * 4096 * static_cast<double>(m.layers * block + m.width * m.vocab));
    EXPECT_FALSE(contains(document["notes"].dump(), "experts"));
    EXPECT_TRUE(contains(rows_of("deepseek-v2-tiny")["notes"].dump(), "grouped products of experts are left out"));
}

// 256 rows read 33.6 MB of weights: 10 us of an H100's memory, more than the 8.7 us of its peak.
TEST(Bench, PredictsProductsOfAnyMachine) {
    const Json small = Json::parse(tutti({"bench", "gemm", "--sizes", "256x4096x4096", "--for", "h100", "--json"}).out);
    EXPECT_EQ(small["rows"][0]["flops"].get<double>(), 2.0 * 256 * 4096 * 4096);
    EXPECT_GT(small["rows"][0]["seconds"].get<double>(), 8.7e-6);
    EXPECT_LT(small["rows"][0]["seconds"].get<double>(), 40e-6);
    const Json sweep = Json::parse(tutti({"bench", "gemm", "--for", "h100", "--json"}).out)["rows"];
    ASSERT_EQ(sweep.size(), 7u);
    EXPECT_LT(sweep[0]["share_of_peak"].get<double>(), 0.3);
    EXPECT_GT(sweep[5]["share_of_peak"].get<double>(), 0.6);
    EXPECT_EQ(tutti({"bench", "gemm", "--for", "h100", "--seconds", "3"}).code, 2);
    EXPECT_EQ(tutti({"bench", "gemm", "--for", "v100"}).code, 2);  // has no bf16
}

TEST(Bench, StepIsTheDefinitionOfMfu) {
    const Ran r = tutti({"bench", "step", "--dtype", "f32", "--seconds", "0.01", "--json", "--set", "model.layers=2",
                         "--set", "train.seq_len=16", "--set", "train.global_batch=4", "--set", "train.micro_batch=2"});
    ASSERT_EQ(r.code, 0) << r.err;
    const Json d = Json::parse(r.out);
    // llama-tiny with two layers: 4 C C of attention and 3 C F in each, the head V C; 12 L s H D of full attention.
    const double C = 128, F = 448, V = 256, L = 2, s = 16, tokens = 4 * s;
    const double matmul = 6 * (L * (4 * C * C + 3 * C * F) + V * C), attention = 12 * L * s * C;
    EXPECT_DOUBLE_EQ(d["flops_per_step_full"].get<double>(), (matmul + attention) * tokens);
    EXPECT_DOUBLE_EQ(d["flops_per_step_causal"].get<double>(), (matmul + attention / 2) * tokens);
    EXPECT_DOUBLE_EQ(d["tokens_per_s"].get<double>(), tokens / d["step_s"].get<double>());
    EXPECT_NEAR(d["mfu_causal"].get<double>() * d["peak_flops_per_s"].get<double>() * d["step_s"].get<double>(),
                (matmul + attention / 2) * tokens, 1.0);
    EXPECT_GE(d["peak_flops_per_s"].get<double>(), d["best_gemm_flops_per_s"].get<double>());
    // A model that knows nothing loses ln V a token, and less after having seen the batch.
    EXPECT_NEAR(d["first_loss"].get<double>(), std::log(V), 0.1);
    EXPECT_LT(d["last_loss"].get<double>(), d["first_loss"].get<double>());
    // The fewest steps take longer than the time that was asked for, which is said.
    EXPECT_TRUE(contains(d["notes"].dump(), "--seconds 0.01 is less than the fewest runs take"));
    EXPECT_EQ(tutti({"bench", "step", "--set", "model.widht=1"}).code, 2);
    EXPECT_EQ(tutti({"bench", "step", "--set", "data.train=text.txt"}).code, 2);  // not read, so refused
}

// A plan needs neither the data nor the ranks nor the machine.
TEST(DryRun, OfAMachineAndDataThatAreNotHere) {
    const ScratchFolder dir;
    const std::string config = dir.write("c.toml",
                                         "[model]\npreset = \"gpt2-124m\"\n[data]\ntrain = \"/no/such/file\"\n[train]\n"
                                         "global_batch = 512\nmicro_batch = 4\n[parallel]\nzero = 3\n");
    const std::vector<std::string> plan = {"train", config, "--dry-run", "--ranks", "64", "--for", "cpu-amx", "--json"};
    const Ran dry = tutti(plan);
    ASSERT_EQ(dry.code, 0) << dry.err;
    EXPECT_TRUE(contains(dry.err, "of 64 ranks were rehearsed")) << dry.err;
    const Json d = Json::parse(dry.out);
    EXPECT_EQ(d["rank"], 0);
    EXPECT_EQ(d["ranks"], 64);
    int64_t sum = 0;
    for (const auto& [purpose, bytes] : d["memory"].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(d["peak_bytes"], sum);
    EXPECT_TRUE(d["peak_place"].is_string());
    EXPECT_GT(d["flops"].get<double>(), 0);
    ASSERT_FALSE(d["communication"].empty());
    for (const Json& c : d["communication"])
        for (const char* key : {"group", "size", "operation", "calls", "bytes", "sent"})
            EXPECT_TRUE(c.contains(key)) << key;
    std::vector<std::string> other = plan;
    other.insert(other.end(), {"--rank", "63"});
    EXPECT_EQ(Json::parse(tutti(other).out)["rank"], 63);
    other.back() = "64";
    EXPECT_EQ(tutti(other).code, 2);

    EXPECT_EQ(tutti({"train", config, "--for", "cpu-amx"}).code, 2);
    const Ran unknown = tutti({"train", config, "--dry-run", "--for", "h10"});
    EXPECT_EQ(unknown.code, 2);
    EXPECT_TRUE(contains(unknown.err, "the nearest is h100")) << unknown.err;
}

// A recipe whose codes the GPUs of a cluster do not multiply is refused by every command that is asked about it, with
// the units that there are and the way out; the cluster's answer to `emulate` is that of one that multiplies.
TEST(Recipes, ThatAClusterDoesNotMultiplyAreRefused) {
    const ScratchFolder dir;
    const std::string config = dir.write("c.toml",
                                         "[model]\npreset = \"llama-tiny\"\nffn = 384\n[data]\ntrain = "
                                         "\"/no/such/file\"\n[train]\nseq_len = 256\nmicro_batch = 1\n"
                                         "global_batch = 16\n");
    const auto of = [&](const std::string& command, const std::string& cluster) {
        std::vector<std::string> words = {command, config};
        if (command == "plan") words.insert(words.end(), {"--cluster", cluster, "--ranks", "8"});
        if (command == "rehearse") words.insert(words.end(), {"--for", cluster});
        if (command == "train") words.insert(words.end(), {"--dry-run", "--for", cluster});
        return words;
    };
    const auto with = [&](std::vector<std::string> words, const char* recipe, bool emulate) {
        words.insert(words.end(), {"--set", concat("precision.recipe=", recipe)});
        if (emulate) words.insert(words.end(), {"--set", "precision.emulate=true"});
        return tutti(words);
    };
    const std::vector<std::pair<const char*, std::vector<const char*>>> refused = {
        {"h100", {"mxfp8"}}, {"a100", {"tensor", "delayed", "block", "mxfp8"}}, {"l40s", {"block", "mxfp8"}}};
    for (const char* command : {"rehearse", "train", "plan"})
        for (const auto& [cluster, recipes] : refused)
            for (const char* recipe : recipes) {
                SCOPED_TRACE(concat(command, ' ', cluster, ' ', recipe));
                const Ran r = with(of(command, cluster), recipe, false);
                EXPECT_EQ(r.code, 2);
                EXPECT_TRUE(contains(r.err, concat("[precision] recipe = \"", recipe, "\": "))) << r.err;
                EXPECT_TRUE(contains(r.err, "1 x 32 by e8m0: compute capability 10.0 and later")) << r.err;
                EXPECT_TRUE(contains(r.err, "set [precision] emulate = true")) << r.err;
                if (recipe != recipes.front()) continue;
                EXPECT_EQ(with(of(command, cluster), recipe, true).code, 0);
            }
    for (const auto& [cluster, recipe] :
         {std::pair{"h100", "block"}, {"l40s", "tensor"}, {"b200", "block"}, {"b200", "mxfp8"}}) {
        const Ran r = with(of("rehearse", cluster), recipe, false);
        EXPECT_EQ(r.code, 0) << cluster << ' ' << recipe << r.err;
    }
}

// A plan takes the recipe that it is given, and no other, in a layout that keeps its groups and gathers its codes: the
// 128 channels of keys may not be cut, and `tensor` needs multiples of 16.
TEST(Recipes, ArePlannedInLayoutsThatKeepTheirGroups) {
    const ScratchFolder dir;
    const auto planned = [&](const std::vector<std::string>& settings) {
        std::vector<std::string> words = {"plan",   "--model", "llama-tiny",     "--cluster", "h100",
                                          "--gpus", "8",       "--global-batch", "16",        "--seq-len",
                                          "256",    "--data",  "x.bin",          "--emit",    dir / "best.toml"};
        for (const std::string& s : settings) words.insert(words.end(), {"--set", s});
        const Ran r = tutti(words);
        EXPECT_EQ(r.code, 0) << joined(settings, " ") << r.err;
        return spec::parse_file(dir / "best.toml");
    };
    EXPECT_EQ(planned({}).precision.recipe, "none");
    const spec::RunSpec block = planned({"precision.recipe=block", "model.ffn=384"});
    EXPECT_EQ(block.precision.recipe, "block");
    EXPECT_EQ(block.parallel.tp, 1);
    const spec::RunSpec weights = planned({"precision.recipe=tensor", "precision.gather=weights"});
    EXPECT_EQ(weights.precision.gather, "weights");
    EXPECT_EQ(weights.parallel.zero, 3);
    const spec::RunSpec sequences = planned({"precision.recipe=delayed", "precision.gather=sequences"});
    EXPECT_EQ(sequences.precision.gather, "sequences");
    EXPECT_GT(sequences.parallel.tp, 1);
    EXPECT_TRUE(sequences.parallel.sequence_parallel);
}

TEST(Rehearse, PrintsTheStepInItsOrder) {
    const ScratchFolder dir;
    const std::string config = dir.write("c.toml", "[data]\ntrain = \"no such file\"\n");
    const Ran r = tutti({"rehearse", config, "--kernels", "--for", "cpu-avx2"});
    ASSERT_EQ(r.code, 0) << r.err;
    size_t at = 0;
    for (const char* part :
         {"forward of model.embed_tokens\n  embedding_forward", "more blocks, alike", "forward of head",
          "backward of head", "backward of model.layers.", "swiglu", "optimizer\n  adamw", "FLOPs of the step"}) {
        at = r.out.find(part, at);
        EXPECT_NE(at, std::string::npos) << part << "\n" << r.out;
    }
    // 8 layers: 8 forwards, 8 gradients of weights, 7 of inputs: 23 x 2 x 8192^3 FLOPs.
    const Ran mlp =
        tutti({"rehearse", "--model", "mlp-8192", "--kernels", "--for", "h100", "--set", "train.micro_batch=32"});
    const size_t line = mlp.out.find("gemm          8192 x 8192 x 8192");
    ASSERT_NE(line, std::string::npos) << mlp.out;
    EXPECT_TRUE(contains(mlp.out.substr(line, 120), "  23 calls    25.3 TFLOP  100.0 %\n")) << mlp.out;
}

TEST(Rehearse, LayoutAndVariations) {
    const ScratchFolder dir;
    const std::string config = dir.write("c.toml", "[data]\ntrain = \"no such file\"\n");
    const std::string picture = dir / "layout.svg";
    const Ran layout = tutti(
        {"rehearse", config, "--ranks", "4", "--set", "parallel.tp=2", "--layout", "--rank", "3", "--svg", picture});
    ASSERT_EQ(layout.code, 0) << layout.err;
    EXPECT_TRUE(contains(layout.out, "q_proj.weight (128, 128)\n    [64:128, :]  ranks 1, 3\n")) << layout.out;
    EXPECT_TRUE(contains(read_file(picture), "</svg>"));
    EXPECT_EQ(tutti({"rehearse", config, "--ranks", "4", "--layout", "--rank", "4"}).code, 2);

    const Ran vary = tutti({"rehearse", config, "--ranks", "4", "--for", "cpu-avx2", "--vary", "parallel.zero=0,3",
                            "--vary", "recompute.policy=full", "--svg", picture, "--json"});
    ASSERT_EQ(vary.code, 0) << vary.err;
    const Json variations = Json::parse(vary.out)["variations"];
    ASSERT_EQ(variations.size(), 3u);
    // AdamW's two moments, f32 masters: of all values, and of a quarter of them.
    const auto optimizer = [&](size_t i) { return variations[i]["memory"]["optimizer"].get<double>(); };
    EXPECT_NEAR(optimizer(0) / optimizer(1), 4, 0.1);
    EXPECT_EQ(variations[2]["set"], "recompute.policy=full");
    EXPECT_TRUE(contains(read_file(picture), "parallel.zero=3"));
    // Of one microbatch the peak is in the update or in the backward; the most activations are before the backward.
    const Ran text =
        tutti({"rehearse", config, "--for", "cpu-avx2", "--set", "train.micro_batch=1", "--vary", "parallel.zero=0"});
    const size_t largest = text.out.find("largest of each, each at its own time:");
    ASSERT_NE(largest, std::string::npos) << text.out;
    EXPECT_TRUE(contains(text.out.substr(largest), "activations")) << text.out;
    EXPECT_EQ(tutti({"rehearse", config, "--vary", "parallel.zero"}).code, 2);
    EXPECT_EQ(tutti({"rehearse", config, "--vary", "parallel.zero=1", "--kernels"}).code, 2);
    EXPECT_EQ(tutti({"rehearse", config, "--layout", "--per-host", "2"}).code, 2);
    EXPECT_EQ(tutti({"rehearse", config, "--layout", "--svg", dir / "no/such/place.svg"}).code, 2);
}

TEST(Train, TrainsGeneratesReports) {
    const ScratchFolder dir;
    std::string text;
    for (int i = 0; i < 200; ++i) text += "In the beginning God created the heaven and the earth. ";
    const std::string data = dir.write("text.txt", text), out = dir / "run";
    const std::string config = dir.write("c.toml", "[model]\nlayers = 1\n[data]\ntrain = \"" + data +
                                                       "\"\n[train]\nsteps = 2\nseq_len = 32\nglobal_batch = 2\n"
                                                       "micro_batch = 1\n[precision]\ncompute = \"f32\"\n");
    const Ran dry = tutti({"train", config, "--dry-run", "--json"});
    EXPECT_EQ(dry.code, 0) << dry.err;
    EXPECT_EQ(Json::parse(dry.out)["dry_run"], true);
    EXPECT_FALSE(fs::exists(out));

    const Ran trained = tutti({"train", config, "--out", out, "--json"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Json document = Json::parse(trained.out);
    EXPECT_EQ(document["step"], 2);
    EXPECT_EQ(document["tokens"], 2 * 2 * 32);
    EXPECT_TRUE(fs::exists(document["checkpoint"].get<std::string>()));

    const Ran generated = tutti({"generate", out, "--prompt", "God ", "--max-tokens", "5", "--json"});
    ASSERT_EQ(generated.code, 0) << generated.err;
    EXPECT_EQ(Json::parse(generated.out)["tokens"].size(), 5u);
    const Ran streamed = tutti({"generate", out, "--prompt", "God ", "--max-tokens", "5"});
    EXPECT_EQ(streamed.out, "God " + Json::parse(generated.out)["text"].get<std::string>() + "\n");
    EXPECT_EQ(tutti({"report", out}).code, 0);

    // Log-probabilities: one of each new token; of the prompt's tokens the same as where they were new.
    const Json made = Json::parse(generated.out);
    ASSERT_EQ(made["logprobs"].size(), 5u);
    EXPECT_FALSE(made.contains("prompt_logprobs"));
    std::string ids_of_all = "71,111,100,32";
    for (const int id : made["tokens"].get<std::vector<int>>()) ids_of_all += concat(",", id);
    for (const char* ranks : {"1", "2"}) {
        const Ran again = tutti({"generate", out, "--prompt-ids", ids_of_all, "--max-tokens", "1", "--json",
                                 "--prompt-logprobs", "--ranks", ranks});
        const Json values = Json::parse(again.out)["prompt_logprobs"];
        ASSERT_EQ(values.size(), 9u) << again.err;
        EXPECT_TRUE(values[0].is_null());
        for (size_t i = 0; i < 5; ++i) {
            EXPECT_NEAR(values[4 + i].get<double>(), made["logprobs"][i].get<double>(), 1e-5);
            EXPECT_LT(values[4 + i].get<double>(), 0);
        }
    }

    // Ranks that share out the model make the text of one.
    const std::vector<std::string> prompt = {"generate", out, "--prompt", "God ", "--max-tokens", "5"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), prompt.begin(), prompt.end());
        return tutti(more);
    };
    for (const auto& more : std::vector<std::vector<std::string>>{{"--ranks", "2"},
                                                                  {"--ranks", "4"},
                                                                  {"--set", "parallel.tp=2"},
                                                                  {"--ranks", "2", "--set", "parallel.tp=2"}}) {
        const Ran shared = with(more);
        EXPECT_EQ(shared.code, 0) << shared.err;
        EXPECT_EQ(shared.out, streamed.out);
    }
    EXPECT_EQ(Json::parse(with({"--ranks", "2", "--json"}).out)["tokens"], Json::parse(generated.out)["tokens"]);
    for (const auto& [more, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"--ranks", "3"}, "128 values to cut over 3 ranks of axis tp"},
             {{"--set", "parallel.cp=2"}, "--set parallel.cp=2: generation is tensor-parallel only"},
             {{"--ranks", "4", "--set", "parallel.pp=2", "--set", "parallel.tp=2"},
              "--set parallel.pp=2: generation is tensor-parallel only"},
             {{"--ranks", "2", "--set", "parallel.tp=4"}, "--set parallel.tp=4: 2 ranks divide the model"}}) {
        const Ran refused = with(more);
        EXPECT_EQ(refused.code, 2);
        EXPECT_TRUE(contains(refused.err, message)) << refused.err;
    }

    // Several prompts, as texts and as ids; each as alone.
    const Ran several =
        tutti({"generate", out, "--prompt-ids", "71,111,100,32", "--prompt", "God ", "--max-tokens", "5", "--json"});
    ASSERT_EQ(several.code, 0) << several.err;
    const Json outputs = Json::parse(several.out)["outputs"];
    ASSERT_EQ(outputs.size(), 2u);
    for (const Json& output : outputs) {
        EXPECT_EQ(output["tokens"], Json::parse(generated.out)["tokens"]);
        EXPECT_EQ(output["ended_by"], "length");
    }
    const Ran ids = tutti({"generate", out, "--prompt-ids", "71,111,100,32", "--ids", "--max-tokens", "5"});
    std::string expected;
    for (const int id : outputs[0]["tokens"].get<std::vector<int>>())
        expected += (expected.empty() ? "" : " ") + std::to_string(id);
    EXPECT_EQ(ids.out, expected + "\n");
    for (const char* wrong : {"", "1,", "1,x", "-1", "1 2"})
        EXPECT_EQ(tutti({"generate", out, concat("--prompt-ids=", wrong), "--ids"}).code, 2) << wrong;

    // The same run, but the token that came first ends documents.
    const std::string first = std::to_string(outputs[0]["tokens"][0].get<int>());
    ASSERT_EQ(tutti({"train", config, "--out", dir / "eod", "--set", "data.eod=\"" + first + "\""}).code, 0);
    const Ran ended = tutti({"generate", dir / "eod", "--prompt", "God ", "--max-tokens", "5", "--json"});
    EXPECT_EQ(Json::parse(ended.out)["tokens"].size(), 0u) << ended.out;
    EXPECT_EQ(Json::parse(ended.out)["ended_by"], "token");
    const Ran ignored =
        tutti({"generate", dir / "eod", "--prompt", "God ", "--max-tokens", "5", "--ignore-eos", "--json"});
    EXPECT_EQ(Json::parse(ignored.out)["tokens"], outputs[0]["tokens"]);

    const Ran converted = tutti({"convert", "--from", out, "--to", dir / "hf", "--dtype", "bf16", "--json"});
    ASSERT_EQ(converted.code, 0) << converted.err;
    EXPECT_EQ(Json::parse(converted.out)["format"], "hf");
    const Ran there = tutti({"convert", "--from", out, "--to", dir / "./hf"});
    EXPECT_EQ(there.code, 2);
    EXPECT_TRUE(contains(there.err, dir / "./hf")) << there.err;  // as it was given
    EXPECT_EQ(tutti({"convert", "--from", out, "--to", dir / "x", "--dtype", "f8"}).code, 2);
    fs::create_directory(dir / "empty");  // a link to an empty directory is one
    fs::create_directory_symlink(dir / "empty", dir / "link");
    const Ran linked = tutti({"convert", "--from", out, "--to", dir / "link" + "/"});
    EXPECT_EQ(linked.code, 0) << linked.err;
    EXPECT_TRUE(fs::is_symlink(dir / "link") && fs::exists(dir / "empty" + "/model.safetensors"));
    EXPECT_EQ(tutti({"convert", "--from", out, "--to", dir / "link"}).code, 2);  // not any more
    const Ran of_bytes = tutti({"generate", dir / "hf", "--prompt", "God ", "--max-tokens", "5"});
    EXPECT_EQ(of_bytes.code, 0);
    EXPECT_FALSE(contains(of_bytes.err, "not applied")) << of_bytes.err;
    fs::remove(dir / "hf/tokenizer.json");
    EXPECT_EQ(tutti({"generate", dir / "hf", "--prompt", "God "}).code, 3);  // its list of digests has it
    fs::remove(dir / "hf/XXH128SUMS");
    dir.write("hf/generation_config.json", R"({"repetition_penalty": 1.5, "num_beams": 1})");
    const Ran ids_alone = tutti({"generate", dir / "hf", "--prompt-ids", "71", "--ids", "--max-tokens", "1"});
    EXPECT_EQ(ids_alone.code, 0) << ids_alone.err;
    EXPECT_TRUE(contains(ids_alone.err, "generation_config.json: not applied: repetition_penalty = 1.5\n"))
        << ids_alone.err;
    const Ran no_tokenizer = tutti({"generate", dir / "hf", "--prompt", "God "});
    EXPECT_EQ(no_tokenizer.code, 3);
    EXPECT_TRUE(contains(no_tokenizer.err, "--prompt-ids")) << no_tokenizer.err;
}

TEST(Data, ATokenizerIsLearntAndTrainedWith) {
    const ScratchFolder dir;
    std::string text;
    for (int i = 0; i < 400; ++i) text += "In the beginning God created the heaven and the earth. ";
    const std::string data = dir.write("text.txt", text), tokenizer = dir / "tokenizer.json", out = dir / "run";
    const Ran learnt = tutti({"data", "train-tokenizer", data, "--vocab", "280", "--out", tokenizer, "--json"});
    ASSERT_EQ(learnt.code, 0) << learnt.err;
    EXPECT_EQ(Json::parse(learnt.out)["vocab"], 280);
    EXPECT_GT(Json::parse(learnt.out)["bytes_per_token"].get<double>(), 2.0);

    const std::string config = dir.write(
        "c.toml", "[model]\nlayers = 1\nvocab = 320\n[data]\ntrain = \"" + data + "\"\ntokenizer = \"" + tokenizer +
                      "\"\n[train]\nsteps = 2\nseq_len = 32\nglobal_batch = 2\nmicro_batch = 1\n[precision]\n"
                      "compute = \"f32\"\n");
    dir.write("tokenizer_config.json", R"({"eos_token": "e"})");
    const auto files = [&] { return std::distance(fs::directory_iterator(dir / ""), fs::directory_iterator()); };
    const auto before = files();
    ASSERT_EQ(tutti({"train", config, "--dry-run"}).code, 0);
    if (find_gpus().found.empty()) {
        const Ran graphs = tutti({"train", config, "--dry-run", "--set", "train.cuda_graphs=true"});
        EXPECT_EQ(graphs.code, 2);
        EXPECT_TRUE(contains(graphs.err, "cuda_graphs = true: needs a GPU")) << graphs.err;
    }
    EXPECT_EQ(files(), before);
    const Ran trained = tutti({"train", config, "--out", out});
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_TRUE(contains(trained.out, "encoding ")) << trained.out;
    EXPECT_EQ(files(), before + 2);  // the run and the ids of the text

    fs::remove(tokenizer);  // the run has a copy
    const Ran generated = tutti({"generate", out, "--prompt", "In the beginning", "--max-tokens", "5", "--json"});
    ASSERT_EQ(generated.code, 0) << generated.err;
    const Json written = Json::parse(generated.out);
    for (const auto& id : written.at("tokens")) EXPECT_LT(id.get<int>(), 280);  // of 320
    // The tokenizer's side files are copied, into exports too.
    ASSERT_EQ(tutti({"convert", "--from", out, "--to", dir / "hf"}).code, 0);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
        EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
        EXPECT_TRUE(fs::exists(dir / "hf" + "/" + name)) << name;
    }
    // Exported tokens say where a text ends, as the run does.
    const int eos = Json::parse(read_file(dir / "hf/config.json")).at("eos_token_id").get<int>();
    EXPECT_EQ(eos, Json::parse(read_file(dir / "hf/generation_config.json")).at("eos_token_id").get<int>());
    EXPECT_EQ(eos, text::make_tokenizer(out)->special().eos);
    // A model of Hugging Face is trained with its own tokenizer; another one is named, and said.
    const std::string tune = dir.write(
        "tune.toml", "[model]\nhf = \"" + dir / "hf" + "\"\n[data]\ntrain = \"" + data +
                         "\"\n[train]\nsteps = 1\nseq_len = 32\nglobal_batch = 2\nmicro_batch = 1\n[precision]\n"
                         "compute = \"f32\"\n");
    const Ran tuned = tutti({"train", tune, "--out", dir / "tuned"});
    ASSERT_EQ(tuned.code, 0) << tuned.err;
    EXPECT_TRUE(contains(tuned.out, "byte-level BPE (gpt2), 280 ids")) << tuned.out;
    EXPECT_FALSE(contains(tuned.err, "makes other ids")) << tuned.err;
    EXPECT_EQ(tutti({"generate", dir / "tuned", "--prompt", "In the", "--max-tokens", "3"}).code, 0);
    const Ran other = tutti({"train", tune, "--set", "data.tokenizer=bytes", "--out", dir / "by_bytes"});
    ASSERT_EQ(other.code, 0) << other.err;
    EXPECT_TRUE(contains(other.err, "data.tokenizer (bytes, 256 ids) makes other ids than")) << other.err;
    const Ran too_small =
        tutti({"train", config, "--set", "model.vocab=256", "--set", "data.tokenizer=" + out, "--out", dir / "other"});
    EXPECT_EQ(too_small.code, 2);
    EXPECT_TRUE(contains(too_small.err, "set model.vocab = 280 or more")) << too_small.err;
}

TEST(CommandLine, AnErrorDoesNotDriveTheTerminal) {
    const std::string name = "\x1b]0;title\x07\x1b[31mred";
    for (const std::vector<std::string>& words : {std::vector<std::string>{"train", name},
                                                  {"train", "x.toml", "--set", name},
                                                  {"plan", "--model", name},
                                                  {"plan", "--gpus", name},
                                                  {"report", name},
                                                  {"data", "tokenize", name, "--out", "o", "--tokenizer", name}}) {
        const Ran ran = tutti(words);
        EXPECT_NE(ran.code, 0);
        EXPECT_TRUE(contains(ran.err, "red") || words.size() == 4) << ran.err;
        for (const char c : ran.err) EXPECT_TRUE(c == '\n' || c == '\t' || (c & 0xE0) != 0) << ran.err;
    }
}

// The tokenizer "bytes" may stand for one that is not known: an export says that it has none.
TEST(Data, AnExportWithoutATokenizerSaysSo) {
    const ScratchFolder dir;
    const std::string config =
        dir.write("c.toml", "[model]\nlayers = 1\n[precision]\ncompute = \"f32\"\n[data]\ntrain = \"" +
                                dir.write("text.txt", std::string(2000, 'a')) +
                                "\"\n[train]\nsteps = 1\nseq_len = 32\nglobal_batch = 1\nmicro_batch = 1\n");
    for (const char* vocab : {"256", "320"}) {
        const bool all = vocab == std::string("256");
        ASSERT_EQ(tutti({"train", config, "--out", dir / vocab, "--set", concat("model.vocab=", vocab)}).code, 0);
        const Ran made = tutti({"convert", "--from", dir / vocab, "--to", dir / vocab + ".hf"});
        ASSERT_EQ(made.code, 0) << made.err;
        EXPECT_EQ(contains(made.err, "no tokenizer is written: data.tokenizer = \"bytes\""), !all) << made.err;
        EXPECT_EQ(fs::exists(dir / vocab + ".hf/tokenizer.json"), all);
    }
}

// AutoTokenizer of transformers 5.24 makes Qwen2Tokenizer's pattern and NFC of any tokenizer.json beside a config.json
// of qwen2, and keeps the file beside others.
TEST(Data, AnExportThatTransformersReadsInItsOwnWaySaysSo) {
    const ScratchFolder dir;
    std::string text;
    for (int i = 0; i < 200; ++i) text += "In the beginning God created the heaven and the earth. ";
    const std::string data = dir.write("text.txt", text);
    for (const std::string split : {"gpt2", "qwen"}) {
        const std::string tokenizer = dir / split + ".json";
        ASSERT_EQ(
            tutti({"data", "train-tokenizer", data, "--vocab", "280", "--out", tokenizer, "--pretokenizer", split})
                .code,
            0);
        const std::string config = dir.write(
            split + ".toml", "[model]\nlayers = 1\nvocab = 280\n[precision]\ncompute = \"f32\"\n[data]\ntrain = \"" +
                                 data + "\"\ntokenizer = \"" + tokenizer +
                                 "\"\n[train]\nsteps = 1\nseq_len = 32\nglobal_batch = 1\nmicro_batch = 1\n");
        for (const char* bias : {"false", "true"}) {
            const std::string run = concat(dir / split, bias);
            ASSERT_EQ(tutti({"train", config, "--out", run, "--set", concat("model.qkv_bias=", bias)}).code, 0);
            const Ran made = tutti({"convert", "--from", run, "--to", run + ".hf"});
            ASSERT_EQ(made.code, 0) << made.err;
            const bool qwen2 = Json::parse(read_file(run + ".hf/config.json")).at("model_type") == "qwen2";
            EXPECT_EQ(qwen2, bias == std::string("true"));
            EXPECT_EQ(contains(made.err, "transformers takes Qwen2Tokenizer"), qwen2 && split == "gpt2") << made.err;
        }
    }
}

// The id that ends documents need not be the tokenizer's. At a high temperature each of 263 ids is drawn alike, so that
// 3000 draws have one of the last three for all but 1e-15 of all seeds.
TEST(Data, AnEndBehindTheTokenizersIdsIsDrawn) {
    const ScratchFolder dir;
    std::string records;
    for (int i = 0; i < 40; ++i) records += "{\"text\": \"one two one two\"}\n";
    const std::string data = dir.write("d.jsonl", records), tokenizer = dir / "t.json", out = dir / "run";
    ASSERT_EQ(tutti({"data", "train-tokenizer", data, "--vocab", "260", "--out", tokenizer}).code, 0);
    const std::string config =
        dir.write("c.toml",
                  "[model]\nlayers = 1\nwidth = 16\nheads = 1\nkv_heads = 1\nhead_dim = 16\nffn = 16\nvocab = 320\n"
                  "[data]\ntrain = \"" +
                      data + "\"\ntokenizer = \"" + tokenizer +
                      "\"\neod = \"262\"\n[train]\nsteps = 1\n"
                      "seq_len = 32\nglobal_batch = 2\nmicro_batch = 1\n[precision]\ncompute = \"f32\"\n");
    ASSERT_EQ(tutti({"train", config, "--out", out}).code, 0);
    ASSERT_EQ(tutti({"convert", "--from", out, "--to", dir / "hf"}).code, 0);
    for (const std::string& model : {out, dir / "hf"}) {
        const std::vector<std::string> generate = {"generate", model,    "--prompt",     "one", "--temperature",
                                                   "1e6",      "--json", "--max-tokens", "3000"};
        const Ran ended = tutti(generate);
        ASSERT_EQ(ended.code, 0) << ended.err;
        EXPECT_EQ(Json::parse(ended.out)["ended_by"], "token");
        std::vector<std::string> line = generate;
        line.emplace_back("--ignore-eos");
        const Ran ignored = tutti(line);
        ASSERT_EQ(ignored.code, 0) << ignored.err;
        const Json made = Json::parse(ignored.out);
        EXPECT_EQ(made.at("tokens").size(), 3000u);
        for (const auto& id : made.at("tokens")) EXPECT_LT(id.get<int>(), 260);
    }
}

}  // namespace
}  // namespace tutti::cli
