// cli/stop_text.h: ends a text where one of some words begins, though it comes in pieces. Used by generate.cpp.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::cli {

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
