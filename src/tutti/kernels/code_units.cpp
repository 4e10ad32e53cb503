#include "tutti/kernels/code_units.h"

#include <utility>

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

int capability_of(std::string_view generation) {
    constexpr std::pair<std::string_view, int> kGenerations[] = {
        {"fermi", 20},  {"volta", 70},      {"ampere", 80},          {"ada", 89},
        {"hopper", 90}, {"blackwell", 100}, {"blackwell-ultra", 103}};
    for (const auto& [name, capability] : kGenerations)
        if (name == generation) return capability;
    return 0;
}

}  // namespace tutti::kernels
