// spec/hf_json.h: the JSON of Hugging Face's small files. Included by hf_config.cpp and hf_config_write.cpp only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tutti::spec {

using HfJson = nlohmann::ordered_json;

// An object. DataError for no JSON, for anything else than an object, for a key that comes twice (the library keeps the
// last one in silence), for more than 16 levels or 16 MiB.
HfJson parse_hf_json(std::string_view text, const std::string& path);

}  // namespace tutti::spec
