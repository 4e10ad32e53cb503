// data/tokenizers/sentencepiece.h: sentencepiece models (Llama 1 and 2, Mistral) through Google's library, where the
// build has it (sentencepiece_api.h).
#pragma once

#include <memory>
#include <string>

#include "tutti/data/tokenizer.h"

namespace tutti::data {

// "sentencepiece 0.1.97", or "" where the library is not there.
std::string sentencepiece_version();

// DataError for a damaged file; UsageError where the library is not there, with the reason.
std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace tutti::data
