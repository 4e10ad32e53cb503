// data/encode_files.h: encodes files of text or JSONL to token ids, document by document, on all cores, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/text/tokenizer.h"

namespace tutti::data {

struct FileEncoding {
    std::string format = "text";  // or jsonl
    std::string field = "text";   // jsonl: the field that holds the text of a record
    // text: stands between two documents and is not encoded; "": a file is one document.
    std::string separator;
    std::optional<int32_t> eod;  // appended to each document
    bool affixes = false;        // each document gets the tokenizer's prefix and suffix, such as a bos token
    int threads = 0;             // 0: all cores
};

// Consecutive tokens; pieces follow each other without gaps.
struct EncodedPiece {
    std::vector<int32_t> ids;
    // By token: 1 for a target, 0 in a prompt. Empty: all are targets. A token that spans the end of the prompt and the
    // begin of the completion is a target.
    std::vector<uint8_t> loss_mask;
    std::vector<int64_t> begins;  // indices in ids where a document begins, ascending
    int64_t bytes = 0;            // of the text
    int64_t stored = 0;           // of the files, in which the text may be compressed (text_stream.h)
};

// Calls sink(piece) for one piece after the other, in the order of the files, with the same pieces for any number of
// threads. `paths` are those of open_text_stream(). DataError with file and line for a malformed record, with file and
// offset for damaged compressed data; UsageError when standard input is named twice.
void encode_files(const text::Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options,
                  const std::function<void(EncodedPiece&&)>& sink);

}  // namespace tutti::data
