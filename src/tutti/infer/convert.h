// infer/convert.h: weights from where they are stored to another place and format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::infer {

struct ConvertOptions {
    std::string from;                         // what open_stored_model takes
    std::string to;                           // must not exist, or be an empty directory
    std::string format;                       // hf, tutti, "": the other one than `from` has
    std::optional<DType> dtype;               // nothing: each tensor as it is stored
    int64_t max_shard_bytes = 5'000'000'000;  // hf
};

struct ConvertOutcome {
    std::string from, format;
    int64_t step = 0, parameters = 0;
    std::vector<std::string> files;
};

// hf: a directory that transformers loads. tutti: a run directory with one checkpoint of weights, which `generate` and
// `convert` read. `to` appears complete or not at all; a damaged source stops it. Reads and writes tensor by tensor.
ConvertOutcome convert(const ConvertOptions& options);

}  // namespace tutti::infer
