// text/sentencepiece.h: sentencepiece models (Llama 1 and 2, Mistral), read by Google's library where the build has it,
// and the C interface between the library and Tutti.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tutti/text/tokenizer.h"

namespace tutti::text {

// "sentencepiece 0.1.97", or "" without the library.
std::string sentencepiece_version();

// DataError for a damaged file; UsageError with the reason when there is no library.
std::unique_ptr<const Tokenizer> open_sentencepiece(const std::string& path);

// The functions of the library that Tutti calls. No C++ types cross this interface, so that the library may be in a
// module with its own C++ runtime (docs/decisions/0029-packages.md).
//
// Results are added to an object of the caller: characters to a std::string, ids to a std::vector<int>.
struct SentencepieceText {
    void* object;
    void (*add)(void* object, const char* text, size_t size);
};
struct SentencepieceIds {
    void* object;
    void (*add)(void* object, const int* ids, size_t count);
};

// No function throws. Those that can fail return null or false, with the reason in `problem`.
struct SentencepieceApi {
    const char* version;  // "sentencepiece 0.1.97"
    void* (*open)(const char* model, size_t size, SentencepieceText problem);
    void (*close)(void* processor);
    bool (*encode)(const void* processor, const char* text, size_t size, SentencepieceIds ids,
                   SentencepieceText problem);
    bool (*decode)(const void* processor, const int* ids, size_t count, SentencepieceText text,
                   SentencepieceText problem);
    int (*size)(const void* processor);
    const char* (*piece)(const void* processor, int id, size_t* size);  // valid as long as the processor
    int (*id_of)(const void* processor, const char* piece, size_t size);
    bool (*is_control)(const void* processor, int id);
    bool (*is_unknown)(const void* processor, int id);
    bool (*is_byte)(const void* processor, int id);
    int (*bos)(const void* processor);
    int (*eos)(const void* processor);
    int (*pad)(const void* processor);
};

// Null, with the reason in `problem`, when there is no library. cmake/sentencepiece.cmake chooses one of two
// definitions: sentencepiece_library.cpp links the library, sentencepiece_module.cpp opens the module of a package that
// holds it.
const SentencepieceApi* sentencepiece_api(std::string& problem);

}  // namespace tutti::text

// The one symbol of the module.
extern "C" [[gnu::visibility("default")]] const tutti::text::SentencepieceApi* tutti_sentencepiece();
