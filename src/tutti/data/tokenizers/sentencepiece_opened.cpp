// data/tokenizers/sentencepiece_opened.cpp: opens the module libtutti_sentencepiece.so of a package when a model is
// first read. $ORIGIN is the directory of the program.
#include <dlfcn.h>

#include "tutti/base/error.h"
#include "tutti/data/tokenizers/sentencepiece_api.h"

namespace tutti::data {

namespace {

constexpr const char* kModule = "$ORIGIN/../lib/tutti/libtutti_sentencepiece.so";

// The module needs a libstdc++. The system's comes first: it is the newer one, and others that are opened later may
// need what is new in it. The package has one for systems without.
void* open_module(std::string& problem) {
    if (void* module = dlopen(kModule, RTLD_NOW | RTLD_LOCAL)) return module;
    problem = dlerror();
    for (const char* own : {"$ORIGIN/../lib/tutti/gcc/libgcc_s.so.1", "$ORIGIN/../lib/tutti/gcc/libstdc++.so.6"})
        if (dlopen(own, RTLD_NOW | RTLD_LOCAL) == nullptr) {
            problem += concat("\n  ", dlerror());
            return nullptr;
        }
    void* module = dlopen(kModule, RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) problem += concat("\n  ", dlerror());
    return module;
}

}  // namespace

const SentencepieceApi* sentencepiece_api(std::string& problem) {
    std::string reason;
    void* module = open_module(reason);
    if (module == nullptr) {
        problem = concat("the part of the package that reads sentencepiece models cannot be opened:\n  ", reason,
                         "\n  keep lib/tutti of the package beside bin, or use the tokenizer.json of the model");
        return nullptr;
    }
    const auto entry = reinterpret_cast<decltype(&tutti_sentencepiece)>(dlsym(module, "tutti_sentencepiece"));
    if (entry == nullptr) problem = dlerror();
    return entry == nullptr ? nullptr : entry();
}

}  // namespace tutti::data
