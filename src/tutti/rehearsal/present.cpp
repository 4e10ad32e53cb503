#include "tutti/rehearsal/present.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/rehearsal/card.h"
#include "tutti/spec/stages.h"

namespace tutti::rehearsal {

namespace {

// The unit of "forward of h.3"; "" for other places.
std::string unit_of(const std::string& place) {
    const size_t at = place.find(" of ");
    return at == std::string::npos ? "" : place.substr(at + 4);
}

// Units that are neither the first nor the last of the forward.
std::vector<std::string> blocks_of(const Program& program) {
    std::vector<std::string> units;
    for (const std::string& place : program.places)
        if (place.starts_with("forward of ")) units.push_back(unit_of(place));
    if (units.size() < 3) return {};
    return {units.begin() + 1, units.end() - 1};
}

std::string line_of(const Program& program, const Action& action) {
    if (const KernelCall* call = program.call_of(action)) {
        const kernels::Work& work = call->work;
        return concat("  ", left(call->kernel, 28), left(work.shape.text(), 50),
                      right(work.flops > 0 ? format_flops(work.flops) : "", 14), right(format_bytes(work.bytes), 12));
    }
    if (const auto* begin = std::get_if<BeginOperation>(&action.what))
        return concat("  ", left(concat("begin ", begin->operation.text()), 78),
                      left(concat("  group ", program.groups[begin->group].name), 14),
                      right(format_bytes(begin->operation.bytes), 12));
    if (const auto* copy = std::get_if<BeginCopy>(&action.what))
        return concat("  ", left("begin copy from or to the host", 92), right(format_bytes(copy->bytes), 12));
    if (std::holds_alternative<WaitForCopy>(action.what)) return "  wait for a copy";
    const auto& wait = std::get<WaitForOperation>(action.what);
    return concat("  wait for ", name_of(wait.kind), " ", wait.sequence, " of group ", program.groups[wait.group].name);
}

// Prints cycles of up to kLongest lines once, with the number of repetitions.
std::string folded(const std::vector<std::string>& lines) {
    constexpr size_t kLongest = 4;
    std::string text;
    for (size_t i = 0; i < lines.size();) {
        size_t length = 1, times = 1;  // of the cycle that begins here and covers most lines
        for (size_t l = 1; l <= kLongest; ++l) {
            size_t t = 1;
            while (i + (t + 1) * l <= lines.size() &&
                   std::equal(lines.begin() + static_cast<ptrdiff_t>(i), lines.begin() + static_cast<ptrdiff_t>(i + l),
                              lines.begin() + static_cast<ptrdiff_t>(i + t * l)))
                ++t;
            if (t > 1 && t * l > times * length) length = l, times = t;
        }
        for (size_t k = 0; k < length; ++k) text += lines[i + k] + "\n";
        if (times > 1)
            text += concat("  ... ", length == 1 ? "this line" : concat("these ", length, " lines"), " ", times - 1,
                           times == 2 ? " time more\n" : " times more\n");
        i += length * times;
    }
    return text;
}

}  // namespace

size_t largest_of(const std::vector<const Rehearsal*>& rehearsals) {
    const auto less = [](const Rehearsal* a, const Rehearsal* b) { return a->memory.peak() < b->memory.peak(); };
    return to_size(std::max_element(rehearsals.begin(), rehearsals.end(), less) - rehearsals.begin());
}

std::vector<std::string> stage_lines(const spec::RunSpec& run, size_t first,
                                     const std::vector<const Rehearsal*>& rehearsals) {
    std::vector<std::string> lines;
    const size_t largest = largest_of(rehearsals);
    for (size_t i = 0; !run.stages.empty() && i < rehearsals.size(); ++i)
        lines.push_back(concat(first + i + 1, " ", spec::stage_text(run, first + i), "; peak ",
                               format_bytes(rehearsals[i]->memory.peak()), i == largest ? ", the largest" : ""));
    return lines;
}

std::string render_program(const Rehearsal& r) {
    const std::vector<std::string> blocks = blocks_of(r.program);
    const std::string shown = blocks.empty() ? "" : blocks[blocks.size() / 2];
    const std::vector<Action>& actions = r.program.actions;
    std::set<std::string> seen;
    std::string text;
    int64_t hidden = 0;
    for (size_t begin = 0, end = 0; begin < actions.size();
         begin = end) {  // one pass over a unit, or a part of the step
        while (end < actions.size() && actions[end].place == actions[begin].place) ++end;
        const std::string& place = r.program.places[actions[begin].place];
        const std::string unit = unit_of(place);
        if (!unit.empty() && !seen.insert(place).second) continue;  // of a later microbatch
        if (unit != shown && std::find(blocks.begin(), blocks.end(), unit) != blocks.end()) {
            ++hidden;
            continue;
        }
        if (hidden > 0) text += concat("... ", counted(hidden, "more block"), ", alike\n");
        hidden = 0;
        text += place + "\n";
        std::vector<std::string> lines;
        for (size_t i = begin; i < end; ++i) lines.push_back(line_of(r.program, actions[i]));
        text += folded(lines);
    }
    return text;
}

std::string render_flops(const Rehearsal& r) {
    std::map<std::string, KernelTotal> problems;
    for (KernelTotal total : kernel_totals(r.program)) {
        if (total.work.flops == 0) continue;
        kernels::ProblemShape& shape = total.work.shape;
        const bool product = shape.kind == kernels::ProblemShape::Kind::product;
        if (product) {
            std::sort(shape.sizes.begin(), shape.sizes.begin() + shape.rank, std::greater());
            shape = {.kind = shape.kind, .rank = shape.rank, .groups = shape.groups, .sizes = shape.sizes};
        }
        const std::string_view kernel = total.kernel;
        const std::string name(product ? kernel : kernel.substr(0, kernel.find('_')));
        KernelTotal& sum = problems[concat(left(name, 14), shape.text())];
        sum.calls += total.calls;
        sum.work.flops += total.work.flops;
    }
    std::vector<std::pair<std::string, KernelTotal>> lines(problems.begin(), problems.end());
    std::sort(lines.begin(), lines.end(),
              [](const auto& a, const auto& b) { return a.second.work.flops > b.second.work.flops; });
    std::string text = "FLOPs of the step; a product and those of its two gradients have the same sizes\n";
    for (const auto& [problem, sum] : lines)
        text +=
            concat("  ", left(problem, 58), right(counted(sum.calls, "call"), 14),
                   right(format_flops(sum.work.flops), 14), right(format_percent(sum.work.flops / r.flops), 9), '\n');
    return text;
}

Json to_json(const MemoryByPurpose& memory) {
    Json json;
    for (const Purpose purpose : kAllPurposes) json[std::string(name_of(purpose))] = memory[purpose];
    return json;
}

Json to_json(const std::vector<parallel::GroupTraffic>& communication) {
    Json list = Json::array();
    for (const parallel::GroupTraffic& t : communication)
        list.push_back({{"group", t.group},
                        {"size", t.ranks.size()},
                        {"ranks", ranks_text(t.ranks)},
                        {"operation", name_of(t.operation)},
                        {"calls", t.traffic.calls},
                        {"bytes", t.traffic.bytes},
                        {"sent", t.traffic.sent}});
    return list;
}

Json to_json(const Rehearsal& r) {
    return {{"machine", r.machine},
            {"ranks", r.ranks},
            {"rank", r.rank},
            {"peak_bytes", r.memory.peak()},
            {"peak_place", r.memory.peak_place},
            {"memory", to_json(r.memory.at_peak)},
            {"largest", to_json(r.memory.peaks)},
            {"offloaded_bytes", r.memory.offloaded},
            {"reserved_bytes", r.memory.reserved},
            {"saved_bytes", r.memory.saved},
            {"capacity_bytes", r.memory_capacity > 0 ? Json(r.memory_capacity) : Json(nullptr)},
            {"fits", r.fits},
            {"bubble", r.bubble},
            {"flops", r.flops},
            {"assumed", r.assumed.empty() ? Json(nullptr) : Json(r.assumed)},
            {"communication", to_json(r.communication)}};
}

Json kernels_to_json(const Rehearsal& r) {
    Json list = Json::array();
    for (const KernelTotal& total : kernel_totals(r.program))
        list.push_back({{"kernel", total.kernel},
                        {"shape", total.work.shape.text()},
                        {"calls", total.calls},
                        {"flops", total.work.flops},
                        {"bytes", total.work.bytes}});
    return list;
}

}  // namespace tutti::rehearsal
