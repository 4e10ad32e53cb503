// data/tokenizers/sentencepiece_absent.cpp: builds without the library.
#include "tutti/data/tokenizers/sentencepiece_api.h"

namespace tutti::data {

const SentencepieceApi* sentencepiece_api(std::string& problem) {
    problem =
        "this build reads no sentencepiece models; install libsentencepiece-dev, configure with "
        "-DTUTTI_SENTENCEPIECE=ON and build again, or use the tokenizer.json of the model";
    return nullptr;
}

}  // namespace tutti::data
