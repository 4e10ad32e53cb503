#include "tutti/kernels/code_units.h"

#include "tutti/base/error.h"

namespace tutti::kernels {

std::string text_of_code_units() {
    std::string text;
    const auto capability = [](int n) { return concat(n / 10, '.', n % 10); };
    for (const CodeUnit& u : code_units()) {
        text += concat(text.empty() ? "" : "; ",
                       u.along == 0 ? std::string("one scale a matrix") : concat("1 x ", u.along, " by ", u.divisors),
                       ": compute capability ", capability(u.first));
        if (u.last != u.first) text += " and later";
    }
    return text;
}

}  // namespace tutti::kernels
