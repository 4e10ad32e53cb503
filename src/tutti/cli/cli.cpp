// cli/cli.cpp: the program: parses the words by the table of program.cpp, calls the function of the command, turns
// exceptions into exit codes.
#include "tutti/cli/cli.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "tutti/base/build_info.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/refused.h"
#include "tutti/cli/command.h"
#include "tutti/cli/completion.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/run.h"
#include "tutti/device/device.h"
#include "tutti/device/memory.h"
#include "tutti/kernels/backends.h"

namespace tutti::cli {

namespace {

int fail(const Io& io, const std::string& message, int exit_code) {
    Utf8Stream shown;  // names of files, and words of the command line, may have escape sequences
    io.err << (io.color ? "\033[1;31mtutti:\033[0m " : "tutti: ") << shown.feed(message) << shown.finish() << std::endl;
    io.print(Json{{"error", message}, {"exit_code", exit_code}});
    return exit_code;
}

bool asks_for(int argc, const char* const* argv, std::string_view option) {
    return std::any_of(argv + 1, argv + argc, [&](std::string_view word) { return word.starts_with(option); });
}

// One rank for an environment that contradicts itself: the command then reports the contradiction.
comm::Launch this_launch_or_none() {
    try {
        return comm::this_launch();
    } catch (const UsageError&) {
        return {};
    }
}

// As of throw_refused (base/refused.h).
int code_of_too_little_memory() { return memory_limit_text().empty() ? exit_codes::kFailed : exit_codes::kUsage; }

// Ranks with other command lines would wait for one that refuses its own.
Parsed parse_line(const Command& table, int argc, const char* const* argv) {
    try {
        return parse(table, "tutti " + build_info().version, argc, argv);
    } catch (const Error&) {
        if (const auto& meeting = command_named(table, {argv + std::min(argc, 1), argv + argc}).meeting)
            comm::before_ranks_meet(this_launch_or_none(), meeting(), [] { throw; });
        throw;
    }
}

}  // namespace

void warn_of_threads(const Io& io, int64_t threads) {
    constexpr int64_t kFar = 4;
    const int64_t cores = available_cores();
    if (threads > kFar * cores)
        io.err << "warning: " << threads << " CPU threads on " << cores << " cores wait for each other most of the "
               << "time; fewer are faster (train.threads, --threads; 0: all cores)" << std::endl;
}

void warn_of_threads(const Io& io, const comm::Launch& launch, int64_t threads, int ranks) {
    if (!launch.warning.empty()) io.err << "warning: " << launch.warning << std::endl;
    if (!launch.passed_over.empty() && launch.rank == 0)
        io.err << "tutti: started by " << name_of(launch.launcher) << " (" << launch.evidence << "); the variables of "
               << launch.passed_over << " are set as well and ignored" << std::endl;
    if (launch.rank == 0) warn_of_threads(io, threads * (launch.size > 1 ? launch.local_size : ranks));
}

int run(int argc, const char* const* argv, const Io& streams) {
    Io io = streams;
    io.json = asks_for(argc, argv, "--json");  // a failure to parse is reported as JSON too
    const auto check_written = [](std::ostream& to) {
        check(to.flush().good(), "standard output cannot be written: is its disk full?");
    };
    try {
        Arguments arguments;
        const Command table = program(arguments, io);
        if (argc > 1 && std::string_view(argv[1]) == "__complete") {  // by the scripts of `tutti completion`
            for (const Candidate& c : complete(table, {argv + 2, argv + argc}))
                io.out << c.word << (c.help.empty() ? "" : "\t") << c.help << '\n';
            return 0;
        }
        const Parsed parsed = parse_line(table, argc, argv);
        if (parsed.command == nullptr) {
            (argc < 2 ? io.err : io.out) << parsed.text;
            if (argc > 1) check_written(io.out);
            return argc < 2 ? 2 : 0;
        }
        io.json = arguments.json;
        set_device_environment(asks_for(argc, argv, "--ranks") || this_launch_or_none().size > 1);
        const int code = parsed.command->run();
        if (code == 0 && parsed.command->prints_log && parsed.command->prints_log() && !io.json && !io.out.flush())
            io.err << "warning: standard output could not be written: log lines are lost, the run is complete"
                   << std::endl;
        else if (code == 0)
            check_written(io.out);
        return code;
    } catch (const OutOfMemory& error) {
        return fail(io, error.what(), code_of_too_little_memory());
    } catch (const Error& error) {
        return fail(io, error.what(), error.exit_code());
    } catch (const std::filesystem::filesystem_error& error) {
        const std::string path = error.path1().empty() ? "the working directory" : error.path1().string();
        return fail(io, concat(path, ": ", error.code().message()), exit_codes::kData);
    } catch (const std::bad_alloc&) {
        return fail(io,
                    concat("out of memory: a smaller model, micro_batch or seq_len needs less", memory_limit_text()),
                    code_of_too_little_memory());
    } catch (const std::logic_error& error) {  // of the standard library: an index or argument without a check
        return fail(io, concat("internal error: ", error.what(), "; please report the command that shows it"),
                    exit_codes::kInternal);
    } catch (const std::exception& error) {
        return fail(io, error.what(), exit_codes::kFailed);
    }
}

// A file that is opened later must not get the number of a closed standard stream, whose output it would receive.
void open_closed_streams() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);  // gets the lowest free number: fd
}

int run(int argc, char** argv) {
    open_closed_streams();
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails as on a full disk
    // mpirun gives its ranks terminals even when its output is a file, which must have no progress bars and colours.
    const bool alone = !comm::is_launched(comm::process_environment());
    const bool out_terminal = alone && isatty(STDOUT_FILENO) != 0, err_terminal = alone && isatty(STDERR_FILENO) != 0;
    const bool color = err_terminal && !environment_variable("NO_COLOR");  // https://no-color.org
    return run(argc, argv, Io{std::cout, std::cerr, out_terminal, err_terminal, color});
}

}  // namespace tutti::cli
