// data/encoded_text.h: text and JSONL as a token source: tokenized when they are opened, kept in memory. Stands on
// encode_files.h; open_tokens() calls it. Large corpora are better tokenized once: `tutti data tokenize`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/token_source.h"

namespace tutti::data {

// `format` is text or jsonl. A text file is one document and gets nothing added; a JSONL record gets what the tokenizer
// puts around a text and the end-of-document token.
std::shared_ptr<const TokenSource> encode_to_memory(const std::vector<std::string>& paths, std::string_view format,
                                                    const TextOptions& options);

}  // namespace tutti::data
