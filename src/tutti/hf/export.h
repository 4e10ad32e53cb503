// hf/export.h: writes a directory that transformers loads: config.json, weights in one file or in shards with an index,
// and the small files that came with the model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/hf/weights.h"
#include "tutti/spec/hf/generation.h"

namespace tutti::hf {

// Names of the small files of a model directory that accompany the weights: config, generation config, tokenizer.
const std::vector<std::string>& side_files();
// Files beside a tokenizer's own that name its tokens or belong to them; beside a tokenizer.model the tokenizer.json,
// too.
const std::vector<std::string>& files_beside_tokenizers();
// Copies the side files of `from` that exist into `to`, which is made when missing: byte for byte, except for the dtype
// in config.json if `dtype` is given. XXH128SUMS in `to` lists them. Returns their names. Without `tokenizer` those of
// a tokenizer are left out.
std::vector<std::string> copy_side_files(checkpoint::FileSystem& file_system, const std::string& from,
                                         const std::string& to, std::optional<DType> dtype = {}, bool tokenizer = true);

struct ExportOptions {
    std::optional<DType> dtype;               // of all weights; nullopt: each as it is stored
    int64_t max_shard_bytes = 5'000'000'000;  // a tensor is never split
    std::string side_files;                   // directory with the side files; "": none
    std::string tokenizer;                    // file to copy, with those beside it, unless the side files have the same
    std::string tokenizer_json;               // text of the tokenizer in place of a file; "": none
    std::string config;                       // text of config.json, for a family of one's own; "": from the spec
    spec::HfTokens tokens;                    // which config.json and generation_config.json are to name
    std::function<void()> between_tensors;    // may throw
};

// Writes into `directory`, which must exist. A config.json among the side files is kept, its dtype excepted, if it
// describes the same model. Weights pass through memory one at a time. XXH128SUMS lists all files. Returns the names of
// all files. `losses` receives the values that the dtype cannot hold.
std::vector<std::string> write_directory(checkpoint::FileSystem& file_system, const std::string& directory,
                                         const models::Model& model, const StoredWeights& weights,
                                         const ExportOptions& options, Losses& losses);

}  // namespace tutti::hf
