#include "tutti/checkpoint/store_names.h"

#include <algorithm>
#include <charconv>

namespace tutti::checkpoint {

namespace {
constexpr std::string_view kStep = "step-";
constexpr size_t kStepDigits = 10;
}  // namespace

std::string step_name(int64_t step) {
    const std::string digits = std::to_string(step);
    return std::string(kStep) + std::string(kStepDigits - std::min(kStepDigits, digits.size()), '0') + digits;
}

StoreName parse_store_name(std::string_view name) {
    StoreName parsed;
    if (name.starts_with(kTrash)) parsed.kind = NameKind::trash;
    if (!name.starts_with(kStep)) return parsed;
    const std::string_view digits = name.substr(kStep.size(), name.find('.') - kStep.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed.step);
    // step_name() is the only spelling: "step-5" or "step-0000000005x" are somebody else's.
    if (error != std::errc() || end != digits.data() + digits.size() || parsed.step < 0 ||
        name.substr(0, kStep.size() + digits.size()) != step_name(parsed.step))
        return {};
    const std::string_view rest = name.substr(kStep.size() + digits.size());
    if (rest.empty()) parsed.kind = NameKind::checkpoint;
    if (rest.starts_with(kReplaced)) parsed.kind = NameKind::replaced;
    if (rest.starts_with(kCorrupt)) parsed.kind = NameKind::corrupt;
    if (rest.starts_with(kTemporary)) {
        parsed.kind = NameKind::temporary;
        const std::string_view owner = rest.substr(kTemporary.size());
        parsed.owner = owner.substr(0, owner.rfind('-'));
    }
    return parsed;
}

}  // namespace tutti::checkpoint
