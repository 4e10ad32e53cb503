// infer/convert.h: converts stored weights to another place and format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/hf/weights.h"

namespace tutti::infer {

struct ConvertOptions {
    std::string from;                        // a path for open_stored_model()
    std::string to;                          // must not exist, or be an empty directory
    std::string format;                      // hf or tutti; "": the one that `from` is not
    std::optional<DType> dtype;              // nullopt: each tensor's own
    bool allow_loss = false;                 // values may become infinite in `dtype`
    std::optional<int64_t> max_shard_bytes;  // hf only; nullopt: the default of hf/export.h
    std::function<void()> between_tensors;   // may throw: then `to` does not appear
};

struct ConvertOutcome {
    std::string from, format;
    int64_t step = 0, parameters = 0;
    std::vector<std::string> files;
    hf::Losses losses;
    std::vector<std::string> warnings;  // of the tokenizer of a run
};

// Makes `to`: for hf a directory that transformers loads, for tutti a run directory with one checkpoint of weights.
// `to` appears complete or not at all. A damaged source is an error, and so are values beyond the largest of the dtype
// unless allow_loss is set. Values that become 0 are counted. Reads and writes tensor by tensor.
ConvertOutcome convert(const ConvertOptions& options);

}  // namespace tutti::infer
