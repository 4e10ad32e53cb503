// schedule/validate.cpp: see validate.h. The computation; messages, slots and reductions are in validate_lowered.cpp.
#include "tutti/schedule/validate.h"

#include <algorithm>
#include <map>
#include <set>

#include "tutti/schedule/timeline.h"
#include "tutti/schedule/validate_parts.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

std::string text_of(Op op, const Work& work) { return to_string(action(op, work)); }

// Placement, microbatches and programs fit each other.
void check_frame(const Schedule& s, Problems& problems) {
    const Placement& p = s.placement;
    if (p.ranks < 1 || p.stages < 1 || p.replicas < 1 ||
        p.rank_of_chunk.size() != static_cast<size_t>(p.replicas) * static_cast<size_t>(p.stages))
        return problems.add("the placement needs a rank for each of ", p.replicas, " x ", p.stages, " chunks, got ",
                            p.rank_of_chunk.size());
    if (s.programs.size() != static_cast<size_t>(p.ranks))
        problems.add(p.ranks, " ranks need as many programs, got ", s.programs.size());
    if (s.microbatches.size() != static_cast<size_t>(p.replicas))
        problems.add(p.replicas, " replicas need as many lists of microbatches, got ", s.microbatches.size());
    if (!s.peak_bound.empty() && s.peak_bound.size() != static_cast<size_t>(p.ranks))
        problems.add("peak_bound needs ", p.ranks, " numbers, one a rank, or none, got ", s.peak_bound.size());
    std::vector<int> chunks(static_cast<size_t>(p.ranks), 0);
    for (const int rank : p.rank_of_chunk) {
        if (rank < 0 || rank >= p.ranks) return problems.add("the placement names rank ", rank, " of ", p.ranks);
        ++chunks[static_cast<size_t>(rank)];
    }
    for (size_t rank = 0; rank < chunks.size(); ++rank)
        if (chunks[rank] != chunks[0])
            problems.add("all ranks must hold equally many stages, but rank 0 holds ", chunks[0], " and rank ", rank,
                         " ", chunks[rank]);
    std::set<int> seen;
    for (const std::vector<int>& of_replica : s.microbatches)
        for (const int k : of_replica)
            if (k < 0 || !seen.insert(k).second) problems.add("microbatch ", k, " is negative or there twice");
    if (seen.empty()) problems.add("there are no microbatches");
}

// Points 1, 2 and 3.
void check_computation(const Schedule& s, Problems& problems) {
    std::map<std::pair<Work, Op>, std::pair<int, size_t>> place;  // of each simple action
    const auto judge = [&](int rank, size_t index, const Action& whole) {
        const std::string here = place_of(rank, index, whole);
        const Parts parts(whole);
        for (const Action& part : parts) {
            const bool is_chunk = part.replica >= 0 && part.replica < s.placement.replicas && part.stage >= 0 &&
                                  part.stage < s.placement.stages;
            if (!is_chunk)
                return problems.add(here, ": there is no stage ", part.stage, " of replica ", part.replica, ", only ",
                                    s.placement.stages, " stages of ", s.placement.replicas, " replicas");
            const int owner = s.placement.rank_of(part.replica, part.stage);
            if (owner != rank) problems.add(here, ": stage ", part.stage, " belongs to rank ", owner);
            if (!is_compute(part.op)) continue;
            const std::vector<int>& own = s.microbatches[static_cast<size_t>(part.replica)];
            if (!std::binary_search(own.begin(), own.end(), part.microbatch))
                return problems.add(here, ": replica ", part.replica, " has no microbatch ", part.microbatch);
            const auto [first, is_new] = place.try_emplace({part.work(), part.op}, rank, index);
            if (!is_new)
                problems.add(here, ": is there twice; first as action ", first->second.second, " of rank ",
                             first->second.first);
        }
        if (whole.op == Op::overlap && whole.replica == whole.backward.replica &&
            whole.microbatch == whole.backward.microbatch)
            problems.add(here, ": the backward needs the forward of its own microbatch; an overlap takes two");
    };
    for_each_action(s, judge);

    for (int replica = 0; replica < s.placement.replicas; ++replica)
        for (int stage = 0; stage < s.placement.stages; ++stage)
            for (const int k : s.microbatches[static_cast<size_t>(replica)]) {
                const Work work{replica, stage, k};
                const auto at = [&](Op op) { return place.find({work, op}); };
                const auto F = at(Op::forward), B = at(Op::backward);
                const auto I = at(Op::backward_input), W = at(Op::backward_weight), none = place.end();
                const int owner = s.placement.rank_of(replica, stage);
                if (F == none) problems.add("rank ", owner, ": ", text_of(Op::forward, work), " is missing");
                if (B == none && I == none)
                    problems.add("rank ", owner, ": ", text_of(Op::backward, work), " is missing (or ",
                                 text_of(Op::backward_input, work), " and ", text_of(Op::backward_weight, work), ")");
                if (B != none && (I != none || W != none)) {
                    const auto other = I != none ? I : W;
                    problems.add(place_of(other->second.first, other->second.second, action(other->first.second, work)),
                                 ": is part of ", text_of(Op::backward, work), ", which is there too");
                    continue;
                }
                if (I != none && W == none)
                    problems.add("rank ", owner, ": ", text_of(Op::backward_weight, work), " is missing");
                const auto before = [&](auto first, auto second) {
                    if (first != none && second != none && second->second < first->second)
                        problems.add(
                            place_of(second->second.first, second->second.second, action(second->first.second, work)),
                            ": comes before ", text_of(first->first.second, work), ", which it needs");
                };
                before(F, B), before(F, I), before(I != none ? I : F, W);
            }
}

// Points 7 (the bound) and 9.
void check_promises(const Schedule& s, Problems& problems) {
    std::map<std::pair<int, int>, int> last;  // (replica, stage) -> microbatch whose gradient was added last
    std::vector<int> live(s.programs.size(), 0);
    std::set<int> over;
    for_each_action(s, [&](int rank, size_t index, const Action& whole) {
        const auto r = static_cast<size_t>(rank);
        for (const Action& part : Parts(whole)) live[r] += part.op == Op::forward ? 1 : 0;
        if (!s.peak_bound.empty() && live[r] > s.peak_bound[r] && over.insert(rank).second)
            problems.add(place_of(rank, index, whole), ": the saved tensors of ", live[r],
                         " chunks live, more than the ", s.peak_bound[r], " that the schedule promises (peak_bound)");
        for (const Action& part : Parts(whole)) {
            if (part.op != Op::backward && part.op != Op::backward_weight) continue;
            --live[r];
            if (!s.ascending) continue;
            const auto [entry, is_new] = last.try_emplace({part.replica, part.stage}, part.microbatch);
            if (!is_new && part.microbatch < entry->second)
                problems.add(place_of(rank, index, whole), ": adds the gradient of microbatch ", part.microbatch,
                             " after that of ", entry->second, ", although the schedule promises ascending order");
            entry->second = part.microbatch;
        }
    });
}

}  // namespace

std::vector<std::string> problems_of(const Schedule& schedule) {
    Problems problems;
    check_frame(schedule, problems);
    if (problems.none()) check_computation(schedule, problems);
    if (problems.none() && schedule.has_messages()) check_messages(schedule, problems);
    if (problems.none()) {
        const std::vector<Blocked> blocked = walk(schedule, [](int, const Action&) {});
        if (!blocked.empty()) problems.add(describe(schedule, blocked));
    }
    if (problems.none()) {
        check_promises(schedule, problems);
        check_slots(schedule, problems);
        check_reductions(schedule, problems);
        check_unshard(schedule, problems);
    }
    return problems.take();
}

void validate(const Schedule& schedule) {
    constexpr size_t kShown = 5;
    const std::vector<std::string> problems = problems_of(schedule);
    if (problems.empty()) return;
    std::string text = concat("schedule ", schedule.name, " cannot run: ");
    for (size_t i = 0; i < std::min(kShown, problems.size()); ++i) text += (i == 0 ? "" : "\n  ") + problems[i];
    if (problems.size() > kShown) text += concat("\n  and ", problems.size() - kShown, " more");
    throw UsageError(text);
}

}  // namespace tutti::schedule
