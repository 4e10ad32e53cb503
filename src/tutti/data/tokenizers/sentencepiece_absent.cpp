// data/tokenizers/sentencepiece_absent.cpp: takes the place of sentencepiece.cpp in builds without the library.
#include "tutti/base/error.h"
#include "tutti/data/tokenizers/sentencepiece.h"

namespace tutti::data {

std::string sentencepiece_version() { return ""; }

std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path) {
    throw UsageError(concat(path,
                            ": this build reads no sentencepiece models; install libsentencepiece-dev, configure ",
                            "with -DTUTTI_SENTENCEPIECE=ON and build again, or use the tokenizer.json of the model"));
}

}  // namespace tutti::data
