// data/jsonl.h: JSONL as a token source: one record per line, {"text": ...} or {"prompt": ..., "completion": ...},
// whose prompt is only read. Encoded when it is opened: small files into memory, large ones once, into token files
// beside them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/text_tokens.h"
#include "tutti/data/token_source.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

// True when the files are JSONL: by `format`, or where that is auto by the name *.jsonl. UsageError when some are.
bool is_jsonl(const std::vector<std::string>& paths, std::string_view format);

struct RecordOptions {
    std::string field = "text";
    std::optional<int32_t> eod;  // ends each record
    EncodeOptions encode;
    int64_t kept_from = 16 << 20;  // bytes of all files together: below, encoding takes a second
};

// Each record is a document, with what the tokenizer puts around a text and the end-of-document token. With
// encode.write, files of kept_from bytes and more are encoded once, into Megatron files (kept_tokens.h).
std::shared_ptr<const TokenSource> open_records(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                                const RecordOptions& options);

}  // namespace tutti::data
