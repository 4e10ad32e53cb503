// spec/toml.h: reads a config: a TOML file, then `--set section.key=value` overrides, into a RunSpec.
//
// Defaults < model.preset < file < --set. model.preset is where the other model fields start from, wherever it is
// given: with `--set model.preset=X` the model fields of the file still count. model.preset = "" starts from nothing:
// then all sizes that the family uses must be given. model.hf = "DIR" takes the place of a preset: the fields come from
// DIR/config.json (hf_config.h), unless all sizes are given and that file is gone.
//
// Types are exact: an integer key takes an integer (not 1e3), a number key takes 1 or 1.0, a list key takes ["a", "b"]
// or one "a". In --set, the value is written as in TOML; a text may go without quotes. The last --set of a key counts.
//
// All problems are reported in one UsageError, one line each, with file:line:column or the text of the override; each
// unknown key with the nearest that exists. The rules between fields are validate()'s, which needs the number of ranks.
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

// Any TOML file as a JSON value: tables are objects. UsageError with file:line:column where the text is no TOML, or has
// dates or times.
Json parse_toml(std::string_view text, const std::string& source_name);

}  // namespace tutti::spec
