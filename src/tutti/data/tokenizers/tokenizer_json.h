// data/tokenizers/tokenizer_json.h: reads and writes the tokenizer.json of the Hugging Face `tokenizers` package, and
// reads special tokens from the files beside a tokenizer, as transformers does. Every field that changes ids is
// honoured or refused by name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/data/tokenizer.h"
#include "tutti/data/tokenizers/byte_level.h"

namespace tutti::data {

// DataError names the field, its value and the supported values.
ByteLevelModel parse_tokenizer_json(const std::string& text, const std::string& path);

// The same with special ids from tokenizer_config.json, special_tokens_map.json and generation_config.json beside it.
std::unique_ptr<const Tokenizer> open_tokenizer_json(const std::string& path);

// The text of the file. The `tokenizers` package loads it and makes the same ids.
std::string tokenizer_json(const ByteLevelModel& model);

// bos, eos and pad by text from tokenizer_config.json, else special_tokens_map.json, else by id from
// generation_config.json. `stop` has all eos ids of generation_config.json, else eos. `id_of` maps a token's text to
// its id.
SpecialIds special_ids_beside(const std::string& tokenizer,
                              const std::function<std::optional<int32_t>(const std::string&)>& id_of);

// add_bos_token of tokenizer_config.json. Transformers 5 reads it for a tokenizer.model only: in a tokenizer.json the
// post-processor decides.
bool asks_for_bos(const std::string& tokenizer);

}  // namespace tutti::data
