// spec/toml.h: a config as text. Reading: a TOML file, then `--set section.key=value` overrides, into a RunSpec.
// Printing: a RunSpec as TOML.
//
// Precedence: defaults < model.preset < file < --set. model.preset gives the defaults of the other model fields
// wherever it is given: with `--set model.preset=X` the model fields of the file still count. model.preset = "" gives
// none, so all sizes that the family uses must be given. model.hf = "DIR" takes the place of a preset: the fields come
// from DIR/config.json (hf/config.h), unless all sizes are given and that file is missing.
//
// Types are exact: an integer key takes an integer (not 1e3), a number key takes 1 or 1.0, a list key takes ["a", "b"]
// or one "a". A value in --set is written as in TOML; a text needs no quotes. The last --set of a key counts.
//
// All problems are reported in one UsageError, one line each, with file:line:column or the text of the override, and
// unknown keys with the nearest existing key. validate() checks the rules between fields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/spec/run_spec.h"

namespace tutti::spec {

RunSpec parse_file(const std::string& path, const std::vector<std::string>& overrides = {});
RunSpec parse_text(std::string_view text, const std::string& source_name,
                   const std::vector<std::string>& overrides = {});

// Any TOML file as a JSON value: tables are objects. UsageError with file:line:column for invalid TOML, dates and
// times.
Json parse_toml(std::string_view text, const std::string& source_name);

// Every key with its value. parse_text(to_toml(run), ...) gives a RunSpec equal to `run`, doubles to the last bit.
std::string to_toml(const RunSpec& run);

}  // namespace tutti::spec
