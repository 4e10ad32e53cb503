// data/jsonl.h: JSONL as a token source: one record per line, {"text": ...} or {"prompt": ..., "completion": ...},
// whose prompt is only read. Encoded when it is opened, kept in memory. Stands on encode_files.h; data_set.cpp calls
// it. Large files are better encoded once: `tutti data tokenize`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/token_source.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

// True when the files are JSONL: by `format`, or where that is auto by the name *.jsonl. UsageError when some are.
bool is_jsonl(const std::vector<std::string>& paths, std::string_view format);

struct RecordOptions {
    std::string field = "text";
    std::optional<int32_t> eod;  // ends each record
    int threads = 0;             // 0: all cores
};

// Each record is a document, with what the tokenizer puts around a text and the end-of-document token.
std::shared_ptr<const TokenSource> open_records(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                                const RecordOptions& options);

}  // namespace tutti::data
