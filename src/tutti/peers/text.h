// peers/text.h: texts of other trainers as values by name, and back: arguments of a shell script, TOML, YAML,
// JSON and Python assignments, each as far as configs of trainers need it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::peers {

using Values = std::map<std::string, std::string>;  // by path: "parallel.tp" -> "8", "--bf16" -> ""

// Members of nested objects by dotted path, texts without quotes.
void flatten(const Json& json, const std::string& path, Values& into);

std::string to_arguments(const Values& options);  // an array ARGS of bash
std::string to_toml_text(const Values& options);
std::string to_yaml(const Values& options);  // nested maps, two blanks a level
std::string to_json_text(const Values& options);
std::string to_python(const Values& options);  // name = value

Values from_yaml(std::string_view text);
// `name = value` lines and `--name=value` words; a product of whole numbers becomes its value.
Values from_python(std::string_view text);

// The words of a shell script: quotes and comments removed, variables replaced where the script gives them.
class Script {
  public:
    explicit Script(std::string_view text);
    const std::vector<std::string>& words() const { return words_; }
    const Values& variables() const { return variables_; }
    Values options() const;  // "--name" with '-' for '_', and its value

  private:
    void read(const std::string& line);
    std::vector<std::string> split(const std::string& line) const;
    std::string expanded(const std::string& word) const;
    std::string product(const std::string& factors) const;

    std::vector<std::string> words_;
    Values variables_;
};

}  // namespace tutti::peers
