// data/tokenizers/nfc.h: Unicode's canonical composed form (UAX #15), which the Qwen tokenizers make of their text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

class Nfc {
  public:
    Nfc();
    // `text` in NFC: itself when it is so already (nearly all text is), else a view of `buffer`. Bytes that are not
    // UTF-8 stay as they are.
    std::string_view normalize(std::string_view text, std::string& buffer) const;

  private:
    void decompose(uint32_t code, std::vector<uint32_t>& out) const;
    std::string normalize_segment(std::string_view segment) const;
    uint32_t compose(uint32_t first, uint32_t second) const;  // 0: they do not

    std::vector<uint8_t> combining_class_;
    // A character that is no part of anything longer: combining class 0, and NFC neither changes it nor joins it to
    // what stands before it. The form of what lies between two such places depends on nothing outside.
    std::vector<bool> stands_alone_;
    std::unordered_map<uint32_t, Decomposition> decompositions_;
    std::unordered_map<uint64_t, uint32_t> compositions_;  // first << 32 | second
};

}  // namespace tutti::data
