// data/text_tokens.h: plain text as the ids of a learned tokenizer. Each text file is encoded once, into token files
// beside it that later runs use again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/data/token_source.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

struct EncodeProgress {
    std::string path;  // of the text
    int64_t bytes = 0, bytes_total = 0, tokens = 0;
    double seconds = 0;
};

struct EncodeOptions {
    int threads = 0;    // 0: all cores
    bool write = true;  // false: nothing is written; ids that no file has are kept in memory
    std::function<void(const EncodeProgress&)> progress = [](const EncodeProgress&) {};  // a few times a second
};

// The texts as one row of ids, in the given order; the end of a file ends a word, nothing is put between.
//
// The ids of TEXT are in TEXT.<16 hex digits>.tokens (kept_tokens.h), an llm.c token file: u16 ids for up to 65536,
// else u32. UsageError when the folder of the text cannot be written, or the text has 2^32 tokens or more.
std::shared_ptr<const TokenSource> open_text(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                                             const EncodeOptions& options);

}  // namespace tutti::data
