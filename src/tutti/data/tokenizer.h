// data/tokenizer.h: text to token ids and back. Stands on base; `generate` and the data tools call it. Training on text
// needs no encode step with the bytes tokenizer: the file's bytes are the ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;
    virtual int64_t vocab() const = 0;  // ids are in [0, vocab)
    virtual std::vector<int32_t> encode(std::string_view text) const = 0;
    virtual std::string decode(std::span<const int32_t> ids) const = 0;  // DataError for an id outside the vocabulary
};

// "bytes": id = byte value, vocab 256, every string survives encode and decode. Anything else throws UsageError naming
// what this version has.
std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name);

}  // namespace tutti::data
