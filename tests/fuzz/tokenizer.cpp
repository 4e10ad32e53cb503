// tests/fuzz/tokenizer.cpp: any bytes as tokenizer.json. Either DataError, or a tokenizer that is the same when it is
// written and read again, and whose ids are in its vocabulary.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    try {
        const std::string input(reinterpret_cast<const char*>(data), size);
        const text::ByteLevelModel model = text::parse_tokenizer_json(input, "input");
        const std::string written = text::tokenizer_json(model);
        if (text::tokenizer_json(text::parse_tokenizer_json(written, "again")) != written) std::abort();
        const text::ByteLevelTokenizer tokenizer(model, "input");
        std::vector<int32_t> ids;
        tokenizer.make_encoder()->encode("In a hole in the ground, 1937;\n\tna\xC3\xAFve <|endoftext|>\xF0\x9F\x8C\x8D",
                                         ids);
        for (const int32_t id : ids)
            if (id < 0 || id >= tokenizer.vocab()) std::abort();
        tokenizer.decode(ids, text::ShowSpecial::yes);
    } catch (const DataError&) {  // the answer to damage
    }
    return 0;
}
