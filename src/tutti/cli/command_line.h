// cli/command_line.h: what cli.cpp and the files of command groups share when they describe commands to CLI11 (a header
// of the room: CLI11 is a template library, and these files are the only ones that see it).
#pragma once

#include <functional>

#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"

namespace CLI {
class App;
}

namespace tutti::cli {

// The command `tutti ... name` with its --json; when it is the chosen one, `chosen` becomes the call of its function.
CLI::App* add_command(CLI::App& app, std::function<int()>& chosen, const char* name, const char* description,
                      bool& json, std::function<int()> call);

void add_threads_option(CLI::App& command, int& threads);

// `tutti data ...` (data.cpp).
void add_data(CLI::App& app, std::function<int()>& chosen, DataArguments& arguments, const Io& io);

// `tutti schedule` (schedule.cpp).
void add_schedule(CLI::App& app, std::function<int()>& chosen, ScheduleArguments& arguments, const Io& io);

}  // namespace tutti::cli
