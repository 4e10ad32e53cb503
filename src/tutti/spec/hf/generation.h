// spec/hf/generation.h: what the generation_config.json and the config.json of a Hugging Face directory say about
// generation: special tokens, and options of transformers' generate().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::spec {

// Values of eos_token_id in a config.json or generation_config.json: none, one or several. DataError for invalid JSON.
std::vector<int32_t> eos_tokens(std::string_view text, const std::string& path);

// Tokens with a meaning for generation.
struct HfTokens {
    std::optional<int32_t> bos, pad;
    std::vector<int32_t> eos;
};
// `text`, a config.json or generation_config.json, with these: eos ids are added to those of the text, bos and pad
// count where the text has none. Unchanged to the byte when the text has them all. DataError for invalid JSON.
std::string hf_json_with_tokens(std::string_view text, const std::string& path, const HfTokens& tokens);

// "repetition_penalty = 1.05, num_beams = 4": the options in `text`, a generation_config.json, that change what
// generate() of transformers returns and that Tutti lacks; "": none. Temperature, top_k and top_p are not listed: Tutti
// has them as options of its own. DataError for invalid JSON.
std::string unsupported_generation_options(std::string_view text, const std::string& path);

}  // namespace tutti::spec
