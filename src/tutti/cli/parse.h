// cli/parse.h: the words of a command line, read as a table of commands says. CLI11 is included by parse.cpp alone: its
// header costs 3.2 s of compile time.
#pragma once

#include <string>

#include "tutti/cli/command.h"

namespace tutti::cli {

// The command that the words name, its arguments filled in; or null and a text to show: --help, --version, and the
// program's help where there are no words. UsageError names the nearest right word for a wrong one.
struct Parsed {
    const Command* command = nullptr;
    std::string text;
};
Parsed parse(const Command& program, const std::string& version, int argc, const char* const* argv);

}  // namespace tutti::cli
