// cli/command.h: the commands of the program as data: options with names, defaults and help, subcommands, and the
// function that runs a command. parse() sets the options from a command line. Only command.cpp includes CLI11, whose
// header costs 3.2 s of compile time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"
#include "tutti/comm/world.h"

namespace tutti::cli {

struct Between {
    double low, high;  // both inclusive
};
using Choices = std::vector<std::string>;
struct ByteCount {};  // a number, which may end in KB, MB or GB
// Values that completion offers. Any other text is allowed, except "", which no option accepts.
struct Suggestions {
    std::vector<std::string> words = {};
    bool files = false;    // names of files and directories
    bool written = false;  // the command writes the file: no other argument may name it
};
inline const Suggestions kPath = {.files = true};
inline const Suggestions kOutput = {.files = true, .written = true};

struct Option {
    // A bool is a flag. A list takes one value each time its option is given; a positional list takes all values.
    using Target = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::vector<std::string>*,
                                std::optional<int>*, std::optional<int64_t>*, std::optional<std::string>*>;

    std::string name;        // "--out"; "--comm,--latency": two names; "CONFIG": positional
    std::string value_name;  // "DIR"; "": help shows none
    std::string default_text;
    std::string help;
    Target target;
    std::variant<std::monostate, Between, Choices, ByteCount, Suggestions> rule = {};
    std::vector<std::string> beside = {};   // requires one of these options; shown_help() says so
    std::vector<std::string> without = {};  // excludes each of these options
    bool required = false;
};
using Options = std::vector<Option>;

// "--comm", "--latency" of "--comm,--latency".
std::vector<std::string> names_of(const Option& option);
// Whether the option has no name on the command line, only a place.
bool is_positional(const Option& option);
bool takes_value(const Option& option);
std::string shown_default(const Option& option);  // " [0.8]"; "" without a default text
std::string shown_help(const Option& option);     // "with --json: also the ..."

struct Command {
    std::string name, description;
    Options options = {};
    std::string footer = {};        // below the options in --help: examples, exit codes
    std::function<int()> run = {};  // returns the exit code; empty where one of `commands` must follow
    std::vector<Command> commands = {};
    // Whether standard output is the log of a run: if it cannot be written, that is a warning; for other commands,
    // whose output is the result, an error. Empty: it is not. Called after run().
    std::function<bool()> prints_log = {};
    // Of a command whose ranks may be processes: how they meet, as far as options tell. Empty: they never meet.
    std::function<comm::WorldOptions()> meeting = {};
};

Options joined_options(const std::vector<Options>& lists);
Option required(Option option);
// The options with `others` appended to Option::beside or Option::without of each.
Options beside(const std::vector<std::string>& others, Options options);
Options without(const std::vector<std::string>& others, Options options);
Option threads_option(int& threads);
Option device_option(std::string& device);
Option seconds_option(double& seconds);
Option force_option(bool& force);
Options measuring_options(MeasuringArguments& arguments, const char* default_ranks);
// --set section.key=value, repeatable.
Option set_option(std::vector<std::string>& set, const std::string& help);

// The command whose function takes `arguments`.
template <class T>
Command command_of(std::string name, std::string description, T& arguments, const Io& io,
                   int (*function)(const T&, const Io&), Options options, std::string footer) {
    return {std::move(name), std::move(description), std::move(options), std::move(footer),
            [&arguments, &io, function] { return function(arguments, io); }};
}

// The command, whose ranks may be processes that meet as by default.
Command of_ranks(Command command);

// Owns the arguments of all commands of a table, which its options set.
class Arguments {
  public:
    template <class T>
    T& add() {
        auto made = std::make_shared<T>();
        all_.push_back(made);
        return *made;
    }
    bool json = false;  // of every command

  private:
    std::vector<std::shared_ptr<void>> all_;
};

// The table of the program. `arguments` and `io` must live as long as the table.
Command program(Arguments& arguments, const Io& io);

// Each command is made in the file with its name; bench in bench/program.cpp.
using MakeCommand = Command(Arguments& all, const Io& io);
MakeCommand bench_command, chat_command, completion_command, config_command, convert_command, data_command,
    generate_command, hardware_command, health_command, init_command, inspect_command, launch_command, plan_command,
    rehearse_command, report_command, schedule_command, simulate_command, train_command, verify_command, watch_command;

// The command that a command line names, with its arguments set; or null, and the text to print for --help, --version
// or an empty command line. UsageError for an unknown command or option; the message names the nearest one.
struct Parsed {
    const Command* command = nullptr;
    std::string text;
};
Parsed parse(const Command& program, const std::string& version, int argc, const char* const* argv);
// The command that `words` name, right or wrong as the rest of them may be; the program itself where they name none.
const Command& command_named(const Command& program, const std::vector<std::string>& words);

}  // namespace tutti::cli
