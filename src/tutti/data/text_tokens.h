// data/text_tokens.h: text and JSONL files as token sources. They are encoded when opened: into memory, or once for all
// runs into token files beside the text, TEXT.<16 hex digits>.tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/read_file.h"
#include "tutti/data/token_source.h"
#include "tutti/text/tokenizer.h"

namespace tutti::data {

struct EncodeProgress {
    std::string path;  // of the text
    int64_t bytes = 0, bytes_total = 0, tokens = 0;
    double seconds = 0;
};

struct EncodeOptions {
    int threads = 0;    // 0: all cores
    bool write = true;  // false: writes no file and holds new ids in memory
    std::function<void(const EncodeProgress&)> progress = [](const EncodeProgress&) {};  // a few times a second
};

// The texts as one row of ids, in the given order. No word continues from one file into the next, and nothing is
// inserted between files. The token file of a text has llm.c's format: u16 ids for a vocabulary up to 65536, else u32.
// UsageError when the folder of the text cannot be written, or the text has 2^32 tokens or more.
std::shared_ptr<const TokenSource> open_text(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                                             const EncodeOptions& options);

// True when the files are JSONL: by `format`, or for format auto by names *.jsonl, *.jsonl.gz and *.jsonl.zst.
// UsageError when only some are, for standard input, which has no name, and for a file of another name whose first line
// is a JSON object.
bool is_jsonl(const std::vector<std::string>& paths, std::string_view format);

// DataError for a text whose beginning, of 64 KiB, holds a zero byte: one in UTF-16, or a binary file.
void check_is_text(const std::string& path);

struct RecordOptions {
    std::string field = "text";
    std::optional<int32_t> eod;  // appended to each record
    EncodeOptions encode;
    int64_t kept_from = 16 << 20;  // bytes of all files together; fewer are encoded in a second
};

// JSONL, also compressed (text_stream.h): one record per line, {"text": ...} or {"prompt": ..., "completion": ...}. A
// prompt is input only, never a target. Each record is a document: the tokenizer's prefix, the ids of its whole text,
// the tokenizer's suffix, the end-of-document token. With encode.write, kept_from bytes and more become Megatron files
// beside the text; fewer are encoded into memory.
std::shared_ptr<const TokenSource> open_records(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer,
                                                const RecordOptions& options);

// Writes PREFIX.bin and the files that belong to it, and returns the paths.
using MakeTokens = std::function<std::vector<std::string>(const std::string& prefix)>;

// The path of tokens.bin in `directory`. A missing directory is created under a temporary name and renamed once all
// files are synced: a killed process leaves no partial directory, and two runs may create it at once. The files of an
// existing directory are compared with their digests: DataError names the directory to remove when a byte has changed.
// UsageError when the folder cannot be written.
std::string cached_tokens(const std::string& directory, const MakeTokens& make);

}  // namespace tutti::data
