// text/sentencepiece_module.cpp: for builds that do not link the library. A package opens its module when a model is
// first read; other builds have no module and cannot read sentencepiece models.
#include <dlfcn.h>

#include <string_view>

#include "tutti/base/error.h"
#include "tutti/text/sentencepiece.h"

namespace tutti::text {

namespace {

// cmake/sentencepiece.cmake defines the path of the module in a package, "" without one. $ORIGIN is the directory of
// the program.
constexpr bool kHasModule = !std::string_view(TUTTI_SENTENCEPIECE_MODULE).empty();
constexpr const char* kModule = "$ORIGIN/../" TUTTI_SENTENCEPIECE_MODULE;

// The module needs a libstdc++. The system's is tried first: it is newer, and libraries opened later may need its new
// symbols. The package has a libstdc++ for systems without one.
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
    if (!kHasModule) {
        problem =
            "this build reads no sentencepiece models; install libsentencepiece-dev, configure with "
            "-DTUTTI_SENTENCEPIECE=ON and build again, or use the tokenizer.json of the model";
        return nullptr;
    }
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

}  // namespace tutti::text
