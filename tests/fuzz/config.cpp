// tests/fuzz/config.cpp: any bytes as a config; behind a NUL byte, a line for each --set. Either an error, or a run
// that is the same when it is written and read again, and that is legal on some number of ranks or refused.
#include <cstdint>
#include <cstdlib>

#include "tutti/base/error.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tutti;
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t text_size = std::min(input.find('\0'), size);
    std::vector<std::string> sets;
    for (size_t from = text_size + 1; from < size;) {
        const size_t end = std::min(input.find('\n', from), size);
        sets.emplace_back(input.substr(from, end - from));
        from = end + 1;
    }
    try {
        const spec::RunSpec run = spec::parse_text(input.substr(0, text_size), "input", sets);
        if (spec::parse_text(spec::to_toml(run), "again") != run) std::abort();
        spec::validate(run, 8);
    } catch (const UsageError&) {  // the answer to what is wrong or impossible
    } catch (const DataError&) {   // model.hf names a folder without a model
    }
    return 0;
}
