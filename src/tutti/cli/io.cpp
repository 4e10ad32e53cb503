#include "tutti/cli/io.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/data/token_writer.h"

namespace tutti::cli {

namespace fs = std::filesystem;

void Io::print(const Json& document) const {
    if (json) out << document.dump(2, Json::InvalidUtf8::replace) << std::endl;
}

void Io::next(const std::vector<std::string>& commands) const {
    if (!suggests) return;
    for (const std::string& command : commands)
        text() << (&command == commands.data() ? "next: " : "      ") << command << '\n';
    text() << std::flush;
}

namespace {

std::string advice_of(const std::string& option) { return concat(option, " names another place"); }

std::string problem_of(const std::string& option, const std::string& path, const std::string& reason) {
    return concat(path, " cannot be written: ", reason, "; ", advice_of(option));
}

}  // namespace

bool are_one_file(const std::string& a, const std::string& b) {
    std::error_code problem;
    if (fs::exists(a, problem)) return fs::is_regular_file(a, problem) && fs::equivalent(a, b, problem);
    return fs::weakly_canonical(a, problem) == fs::weakly_canonical(b, problem);
}

void check_place(const std::string& option, const std::string& path) {
    const auto refuse = [&](int error) { throw UsageError(problem_of(option, path, std::strerror(error))); };
    std::error_code problem;
    if (fs::is_directory(path, problem)) refuse(EISDIR);
    const bool whole = !fs::exists(path, problem) || fs::is_regular_file(path, problem);
    const fs::path parent = fs::path(path).parent_path();
    const std::string place = !whole ? path : parent.empty() ? "." : parent.string();
    if (::access(place.c_str(), whole ? W_OK | X_OK : W_OK) != 0) refuse(errno);
    if (whole && !fs::is_directory(place, problem)) refuse(ENOTDIR);
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
    std::error_code problem;
    const bool there = fs::exists(path, problem);
    const bool whole = !there || fs::is_regular_file(path, problem);  // a pipe or a device is written as it is
    if (whole) {
        const bool link = there && fs::is_symlink(path, problem);  // stays
        data::AtomicFile file(link ? fs::canonical(path, problem).string() : path, advice_of(option));
        file.write(text.data(), text.size());
        return file.commit();
    }
    errno = 0;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    check<DataError>(file.good(), problem_of(option, path, std::strerror(errno)));
}

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of a character that begins with `first`; 0: no character does.
size_t length_of(unsigned char first) {
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return 2;
    if (first >= 0xE0 && first <= 0xEF) return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

// Whether `byte` is legal at `index` >= 1 of a character that begins with `first` (RFC 3629: no overlong forms, no
// surrogates, at most U+10FFFF).
bool continues(unsigned char first, size_t index, unsigned char byte) {
    if (index == 1) {
        if (first == 0xE0) return byte >= 0xA0 && byte <= 0xBF;
        if (first == 0xED) return byte >= 0x80 && byte <= 0x9F;
        if (first == 0xF0) return byte >= 0x90 && byte <= 0xBF;
        if (first == 0xF4) return byte >= 0x80 && byte <= 0x8F;
    }
    return (byte & 0xC0) == 0x80;
}

bool is_control(unsigned char byte) { return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F; }

// U+0080 to U+009F: terminals interpret U+009B as the start of an escape sequence.
bool is_c1_control(std::string_view character) {
    return character.size() == 2 && static_cast<unsigned char>(character[0]) == 0xC2 &&
           static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
    waiting_ += bytes;
    std::string text;
    size_t at = 0;
    while (at < waiting_.size()) {
        const auto first = static_cast<unsigned char>(waiting_[at]);
        const size_t length = length_of(first);
        size_t good = std::min<size_t>(length, 1);
        while (good < length && at + good < waiting_.size() &&
               continues(first, good, static_cast<unsigned char>(waiting_[at + good])))
            ++good;
        if (good < length && at + good == waiting_.size()) break;  // the rest may still come
        const std::string_view character = std::string_view(waiting_).substr(at, length);
        const bool bad = length == 0 || good < length || is_control(first) || is_c1_control(character);
        text += bad ? kReplacement : character;
        at += std::max<size_t>(good, 1);
    }
    waiting_.erase(0, at);
    return text;
}

std::string Utf8Stream::finish() {
    const bool unfinished = !waiting_.empty();
    waiting_.clear();
    return unfinished ? std::string(kReplacement) : "";
}

}  // namespace tutti::cli
