// data/tokenizers/tokenizer_json.h: the tokenizer.json of the Hugging Face `tokenizers` package, read and written.
// Every field that changes ids is honoured or refused by name. Stands on byte_level.h; tokenizer.cpp and the command
// `tutti data train-tokenizer` call it.
#pragma once

#include <memory>
#include <string>

#include "tutti/data/tokenizers/byte_level.h"

namespace tutti::data {

// DataError naming the field, its value and what is supported.
ByteLevelModel parse_tokenizer_json(const std::string& text, const std::string& path);

// The same with special ids from tokenizer_config.json, special_tokens_map.json and generation_config.json beside it.
std::unique_ptr<const Tokenizer> open_tokenizer_json(const std::string& path);

// The text of the file. The `tokenizers` package loads it and makes the same ids.
std::string tokenizer_json(const ByteLevelModel& model);

}  // namespace tutti::data
