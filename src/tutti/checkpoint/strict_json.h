// checkpoint/strict_json.h: reads JSON piece by piece, for the two files whose every byte is checked: the header of a
// safetensors file and the index of a sharded one. A general JSON library accepts more than is safe here: duplicate
// keys, integers turned into doubles, any depth. Below: utf8.h. Called by safetensors_header.cpp and sharded.cpp.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::checkpoint {

class StrictJson {
  public:
    // `what` the text must be, and where in the file it begins, for messages: "x: byte 12: not an index: ...". Throws
    // at once when the text is not UTF-8.
    StrictJson(std::string_view text, const std::string& path, std::string_view what, int64_t first_byte);

    template <class... Parts>
    [[noreturn]] void fail_at(size_t at, const Parts&... parts) const {
        throw DataError(
            concat(path_, ": byte ", first_byte_ + static_cast<int64_t>(at), ": not ", what_, ": ", parts...));
    }

    size_t at() const { return at_; }
    char peek();           // the next character that is no space; DataError at the end
    void expect(char c);   // takes it
    bool take(char c);     // takes it if it comes
    std::string string();  // UTF-8; refuses NUL, control characters and halves of surrogate pairs
    int64_t integer();     // digits only, up to 2^63 - 1
    std::vector<int64_t> integers(size_t at_most, std::string_view what);
    void skip_value(int depth);  // any value, at most `depth` levels of objects and arrays
    void end();                  // only spaces may follow

    // entry(key, its position) reads one value. `inside` names the object for messages about keys that come twice.
    template <class Entry>
    void object(std::string_view inside, Entry entry) {
        expect('{');
        if (take('}')) return;
        std::set<std::string, std::less<>> keys;
        do {
            peek();
            const size_t start = at_;
            const std::string key = string();
            if (!keys.insert(key).second) fail_at(start, inside, "'", key, "' comes twice");
            expect(':');
            entry(key, start);
        } while (take(','));
        expect('}');
    }

  private:
    void skip_space();
    void escape(std::string& value);
    uint32_t hex4(size_t start);

    std::string_view text_;
    const std::string& path_;
    std::string_view what_;
    int64_t first_byte_;
    size_t at_ = 0;
};

}  // namespace tutti::checkpoint
