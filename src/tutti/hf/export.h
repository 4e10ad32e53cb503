// hf/export.h: writes what transformers loads: config.json, weights in one file or shards with an index, and the small
// files that came with the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/hf/weights.h"

namespace tutti::hf {

// Names of the small files of a model directory that go wherever the model goes: config, generation config, tokenizer.
const std::vector<std::string>& side_files();
// Those of them that say which tokens of the tokenizer beside them are special.
const std::vector<std::string>& files_beside_tokenizers();
// Copies the small files of `from` that exist, to the byte, but for the dtype in config.json, if one is given, and
// makes `to` when it is missing. XXH128SUMS there lists them. Returns their names.
std::vector<std::string> copy_side_files(checkpoint::FileSystem& file_system, const std::string& from,
                                         const std::string& to, std::optional<DType> dtype = {});

struct ExportOptions {
    std::optional<DType> dtype;               // of all weights; nothing: each as it is stored
    int64_t max_shard_bytes = 5'000'000'000;  // a tensor is never split
    std::string side_files;                   // directory to take them from; "": none
    std::string tokenizer;                    // file, with those beside it, when the side files have none
    std::string tokenizer_json;               // or: its text; "": none
};

// Into `directory`, which exists. A config.json among the side files is kept, its dtype apart, when it describes the
// same model. Weights go through memory one at a time. XXH128SUMS lists all files. Returns their names, with it. What
// the dtype does not hold goes to `losses`.
std::vector<std::string> write_directory(checkpoint::FileSystem& file_system, const std::string& directory,
                                         const models::Model& model, const StoredWeights& weights,
                                         const ExportOptions& options, Losses& losses);

}  // namespace tutti::hf
