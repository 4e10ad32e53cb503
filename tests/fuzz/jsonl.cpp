// tests/fuzz/jsonl.cpp: any bytes as JSONL. Either DataError, or records that are the same on one thread and on two.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/testing/scratch.h"
#include "tutti/data/text_tokens.h"

namespace {

using namespace tutti;

struct All {
    std::vector<int32_t> ids;
    std::vector<int64_t> begins;
    std::vector<uint8_t> mask;
    std::string error;
    bool operator==(const All&) const = default;
};

All read(const std::string& path, const text::Tokenizer& tokenizer, int threads) {
    All all;
    try {
        const auto source =
            data::open_records({path}, tokenizer, {.eod = 0, .encode = {.threads = threads, .write = false}});
        const auto size = static_cast<size_t>(source->size());
        all = {std::vector<int32_t>(size), {}, std::vector<uint8_t>(size), ""};
        source->read(0, all.ids);
        source->read_mask(0, all.mask);
        source->document_begins(0, source->size(), all.begins);
        if (size == 0 || all.ids.back() != 0) std::abort();
        for (const int64_t begin : all.begins)
            if (all.ids.at(static_cast<size_t>(begin) - 1) != 0) std::abort();  // the end of the record before
    } catch (const DataError& error) {                                          // the answer to damage
        all.error = error.what();
    }
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const ScratchFolder folder;
    static const auto tokenizer = text::make_tokenizer("bytes");
    const std::string path = folder.write("input.jsonl", {reinterpret_cast<const char*>(data), size});
    if (read(path, *tokenizer, 1) != read(path, *tokenizer, 2)) std::abort();
    // A new file each time: of one that is written over, some file systems would write the old content out first.
    std::filesystem::remove(path);
    return 0;
}
