// text/sentencepiece_library.cpp: the only file that includes the library (docs/decisions/0010-tokenizers.md).
#include <sentencepiece_processor.h>

#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/text/sentencepiece.h"

namespace tutti::text {

namespace {

using LibraryProcessor = sentencepiece::SentencePieceProcessor;

const LibraryProcessor& of(const void* processor) { return *static_cast<const LibraryProcessor*>(processor); }

void say(const SentencepieceText& text, std::string_view words) { text.add(text.object, words.data(), words.size()); }

// True when the status that `function` returns is OK; exceptions do not leave this function.
template <class Function>
bool succeeds(const SentencepieceText& problem, const Function& function) {
    try {
        const sentencepiece::util::Status status = function();
        if (!status.ok()) say(problem, status.ToString());
        return status.ok();
    } catch (const std::exception& error) {
        say(problem, error.what());
        return false;
    }
}

void* open(const char* model, size_t size, SentencepieceText problem) {
    auto processor = std::make_unique<LibraryProcessor>();
    const bool well =
        succeeds(problem, [&] { return processor->LoadFromSerializedProto(absl::string_view(model, size)); });
    return well ? processor.release() : nullptr;
}

bool encode(const void* processor, const char* text, size_t size, SentencepieceIds ids, SentencepieceText problem) {
    std::vector<int> made;
    const bool well = succeeds(problem, [&] { return of(processor).Encode(absl::string_view(text, size), &made); });
    if (well) ids.add(ids.object, made.data(), made.size());
    return well;
}

bool decode(const void* processor, const int* ids, size_t count, SentencepieceText text, SentencepieceText problem) {
    std::string made;
    const bool well =
        succeeds(problem, [&] { return of(processor).Decode(std::vector<int>(ids, ids + count), &made); });
    if (well) say(text, made);
    return well;
}

const char* piece(const void* processor, int id, size_t* size) {
    const std::string& stored = of(processor).IdToPiece(id);
    *size = stored.size();
    return stored.data();
}

constexpr SentencepieceApi kApi = {
    .version = TUTTI_SENTENCEPIECE_VERSION,
    .open = open,
    .close = [](void* processor) { delete static_cast<LibraryProcessor*>(processor); },
    .encode = encode,
    .decode = decode,
    .size = [](const void* processor) { return of(processor).GetPieceSize(); },
    .piece = piece,
    .id_of =
        [](const void* processor, const char* text, size_t size) {
            return of(processor).PieceToId({text, size});
        },
    .is_control = [](const void* processor, int id) { return of(processor).IsControl(id); },
    .is_unknown = [](const void* processor, int id) { return of(processor).IsUnknown(id); },
    .is_byte = [](const void* processor, int id) { return of(processor).IsByte(id); },
    .bos = [](const void* processor) { return of(processor).bos_id(); },
    .eos = [](const void* processor) { return of(processor).eos_id(); },
    .pad = [](const void* processor) { return of(processor).pad_id(); }};

}  // namespace

const SentencepieceApi* sentencepiece_api(std::string&) { return &kApi; }

}  // namespace tutti::text

const tutti::text::SentencepieceApi* tutti_sentencepiece() { return &tutti::text::kApi; }
