#include "tutti/launch/verdict.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::launch {

using exit_codes::kBecauseOfOthers, exit_codes::kPreempted;

namespace {

// Exit codes with which a restart would fail, too: usage, data, a bug; a program that cannot be run.
constexpr std::array kPermanent = {exit_codes::kUsage, exit_codes::kData, exit_codes::kInternal, 126, 127};

bool has_code(const RankEnd& end, int code) { return !end.lost && end.ending.signal == 0 && end.ending.code == code; }

bool is_permanent(const RankEnd& end) {
    return std::any_of(kPermanent.begin(), kPermanent.end(), [&](int code) { return has_code(end, code); });
}

std::string describe(const RankEnd& end) {
    std::string text = concat("rank ", end.rank, " on host ", end.host);
    if (end.lost) return text + " was lost with its host";
    if (end.ending.signal != 0)
        return concat(text, " was killed by signal ", end.ending.signal, " (", strsignal(end.ending.signal), ")");
    return concat(text, " ended with code ", end.ending.code);
}

}  // namespace

Verdict judge(const std::vector<RankEnd>& ends) {
    const auto all = [&](auto fact) { return std::all_of(ends.begin(), ends.end(), fact); };
    if (all([](const RankEnd& end) { return has_code(end, 0); })) return {};
    if (all([](const RankEnd& end) { return has_code(end, 0) || has_code(end, kPreempted); }))
        return {.code = kPreempted};
    if (const auto end = std::find_if(ends.begin(), ends.end(), is_permanent); end != ends.end())
        return {.code = end->ending.code, .culprit = describe(*end)};
    const auto at_fault = [](const RankEnd& end) {
        return !end.by_launcher && !has_code(end, 0) && !has_code(end, kBecauseOfOthers) && !has_code(end, kPreempted);
    };
    const auto culprit = std::find_if(ends.begin(), ends.end(), at_fault);
    return {.again = true,
            .code = exit_codes::kFailed,
            .culprit = culprit != ends.end() ? describe(*culprit) : describe(ends.front())};
}

}  // namespace tutti::launch
