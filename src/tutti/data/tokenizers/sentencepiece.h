// data/tokenizers/sentencepiece.h: sentencepiece models (Llama 1 and 2, Mistral) through Google's library, where the
// build has it. sentencepiece.cpp or sentencepiece_absent.cpp is compiled, never both (CMakeLists.txt chooses).
#pragma once

#include <memory>
#include <string>

#include "tutti/data/tokenizer.h"

namespace tutti::data {

// "sentencepiece 0.1.97", or "" in a build without.
std::string sentencepiece_version();

// DataError for a damaged file; UsageError in a build without the library, with how to build with it.
std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

}  // namespace tutti::data
