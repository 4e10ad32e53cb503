// data/tokenizers/added_tokens.h: tokens that are found in the text before it is cut into words, such as
// <|endoftext|>. Leftmost first, at one place the longest, as the `tokenizers` package does. Stands on unicode.h;
// byte_level.cpp calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/tokenizers/unicode.h"

namespace tutti::data {

// The fields of "added_tokens" in tokenizer.json.
struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool single_word = false;  // only where no word character stands beside it
    bool lstrip = false;       // takes the white space before it along
    bool rstrip = false;       // and that after it
    bool normalized = false;   // looked for in the normalized text
    bool special = false;      // decoding may leave it out
};

class AddedTokens {
  public:
    AddedTokens(std::vector<AddedToken> tokens, std::shared_ptr<const CharacterClasses> classes);

    bool empty() const { return tokens_.empty(); }

    // Calls between(text) for what is no added token, and found(id) for each that is, from left to right.
    template <class Between, class Found>
    void split(std::string_view text, const Between& between, const Found& found) const {
        size_t done = 0;
        for (size_t from = 0; from < text.size();) {
            Match match;
            if (!next(text, from, done, match)) break;
            if (done < match.begin) between(text.substr(done, match.begin - done));
            found(match.id);
            done = match.end;
            from = match.search_from;
        }
        if (done < text.size()) between(text.substr(done));
    }

    // Whether a token may contain white space or take it from its neighbours: text cannot be cut there then.
    bool touch_space() const;

  private:
    struct Node {
        std::vector<std::pair<unsigned char, int32_t>> children;  // few: a list is as fast as a map
        int32_t token = -1;                                       // index into tokens_
    };
    struct Match {
        size_t begin, end;   // with stripped white space
        size_t search_from;  // where the content ends: the next search begins here
        int32_t id;
    };
    bool next(std::string_view text, size_t from, size_t done, Match& match) const;

    std::vector<AddedToken> tokens_;
    std::shared_ptr<const CharacterClasses> classes_;
    std::vector<Node> nodes_;
    std::vector<int32_t> roots_;  // by first byte; -1: no token begins so
};

}  // namespace tutti::data
