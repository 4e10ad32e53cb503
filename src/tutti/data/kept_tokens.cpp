#include "tutti/data/kept_tokens.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/data/new_file.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDigests = "digests";  // "<digest> <name>" for each of the other files
constexpr const char* kAdvice =
    "the ids of a text are kept beside it; put the text into a folder that can be written and has the space";

std::string digest_of_file(const std::string& path) {
    const MappedFile file(path);
    return to_hex(digest_of({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}));
}

// Nothing of it stays unless it is moved away.
struct Temporary {
    explicit Temporary(std::string name) : path(std::move(name)) {
        std::error_code error;
        fs::remove_all(path, error);  // of an earlier process with this number
        fs::create_directory(path, error);
        check<UsageError>(!error, path, ": cannot be made (", error.message(), "): ", kAdvice);
    }
    ~Temporary() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    std::string path;
};

void make_directory(const std::string& directory, const MakeTokens& make) {
    const Temporary temporary(concat(directory, ".", ::getpid(), ".part"));
    std::string digests;
    for (const std::string& path : make(temporary.path + "/tokens"))
        digests += concat(digest_of_file(path), " ", fs::path(path).filename().string(), "\n");
    NewFile file(temporary.path + "/" + kDigests, kAdvice);
    file.write(digests.data(), digests.size());
    file.commit();
    std::error_code error;
    fs::rename(temporary.path, directory, error);
    const bool others = error && fs::exists(directory);  // another run was faster
    check<DataError>(!error || others, temporary.path, ": cannot be renamed to ", directory, ": ", error.message());
}

void verify(const std::string& directory) {
    const std::string remedy = concat("; remove ", directory, ", it will be made again");
    std::map<std::string, std::string> listed;
    {
        const MappedFile file(directory + "/" + kDigests);
        std::istringstream lines(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()));
        for (std::string digest, name; lines >> digest >> name;) listed[name] = digest;
    }
    for (const char* name : {"tokens.bin", "tokens.idx", "tokens.mask"}) {
        const std::string path = directory + "/" + name;
        const auto wanted = listed.find(name);
        if (wanted == listed.end() && !fs::exists(path)) continue;
        check<DataError>(wanted != listed.end(), path, ": is not among the digests beside it", remedy);
        check<DataError>(fs::exists(path), path, ": is missing", remedy);
        const std::string digest = digest_of_file(path);
        check<DataError>(digest == wanted->second, path, ": the digest of its bytes is ", digest,
                         ", that of what was written is ", wanted->second, ": the disk has changed it", remedy);
    }
    check<DataError>(listed.contains("tokens.bin"), directory, "/", kDigests, ": does not name tokens.bin", remedy);
}

}  // namespace

std::string kept_directory(const MappedFile& text, uint64_t key) {
    return concat(text.path(), ".", to_hex(key), ".tokens");
}

std::string kept_tokens(const std::string& directory, const MakeTokens& make) {
    std::error_code unreadable;  // whatever it is, writing will say it better
    if (!fs::exists(directory, unreadable)) make_directory(directory, make);
    verify(directory);
    return directory + "/tokens.bin";
}

}  // namespace tutti::data
