// cli/program.cpp: the table of commands, and options that several of them share. The options of a command are beside
// the function that runs it.
#include "tutti/base/error.h"
#include "tutti/cli/command.h"
#include "tutti/spec/devices.h"

namespace tutti::cli {

Options joined_options(const std::vector<Options>& lists) {
    Options all;
    for (const Options& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

Option required(Option option) {
    option.required = true;
    return option;
}

Options beside(const std::vector<std::string>& others, Options options) {
    for (Option& option : options) option.beside.insert(option.beside.end(), others.begin(), others.end());
    return options;
}

Options without(const std::vector<std::string>& others, Options options) {
    for (Option& option : options) option.without.insert(option.without.end(), others.begin(), others.end());
    return options;
}

Option threads_option(int& threads) {
    return {"--threads", "N", "0", "CPU threads; 0: all cores", &threads, Between{0, 4096}};
}

Option device_option(std::string& device) {
    return {"--device", "D",
            "",         concat(joined(spec::device_choices()), " [auto: a GPU if there is one]"),
            &device,    spec::device_choices()};
}

Option seconds_option(double& seconds) {
    return {"--seconds", "S", "20", "time for all measurements together", &seconds, Between{1e-3, 1e6}};
}

Option force_option(bool& force) { return {"--force", "", "", "start even if memory is short", &force}; }

Options measuring_options(MeasuringArguments& a, const char* default_ranks) {
    return {{"--ranks", "N", default_ranks, "ranks, as threads of this process", &a.ranks, Between{1, 4096}},
            {"--launcher", "NAME", "", "launcher of this process [detected from its environment]", &a.launcher},
            seconds_option(a.seconds)};
}

Command of_ranks(Command command) {
    command.meeting = [] { return comm::WorldOptions(); };
    return command;
}

namespace {

// Puts --json before the other options of every command that runs.
void add_json_option(Command& command, bool& json) {
    if (command.run)
        command.options.insert(command.options.begin(),
                               {"--json", "", "", "print one JSON document, and nothing else, on stdout", &json});
    for (Command& below : command.commands) add_json_option(below, json);
}

}  // namespace

Command program(Arguments& all, const Io& io) {
    const auto alone = [&io](const char* name, const char* description, int (*function)(const Io&),
                             const char* footer) {
        return Command{name, description, {}, footer, [&io, function] { return function(io); }};
    };
    Command program = {
        .name = "tutti",
        .description = "Tutti trains large neural networks on all your devices at once.",
        .footer =
            "`tutti COMMAND --help` explains a command and shows examples.\n"
            "Learning: five public lectures on large-scale training, item by item with its command, and exercises\n"
            "that check themselves: docs/lectures/README.md and examples/course of the sources.\n"
            "Exit codes: 0 done, 2 usage or config, 3 data or checkpoint, 4 failed, 5 ended because of another\n"
            "rank, 70 a bug or no progress: do not start it again, 75 stopped by a signal with nothing lost:\n"
            "start it again; 1: `verify` found a difference, or `health` a slow or wrong rank or link.",
        .commands = {
            init_command(all, io),
            config_command(all, io),
            train_command(all, io),
            launch_command(all, io),
            alone("agent", "serve `tutti launch` on a host, which starts this command itself", agent,
                  "Reads and writes frames on standard input and output; stops its ranks when these close."),
            rehearse_command(all, io),
            of_ranks(verify_command(all, io)),
            of_ranks(generate_command(all, io)),
            of_ranks(chat_command(all, io)),
            convert_command(all, io),
            inspect_command(all, io),
            watch_command(all, io),
            report_command(all, io),
            bench_command(all, io),
            of_ranks(health_command(all, io)),
            schedule_command(all, io),
            simulate_command(all, io),
            plan_command(all, io),
            data_command(all, io),
            alone("doctor", "show what this build and this machine have, and what is missing", doctor,
                  "Exit code 0: no problem; 4: problems, printed last."),
            hardware_command(all, io),
            alone("models", "list presets with sizes and support, and the model_types that are read", models,
                  "Examples:\n  tutti models\n  tutti models --json | jq '.presets[] | select(.parameters < 2e9)'"),
            alone("version", "print version and build", version, ""),
            completion_command(all, io),
            alone("man", "print the manual page, as source for man", manual, "Example:\n  tutti man | man -l -")}};
    add_json_option(program, all.json);
    return program;
}

}  // namespace tutti::cli
