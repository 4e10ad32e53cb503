// tests/fuzz/hf_config.cpp: any bytes as a config.json. Either DataError, or a model that is legal and that survives
// being written and read.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/generation.h"
#include "tutti/spec/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        const spec::ModelSpec model = spec::model_from_hf_config(text, "input");
        if (!spec::model_problems(model).empty()) std::abort();
        if (spec::model_from_hf_config(spec::to_hf_config(model, DType::bf16), "again") != model) std::abort();
    } catch (const DataError&) {  // the answer to damage
    }
    try {
        spec::eos_tokens(text, "input");
    } catch (const DataError&) {
    }
    return 0;
}
