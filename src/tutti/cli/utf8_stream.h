// cli/utf8_stream.h: bytes that come one by one, as text that a terminal can show. A model of bytes makes a character
// in up to four tokens, and sometimes bytes that are no character at all.
#pragma once

#include <string>
#include <string_view>

namespace tutti::cli {

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

}  // namespace tutti::cli
