#include "tutti/checkpoint/sums.h"

#include <algorithm>
#include <sstream>

#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

namespace {

constexpr size_t kDigits = 32;
constexpr std::string_view kBetween = "  ";

Digest128 digest_of(FileSystem& file_system, const std::string& path) {
    const File file = File::open(file_system, path);
    const int64_t size = file.size();
    std::vector<std::byte> chunk(static_cast<size_t>(std::min(size, kChunkBytes)));
    Hasher128 whole;
    for (int64_t offset = 0; offset < size; offset += kChunkBytes) {
        const auto part = std::span(chunk).first(static_cast<size_t>(std::min(kChunkBytes, size - offset)));
        file.read_all(part, offset);
        whole.update(part);
    }
    return whole.digest();
}

}  // namespace

void write_sums(FileSystem& file_system, const std::string& directory, const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names)
        text += concat(digest_of(file_system, join(directory, name)), kBetween, name, '\n');
    write_file_atomically(file_system, directory, {.name = std::string(kSumsName), .head = text});
}

void verify_sums(FileSystem& file_system, const std::string& directory) {
    constexpr int64_t kMaxBytes = 64 << 20;
    const std::string list = join(directory, kSumsName);
    if (file_system.kind(list) == FileKind::none) return;
    std::istringstream lines(read_text(File::open(file_system, list), kMaxBytes));
    int64_t number = 1;
    for (std::string line; std::getline(lines, line); ++number) {
        const auto wanted = hex128_from(std::string_view(line).substr(0, kDigits));
        const std::string_view rest = std::string_view(line).substr(std::min(line.size(), kDigits));
        const std::string name(rest.substr(std::min(rest.size(), kBetween.size())));
        check<DataError>(wanted && rest.starts_with(kBetween) && is_plain_file_name(name), list, ':', number,
                         ": required: 32 hexadecimal digits, two spaces, the name of a file; the list is damaged");
        const std::string path = join(directory, name);
        check<DataError>(file_system.kind(path) != FileKind::none, path, " is missing; ", list, ':', number,
                         " lists it: put it back, or remove that line to do without");
        const Digest128 found = digest_of(file_system, path);
        check<DataError>(found == *wanted, path, ": its digest is ", found, ", ", list, ':', number, " says ", *wanted,
                         ": the file is damaged, or was changed by hand; make it again, or remove this line of the "
                         "list to use the file as it is");
    }
}

}  // namespace tutti::checkpoint
