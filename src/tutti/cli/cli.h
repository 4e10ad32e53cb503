// cli/cli.h: the command line as a function.
#pragma once

#include "tutti/cli/io.h"

namespace tutti::cli {

// Exit codes: 0 done, 2 usage or config error, 3 data or checkpoint error, 4 anything else that failed, 75 stopped by a
// signal after a checkpoint was saved. With --json a failure is also one JSON document: {"error": ..., "exit_code":
// ...}.
int run(int argc, const char* const* argv, const Io& io);

// With the process's streams; in colour and with progress bars where these are terminals.
int run(int argc, char** argv);

}  // namespace tutti::cli
