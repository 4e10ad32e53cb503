// cli/io.h: the output of a command: its streams, the files that options name, and text that a terminal can show.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::cli {

// The output of a command. Results go to `out`. With --json, `out` gets one JSON document, and all text goes to `err`.
struct Io {
    std::ostream& out;
    std::ostream& err;
    bool out_terminal = false;
    bool err_terminal = false;
    bool color = false;    // err is a terminal and NO_COLOR is not set
    bool json = false;     // --json was given
    bool suggests = true;  // next() writes

    std::ostream& text() const { return json ? err : out; }
    bool text_terminal() const { return json ? err_terminal : out_terminal; }
    // With --json writes the document, else nothing. Bytes of a text that are not UTF-8 become U+FFFD.
    void print(const Json& document) const;
    // Writes the commands that often follow this one as text: "next: tutti …".
    void next(const std::vector<std::string>& commands) const;
};

// Whether both paths name one regular file, which may not exist yet. False for devices and pipes: two options may write
// to one.
bool are_one_file(const std::string& a, const std::string& b);

// UsageError where write_file() could make no file, to be thrown before a long computation.
void check_place(const std::string& option, const std::string& path);

// Writes the file that `option` names. A regular file appears complete or not at all. Errors have reason and option:
// UsageError where no file can be made, DataError where writing fails.
void write_file(const std::string& option, const std::string& path, const std::string& text);

// Converts a stream of bytes to text for a terminal. A byte-level model generates a character in up to four tokens, and
// can generate bytes that are not UTF-8.
class Utf8Stream {
  public:
    // Returns the complete characters so far; an incomplete one is held back. Bytes that are not UTF-8 become U+FFFD,
    // once per maximal wrong part (Unicode 15, section 3.9), and so do control characters other than \n and \t, so that
    // a sample cannot control the reader's terminal.
    std::string feed(std::string_view bytes);
    // The end of the text: U+FFFD for an unfinished character, or nothing.
    std::string finish();

  private:
    std::string waiting_;
};

// Ends a text that arrives in pieces at the first occurrence of a stop word.
class StopText {
  public:
    explicit StopText(std::vector<std::string> words) : words_(std::move(words)) {}

    // Returns the text that can be shown: all so far except a tail that could become a stop word.
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
    // Returns the tail that was held back, when the text ends without a stop word.
    std::string finish() { return std::exchange(held_, {}); }
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> words_;  // none is empty
    std::string held_;
    bool stopped_ = false;
};

}  // namespace tutti::cli
