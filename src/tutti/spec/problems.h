// spec/problems.h: the lines that validate() reports, and how a rule adds one.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/spec/run_spec.h"

namespace tutti::spec {

using Problems = std::vector<std::string>;

// require(problems, rule holds?, message parts...): a part that is a function is called when the rule does not hold.
template <class... Parts>
void require(Problems& problems, bool holds, const Parts&... parts) {
    const auto text_of = []<class Part>(const Part& part) {
        if constexpr (std::invocable<Part>)
            return concat(part());
        else
            return concat(part);
    };
    if (!holds) problems.push_back(concat(text_of(parts)...));
}

// Of the fields of one section, or of all. Rules divide by values and multiply them, so they are asked only about runs
// without such problems.
Problems out_of_range(const RunSpec& run, std::string_view section = "");

// Of the rules between the fields of [model].
void check_model(const ModelSpec& model, Problems& problems);

}  // namespace tutti::spec
