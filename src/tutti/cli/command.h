// cli/command.h: a command of the program as data: its options with names, defaults and help, what it may have below
// it, and the function that runs it. parse.h fills the targets of a table of these from the words of a command line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"

namespace tutti::cli {

struct Between {
    double low, high;  // both are allowed
};
using Choices = std::vector<std::string>;
struct ByteCount {};  // 500MB and 5GB are numbers too
// What completion offers for a value; any other text is one too.
struct Suggestions {
    std::vector<std::string> words = {};
    bool files = false;  // names of files and directories
};
inline const Suggestions kPath = {.files = true};

struct Option {
    // A bool is a flag. A list takes one value each time its option is given; by its place, all that come.
    using Target = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::vector<std::string>*,
                                std::optional<int>*, std::optional<int64_t>*, std::optional<std::string>*>;

    std::string name;        // "--out"; "--comm,--latency" are two of one; "CONFIG" is one that is given by its place
    std::string value_name;  // "DIR"; "" where help shows none
    std::string default_text;
    std::string help;
    Target target;
    std::variant<std::monostate, Between, Choices, ByteCount, Suggestions> rule = {};
    bool required = false;
    std::string excludes = {};  // the name of the option that may not come with this one
    std::string group = "Options";
};
using Options = std::vector<Option>;

struct Command {
    std::string name, description;
    Options options = {};
    std::string footer = {};        // below the options in --help: examples, exit codes
    std::function<int()> run = {};  // returns the exit code; empty where one of `commands` must follow
    std::vector<Command> commands = {};
};

Option required(Option option);
Option threads_option(int& threads);
Option json_option(bool& json);
Option expert_loads_option(std::string& loads);
// --set section.key=value, once for each.
Option set_option(std::vector<std::string>& set, const std::string& help);

// The command whose function takes `arguments`, with --json before its other options.
template <class T>
Command command_of(std::string name, std::string description, T& arguments, const Io& io,
                   int (*function)(const T&, const Io&), Options options, std::string footer) {
    options.insert(options.begin(), json_option(arguments.json));
    return {std::move(name), std::move(description), std::move(options), std::move(footer),
            [&arguments, &io, function] { return function(arguments, io); }};
}

// The arguments of all commands.
struct Arguments {
    TrainArguments train;
    RehearseArguments rehearse;
    VerifyArguments verify;
    GenerateArguments generate;
    ConvertArguments convert;
    ReportArguments report;
    DoctorArguments doctor;
    VersionArguments version;
    BenchArguments bench;
    DataArguments data;
    BenchCommArguments bench_comm;
    BenchPipelineArguments bench_pipeline;
    HealthArguments health;
    ScheduleArguments schedule;
    SimulateArguments simulate;
    CalibrateArguments calibrate;
    PlanArguments plan;
    CompletionArguments completion;
    ManualArguments manual;
};

// The table of the program (program.cpp), and the parts of it that have files of their own. `arguments` and `io` must
// live as long as the table.
Command program(Arguments& arguments, const Io& io);
Command data_command(DataArguments& arguments, const Io& io);            // data.cpp
Command schedule_command(ScheduleArguments& arguments, const Io& io);    // schedule.cpp
Command simulate_command(SimulateArguments& arguments, const Io& io);    // simulate.cpp
Command calibrate_command(CalibrateArguments& arguments, const Io& io);  // simulate.cpp
Command plan_command(PlanArguments& arguments, const Io& io);            // plan.cpp

}  // namespace tutti::cli
