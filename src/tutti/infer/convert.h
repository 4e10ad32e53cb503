// infer/convert.h: weights from where they are stored to another place and format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/hf/weights.h"

namespace tutti::infer {

struct ConvertOptions {
    std::string from;                        // what open_stored_model takes
    std::string to;                          // must not exist, or be an empty directory
    std::string format;                      // hf, tutti, "": the other one than `from` has
    std::optional<DType> dtype;              // nothing: each tensor as it is stored
    bool allow_loss = false;                 // values may become infinite in `dtype`
    std::optional<int64_t> max_shard_bytes;  // hf only; nothing: as hf/export.h says
};

struct ConvertOutcome {
    std::string from, format;
    int64_t step = 0, parameters = 0;
    std::vector<std::string> files;
    hf::Losses losses;
};

// hf: a directory that transformers loads. tutti: a run directory with one checkpoint of weights, which `generate` and
// `convert` read. `to` appears complete or not at all; a damaged source stops it, and so do values beyond the largest
// of the dtype. Values that become 0 are counted. Reads and writes tensor by tensor.
ConvertOutcome convert(const ConvertOptions& options);

}  // namespace tutti::infer
