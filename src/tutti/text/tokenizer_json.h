// text/tokenizer_json.h: reads and writes the tokenizer.json of the Hugging Face `tokenizers` package. Every
// field that changes ids is honoured or refused by name.
#pragma once

#include <memory>
#include <string>

#include "tutti/text/byte_level.h"
#include "tutti/text/tokenizer.h"

namespace tutti::text {

// DataError names the field, its value and the supported values.
ByteLevelModel parse_tokenizer_json(const std::string& text, const std::string& path);

// The same with the tokens of the files beside it (files_beside.h).
std::unique_ptr<const Tokenizer> open_tokenizer_json(const std::string& path);

// The text of the file. The `tokenizers` package loads it and makes the same ids.
std::string tokenizer_json(const ByteLevelModel& model);

// Whether the file is what transformers makes of a sentencepiece model, which Tutti reads from tokenizer.model only.
bool is_of_sentencepiece(const std::string& path);

}  // namespace tutti::text
