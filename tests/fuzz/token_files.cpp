// tests/fuzz/token_files.cpp: any bytes as token files. The first byte says as what: nanoGPT, llm.c, llmq, text, found
// out by themselves, or Megatron, whose index has a length of two bytes in front. Either an error, or a row of tokens
// in which every place can be read.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/testing/scratch.h"
#include "tutti/data/token_source.h"

namespace {

using namespace tutti;

std::vector<std::string> write_input(const ScratchFolder& folder, std::string_view bytes, const std::string& format) {
    if (format != "megatron") return {folder.write("input.bin", bytes)};
    const size_t wanted = bytes.size() < 2 ? 0 : static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
    const std::string_view rest = bytes.substr(std::min<size_t>(2, bytes.size()));
    folder.write("input.idx", rest.substr(0, wanted));
    return {folder.write("input.bin", rest.substr(std::min(wanted, rest.size())))};
}

void read_everything(const data::TokenSource& source) {
    const int64_t size = source.size();
    if (size <= 0 || source.format().empty() || source.description().empty()) std::abort();
    std::vector<int32_t> ids(static_cast<size_t>(size)), last(1);
    std::vector<uint8_t> mask(ids.size());
    source.read(0, ids);
    source.read(size - 1, last);
    if (last[0] != ids.back() || source.where(size - 1).empty()) std::abort();
    source.read_mask(0, mask);
    for (const uint8_t counts : mask)
        if (counts > 1) std::abort();
    std::vector<int64_t> begins, second;
    source.document_begins(0, size, begins);
    for (size_t k = 0; k < begins.size(); ++k)
        if (begins[k] <= (k > 0 ? begins[k - 1] : 0) || begins[k] >= size) std::abort();
    source.document_begins(size / 2, size, second);
    if (second.size() > begins.size()) std::abort();
    source.fingerprint();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const ScratchFolder folder;
    static const std::vector<std::string> kFormats = {"auto", "nanogpt", "llmc", "llmq", "text", "megatron"};
    if (size == 0) return 0;
    const std::string& format = kFormats[data[0] % kFormats.size()];
    try {
        const auto paths = write_input(folder, {reinterpret_cast<const char*>(data) + 1, size - 1}, format);
        read_everything(*data::open_tokens(paths, format));
    } catch (const DataError&) {  // the answer to damage
    }
    // New files each time: of a file that is written over, some file systems would write the old content out first.
    for (const char* name : {"input.bin", "input.idx"}) std::filesystem::remove(folder.path(name));
    return 0;
}
