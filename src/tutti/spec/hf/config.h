// spec/hf/config.h: the config.json of a Hugging Face directory to a ModelSpec, and back.
//
// Read: the model_types of hf_model_types(), in the spellings of transformers 4 and 5. A key that changes the
// computation in a way that Tutti lacks is an error; so is an unknown key, unless its value asks for nothing (null,
// false, [], {}) or its name begins with "_". Known and ignored: names of classes and versions, token ids, settings of
// generation, caches and classification heads, and all dropout, which belongs to the training recipe ([model] dropout).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/spec/model_spec.h"

namespace tutti {
class Json;
}

namespace tutti::spec {

// gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, lfm2, lfm2_moe, and the rows of spec/variants.h.
std::vector<std::string> hf_model_types();

// Of a config.json for images and text that of its text model, with a model_type of its own (Qwen3.5, Gemma 3,
// Mistral 3); none of others.
std::optional<std::string> text_config(std::string_view text, const std::string& path);
// The architecture in `text`, or in its text_config; preset and hf stay empty. DataError with one line per problem:
// file, key, value.
ModelSpec model_from_hf_config(std::string_view text, const std::string& path);
// The architecture in DIRECTORY/config.json, with hf set.
ModelSpec model_from_hf(const std::string& directory);

// Whether the model is one of Mixtral's, whose experts have names of their own in files.
bool is_mixtral(const ModelSpec& model);
// A config.json that transformers 4 and 5 read. UsageError when no architecture of transformers has these options.
std::string to_hf_config(const ModelSpec& model, DType dtype);
std::string hf_dtype(DType dtype);                     // "bfloat16"
Json rope_scaling_config(const RopeScaling& scaling);  // the object of transformers 4, or null; not for longrope
// Whether `text`, a config.json, names the type of the weights, or codes in which files hold some.
bool names_dtype(std::string_view text);
// `text` with this type of all weights and all other keys unchanged; the same text if it says so already.
std::string hf_config_with_dtype(std::string_view text, DType dtype);

}  // namespace tutti::spec
