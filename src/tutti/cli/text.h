// cli/text.h: text for a terminal: bytes that come one by one; an end where one of some words begins. Columns and
// numbers with units are base/units.h.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::cli {

// Bytes that come one by one, as text that a terminal can show. A model of bytes makes a character in up to four
// tokens, and sometimes bytes that are no character at all.
class Utf8Stream {
  public:
    // Whole characters among what came so far; an unfinished one waits. What is not UTF-8 becomes U+FFFD, once per
    // maximal wrong part (Unicode 15, section 3.9), and so do control characters but \n and \t: a sample must not be
    // able to drive the reader's terminal.
    std::string feed(std::string_view bytes);
    // What an unfinished character becomes at the end: U+FFFD or nothing.
    std::string finish();

  private:
    std::string waiting_;
};

// Ends a text where one of some words begins, though it comes in pieces.
class StopText {
  public:
    explicit StopText(std::vector<std::string> words) : words_(std::move(words)) {}

    // What of the text so far may be shown: all but an end that could become a stop word.
    std::string feed(std::string_view piece) {
        held_ += piece;
        size_t cut = std::string::npos;
        for (const std::string& word : words_) cut = std::min(cut, held_.find(word));
        if (cut != std::string::npos) {
            stopped_ = true;
            std::string shown = held_.substr(0, cut);
            held_.clear();
            return shown;
        }
        size_t keep = 0;
        for (const std::string& word : words_)
            for (size_t n = std::min(word.size() - 1, held_.size()); n > keep; --n)
                if (held_.ends_with(std::string_view(word).substr(0, n))) keep = n;
        std::string shown = held_.substr(0, held_.size() - keep);
        held_.erase(0, shown.size());
        return shown;
    }
    // The end that was held back, when the text ended without a stop word.
    std::string finish() { return std::exchange(held_, {}); }
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> words_;  // none is empty
    std::string held_;
    bool stopped_ = false;
};

}  // namespace tutti::cli
