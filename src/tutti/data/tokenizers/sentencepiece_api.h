// data/tokenizers/sentencepiece_api.h: what Tutti calls of Google's sentencepiece library, as functions of C. Nothing
// of C++ crosses them, so that they may be in a module with a C++ library of its own (docs/decisions/0029-packages.md).
#pragma once

#include <cstddef>
#include <string>

namespace tutti::data {

// Adds what a function returns to an object of the caller: characters to a std::string, ids to a std::vector<int>.
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
    const char* (*piece)(const void* processor, int id, size_t* size);  // as long as the processor
    int (*id_of)(const void* processor, const char* piece, size_t size);
    bool (*is_control)(const void* processor, int id);
    bool (*is_unknown)(const void* processor, int id);
    bool (*is_byte)(const void* processor, int id);
    int (*bos)(const void* processor);
    int (*eos)(const void* processor);
    int (*pad)(const void* processor);
};

// Null, and why in `problem`, where the library is not there. The build has one of three definitions
// (cmake/sentencepiece.cmake): sentencepiece_library.cpp, linked; sentencepiece_opened.cpp, which opens the module that
// holds the former; sentencepiece_absent.cpp.
const SentencepieceApi* sentencepiece_api(std::string& problem);

}  // namespace tutti::data

// The one symbol of the module.
extern "C" [[gnu::visibility("default")]] const tutti::data::SentencepieceApi* tutti_sentencepiece();
