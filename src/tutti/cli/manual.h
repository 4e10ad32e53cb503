// cli/manual.h: the manual page tutti(1), from the table of commands.
#pragma once

#include <string>

#include "tutti/cli/command.h"

namespace tutti::cli {

// Source for man: the macros of man(7).
std::string manual_page(const Command& program, const std::string& version);

}  // namespace tutti::cli
