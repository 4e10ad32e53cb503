// cli/io.h: where a command writes. Results go to `out`; with --json, `out` gets one JSON document and all that people
// read goes to `err`.
#pragma once

#include <ostream>
#include <string>

namespace tutti::cli {

struct Io {
    std::ostream& out;
    std::ostream& err;
    bool out_terminal = false;
    bool err_terminal = false;
    bool color = false;  // of err: it is a terminal and NO_COLOR is not set

    std::ostream& text(bool json) const { return json ? err : out; }
    bool text_terminal(bool json) const { return json ? err_terminal : out_terminal; }
};

// A file that an option asked for. DataError, which names the option, when it cannot be written.
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace tutti::cli
