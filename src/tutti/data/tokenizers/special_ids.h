// data/tokenizers/special_ids.h: what the files beside a tokenizer say of its special tokens, where transformers looks
// too. The kinds of tokenizers that are files call it when they open one.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tutti/data/tokenizer.h"

namespace tutti::data {

// bos, eos and pad by text from tokenizer_config.json, else special_tokens_map.json, else by id from
// generation_config.json; `stop` are all eos ids of the last, else eos. `id_of` knows the tokens by their text.
SpecialIds special_ids_beside(const std::string& tokenizer,
                              const std::function<std::optional<int32_t>(const std::string&)>& id_of);

// add_bos_token of tokenizer_config.json. Transformers 5 asks it of a tokenizer.model only: with a tokenizer.json the
// post-processor inside decides.
bool asks_for_bos(const std::string& tokenizer);

}  // namespace tutti::data
