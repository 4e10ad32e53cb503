// data/encode_files.h: files of text or JSONL to token ids, document by document, on all cores, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/tokenizer.h"

namespace tutti::data {

struct FileEncoding {
    std::string format = "text";  // or jsonl
    std::string field = "text";   // jsonl: of a record that is one text
    // text: what stands between two documents, and is left out; "": a file is one document.
    std::string separator;
    std::optional<int32_t> eod;  // appended to each document
    bool affixes = false;        // each document gets the tokenizer's prefix and suffix, such as a bos token
    int threads = 0;             // 0: all cores
};

// Some of the tokens; pieces follow each other without gaps.
struct EncodedPiece {
    std::vector<int32_t> ids;
    std::vector<uint8_t> counted;  // by token: 0 for a prompt. Empty: all count
    std::vector<int64_t> begins;   // places in ids where a document begins, ascending
    int64_t bytes = 0;             // of the files
};

// Calls sink(piece) for one piece after the other, in the order of the files: the same pieces for any number of
// threads. DataError with file and byte offset for a record that is not what it must be.
void encode_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options,
                  const std::function<void(EncodedPiece&&)>& sink);

}  // namespace tutti::data
