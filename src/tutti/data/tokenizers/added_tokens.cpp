#include "tutti/data/tokenizers/added_tokens.h"

#include <algorithm>

namespace tutti::data {

namespace {

int32_t child_of(const std::vector<std::pair<unsigned char, int32_t>>& children, unsigned char byte) {
    for (const auto& [key, node] : children)
        if (key == byte) return node;
    return -1;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, std::shared_ptr<const CharacterClasses> classes)
    : tokens_(std::move(tokens)), classes_(std::move(classes)), nodes_(1), roots_(256, -1) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
        int32_t node = 0;
        for (const char c : tokens_[i].content) {
            const auto byte = static_cast<unsigned char>(c);
            int32_t next = child_of(nodes_[static_cast<size_t>(node)].children, byte);
            if (next < 0) {
                next = static_cast<int32_t>(nodes_.size());
                nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
                nodes_.emplace_back();
            }
            node = next;
        }
        nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(i);
    }
    for (const auto& [byte, node] : nodes_[0].children) roots_[byte] = node;
}

bool AddedTokens::next(std::string_view text, size_t from, size_t done, Match& match) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
        int32_t node = roots_[static_cast<unsigned char>(text[begin])];
        if (node < 0) continue;
        int32_t longest = nodes_[static_cast<size_t>(node)].token;
        for (size_t at = begin + 1; at < text.size(); ++at) {
            node = child_of(nodes_[static_cast<size_t>(node)].children, static_cast<unsigned char>(text[at]));
            if (node < 0) break;
            if (nodes_[static_cast<size_t>(node)].token >= 0) longest = nodes_[static_cast<size_t>(node)].token;
        }
        if (longest < 0) continue;
        const AddedToken& token = tokens_[static_cast<size_t>(longest)];
        size_t first = begin, last = begin + token.content.size();
        if (token.single_word &&
            (classes_->ends_with(text, first, kWord) || classes_->begins_with(text, last, kWord))) {
            begin = last - 1;  // skipped whole: the search goes on behind it
            continue;
        }
        match.search_from = last;
        if (token.lstrip) {
            while (classes_->ends_with(text, first, kSpace)) first = character_before(text, first);
            first = std::max(first, done);
        }
        if (token.rstrip)
            while (classes_->begins_with(text, last, kSpace)) last += character_at(text, last).length;
        match.begin = first;
        match.end = last;
        match.id = token.id;
        return true;
    }
    return false;
}

bool AddedTokens::touch_space() const {
    return std::any_of(tokens_.begin(), tokens_.end(), [&](const AddedToken& token) {
        if (token.lstrip || token.rstrip) return true;
        for (size_t at = 0; at < token.content.size(); ++at)
            if (classes_->begins_with(token.content, at, kSpace)) return true;
        return false;
    });
}

}  // namespace tutti::data
