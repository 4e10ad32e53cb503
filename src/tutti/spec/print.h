// spec/print.h: a RunSpec as text: the resolved config of a run directory, --help, and the table in docs/config.md.
#pragma once

#include <string>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// Every key with its value. parse_text(to_toml(run), ...) gives a RunSpec equal to `run`, doubles to the last bit.
std::string to_toml(const RunSpec& run);

// One Markdown table per section: key, type, default, range, help. docs/config.md holds it; a test compares.
std::string reference_markdown();

// The same as plain aligned lines, for --help.
std::string reference_text();

}  // namespace tutti::spec
