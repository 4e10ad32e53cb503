// planner/limits.cpp: layouts in words: what a search leaves out, and what it holds fixed.
#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

namespace {

std::vector<std::string> schedule_names() {
    std::vector<std::string> names;
    for (const schedule::Kind* kind : schedules()) names.emplace_back(kind->name);
    return names;
}

std::vector<std::string> words_of(std::string text) {
    for (char& c : text)
        if (c == ',' || c == '=' || c == ':') c = ' ';
    std::istringstream in(text);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

constexpr std::pair<const char*, std::vector<int> Limits::*> kAxes[] = {
    {"tp", &Limits::tp},   {"cp", &Limits::cp}, {"pp", &Limits::pp},    {"ep", &Limits::ep},
    {"etp", &Limits::etp}, {"dp", &Limits::dp}, {"zero", &Limits::zero}};

}  // namespace

bool Limits::allow(const spec::RunSpec& run) const {
    const spec::ParallelSpec& p = run.parallel;
    return in(tp, p.tp) && in(cp, p.cp) && in(pp, p.pp) && in(ep, p.ep) && in(etp, p.etp) && in(zero, p.zero) &&
           in(micro_batch, run.train.micro_batch) && in(dp_replicate, p.dp_replicate) &&
           in(dp, p.dp_replicate * p.dp_shard) && in(recompute, run.recompute.policy) &&
           (p.pp == 1 || (in(schedules, p.schedule) && in(virtual_stages, p.virtual_stages))) &&
           (offload || !(run.offload.optimizer || run.offload.params || run.offload.activations));
}

void leave_out(Limits& limits, const std::string& words) {
    std::vector<std::string> known = {"offload", "tp", "cp", "pp", "ep", "etp", "hsdp", "zero3", "recompute"};
    const std::vector<std::string> names = schedule_names();
    known.insert(known.end(), names.begin(), names.end());
    std::vector<std::string> left = limits.schedules.empty() ? names : limits.schedules;
    for (const std::string_view given : different_elements("--without", words)) {
        const std::string word = lower_case(std::string(given));
        if (word == "offload") limits.offload = false;
        for (const auto& [axis, values] : kAxes)
            if (word == axis) limits.*values = {1};
        if (word == "hsdp") limits.dp_replicate = {1};
        if (word == "zero3") limits.zero = {0, 1, 2};
        if (word == "recompute") limits.recompute = {"none"};
        std::erase(left, word);
        check<UsageError>(std::find(known.begin(), known.end(), word) != known.end(), "--without ", given,
                          ": not a part of layouts; the nearest is ", spec::nearest(word, known), " of ",
                          joined(known));
    }
    check<UsageError>(!left.empty(), "--without ", words,
                      ": no pipeline schedule is left; leave out pp in place of all");
    if (left.size() < names.size()) limits.schedules = left;
}

void hold(Limits& limits, const std::string& layout) {
    const std::vector<std::string> names = schedule_names();
    std::vector<std::string> known = {"tp",   "cp",    "pp",        "ep",          "etp", "dp",
                                      "zero", "micro", "recompute", "interleaved", "x"};
    known.insert(known.end(), names.begin(), names.end());
    const std::vector<std::string> words = words_of(layout);
    check<UsageError>(!words.empty(), "--why-not \"\": required a layout such as \"tp 8 pp 16\"");
    size_t i = 0;
    const auto number = [&](const std::string& of, const std::string& text) {
        const std::optional<int> value = parse_number<int>(text);
        const int least = of.starts_with("zero") ? 0 : 1;
        check<UsageError>(value && *value >= least, "--why-not \"", layout, "\": ", of, " needs a number from ", least,
                          " on, such as \"tp 8 pp 16 interleaved x 8 ZeRO-1\", got \"", text, "\"");
        return *value;
    };
    std::set<std::string> held;
    const auto once = [&](const std::string& axis) {
        check<UsageError>(held.insert(axis).second, "--why-not \"", layout, "\": ", axis,
                          " is given twice; give one value of each axis");
    };
    const auto next = [&](const std::string& of) { return number(of, i + 1 < words.size() ? words[++i] : ""); };
    for (; i < words.size(); ++i) {
        const std::string word = lower_case(words[i]);
        const size_t digits = word.find_first_of("0123456789");
        const std::string stem = word.substr(0, std::min(word.find_first_of("-0123456789"), word.size()));
        const auto value = [&] { return digits == std::string::npos ? next(word) : number(word, word.substr(digits)); };
        const auto* const axis = std::ranges::find_if(kAxes, [&](const auto& each) { return stem == each.first; });
        if (std::find(names.begin(), names.end(), word) != names.end()) {
            once("schedule");
            limits.schedules = {word};
        } else if (word == "x") {
            once("x");
            limits.virtual_stages = {next("x, the stages of a rank,")};
        } else if (word == "none" || word == "selective" || word == "full") {
            once("recompute");
            limits.recompute = {word};
        } else if (word == "micro" || word == "batch" || word == "recompute") {
            if (word == "recompute") continue;
            once("micro batch");
            if (i + 1 < words.size() && lower_case(words[i + 1]) == "batch") ++i;
            limits.micro_batch = {next("micro batch")};
        } else if (axis != std::end(kAxes)) {
            once(stem);
            limits.*axis->second = {value()};
            if (stem == "dp" && i + 2 < words.size() && words[i + 1] == "x") {  // "dp 2 x 4": copies of shards
                limits.dp_replicate = limits.dp;
                i += 2;
                const int64_t ranks = spec::product({limits.dp.front(), number("dp", words[i])});
                check<UsageError>(ranks <= std::numeric_limits<int>::max(), "--why-not \"", layout, "\": dp of ", ranks,
                                  " ranks is more than any cluster has");
                limits.dp = {static_cast<int>(ranks)};
            }
        } else
            throw UsageError(concat("--why-not \"", layout, "\": \"", words[i],
                                    "\" is no part of a layout; the nearest is ", spec::nearest(word, known),
                                    ", as in \"tp 8 pp 16 interleaved x 8 ZeRO-1\""));
    }
}

}  // namespace tutti::planner
