// schedule/validate.cpp: the checks of the computation, then those of messages and unshards.
#include "tutti/schedule/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/schedule.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

class Problems {
  public:
    template <class... Words>
    void add(const Words&... words) {
        found_.push_back(concat(words...));
    }
    bool none() const { return found_.empty(); }
    std::vector<std::string> take() { return std::move(found_); }

  private:
    std::vector<std::string> found_;
};

// `each(rank, index, action)` of all programs.
template <class Each>
void for_each_action(const Schedule& schedule, Each each) {
    for (size_t rank = 0; rank < schedule.programs.size(); ++rank)
        for (size_t i = 0; i < schedule.programs[rank].size(); ++i)
            each(static_cast<int>(rank), i, schedule.programs[rank][i]);
}

std::string text_of(Op op, const Work& work) { return to_string(action(op, work)); }

// Placement, microbatches and programs have matching sizes.
void check_frame(const Schedule& s, Problems& problems) {
    const Placement& p = s.placement;
    if (p.ranks < 1 || p.stages < 1 || p.replicas < 1 ||
        p.rank_of_chunk.size() != to_size(p.replicas) * to_size(p.stages))
        return problems.add("the placement needs a rank for each of ", p.replicas, " x ", p.stages, " chunks, got ",
                            p.rank_of_chunk.size());
    if (s.programs.size() != to_size(p.ranks))
        problems.add(p.ranks, " ranks need as many programs, got ", s.programs.size());
    if (s.microbatches.size() != to_size(p.replicas))
        problems.add(p.replicas, " replicas need as many lists of microbatches, got ", s.microbatches.size());
    if (!s.peak_bound.empty() && s.peak_bound.size() != to_size(p.ranks))
        problems.add("peak_bound needs ", p.ranks, " numbers, one a rank, or none, got ", s.peak_bound.size());
    std::vector<int> chunks(to_size(p.ranks), 0);
    for (const int rank : p.rank_of_chunk) {
        if (rank < 0 || rank >= p.ranks) return problems.add("the placement names rank ", rank, " of ", p.ranks);
        ++chunks[to_size(rank)];
    }
    for (size_t rank = 0; rank < chunks.size(); ++rank)
        if (chunks[rank] != chunks[0])
            problems.add("all ranks must hold equally many stages, but rank 0 holds ", chunks[0], " and rank ", rank,
                         " ", chunks[rank]);
    std::set<int> seen;
    for (const std::vector<int>& of_replica : s.microbatches)
        for (const int k : of_replica)
            if (k < 0 || !seen.insert(k).second) problems.add("microbatch ", k, " is negative or occurs twice");
    if (seen.empty()) problems.add("there are no microbatches");
}

// Points 1, 2 and 3.
void check_computation(const Schedule& s, Problems& problems) {
    std::map<std::pair<Work, Op>, std::pair<int, size_t>> place;  // of each simple action
    const auto judge = [&](int rank, size_t index, const Action& whole) {
        const auto here = [&] { return place_of(rank, index, whole); };
        const Parts parts(whole);
        for (const Action& part : parts) {
            const bool is_chunk = part.replica >= 0 && part.replica < s.placement.replicas && part.stage >= 0 &&
                                  part.stage < s.placement.stages;
            if (!is_chunk)
                return problems.add(here(), ": there is no stage ", part.stage, " of replica ", part.replica, ", only ",
                                    s.placement.stages, " stages of ", s.placement.replicas, " replicas");
            const int owner = s.placement.rank_of(part.replica, part.stage);
            if (owner != rank) problems.add(here(), ": stage ", part.stage, " belongs to rank ", owner);
            if (!is_compute(part.op)) continue;
            const std::vector<int>& own = s.microbatches[to_size(part.replica)];
            if (!std::binary_search(own.begin(), own.end(), part.microbatch))
                return problems.add(here(), ": replica ", part.replica, " has no microbatch ", part.microbatch);
            const auto [first, is_new] = place.try_emplace({part.work(), part.op}, rank, index);
            if (!is_new)
                problems.add(here(), ": occurs twice; first as action ", first->second.second, " of rank ",
                             first->second.first);
        }
        if (whole.op == Op::overlap && whole.replica == whole.backward.replica &&
            whole.microbatch == whole.backward.microbatch)
            problems.add(here(), ": the backward needs the forward of its own microbatch; an overlap takes two");
    };
    for_each_action(s, judge);

    for (int replica = 0; replica < s.placement.replicas; ++replica)
        for (int stage = 0; stage < s.placement.stages; ++stage)
            for (const int k : s.microbatches[to_size(replica)]) {
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
                                 ": is part of ", text_of(Op::backward, work), ", which is also present");
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
    std::map<ChunkKey, int> last;  // the microbatch whose gradient was added last
    std::vector<int> live(s.programs.size(), 0);
    std::set<int> over;
    for_each_action(s, [&](int rank, size_t index, const Action& whole) {
        const auto r = to_size(rank);
        for (const Action& part : Parts(whole)) live[r] += part.op == Op::forward ? 1 : 0;
        if (!s.peak_bound.empty() && live[r] > s.peak_bound[r] && over.insert(rank).second)
            problems.add(place_of(rank, index, whole), ": the saved tensors of ", live[r],
                         " chunks live, more than the ", s.peak_bound[r], " that the schedule promises (peak_bound)");
        for (const Action& part : Parts(whole)) {
            if (part.op != Op::backward && part.op != Op::backward_weight) continue;
            --live[r];
            if (!s.ascending) continue;
            const auto [entry, is_new] = last.try_emplace(chunk_of(part), part.microbatch);
            if (!is_new && part.microbatch < entry->second)
                problems.add(place_of(rank, index, whole), ": adds the gradient of microbatch ", part.microbatch,
                             " after that of ", entry->second, ", although the schedule promises ascending order");
            entry->second = part.microbatch;
        }
    });
}

// The receive that a send needs, or the send that a receive needs; nullopt where no message may be.
std::optional<Action> counterpart(const Placement& placement, const Action& message) {
    const Work work = message.work();
    const bool from_before = message.op == Op::receive_activation || message.op == Op::send_gradient;
    const auto other = from_before ? source_of_input(placement, work) : source_of_gradient(placement, work);
    if (!other || same_rank(placement, work, *other)) return std::nullopt;
    switch (message.op) {
        case Op::send_activation: return action(Op::receive_activation, *other);
        case Op::receive_activation: return action(Op::send_activation, *other);
        case Op::send_gradient: return action(Op::receive_gradient, *other);
        default: return action(Op::send_gradient, *other);
    }
}

// Runs sends and receives as if each send waited until its receive is the next action of the other rank. Reports where
// the ranks stop, if they do.
void check_blocking_sends(const Schedule& s, Problems& problems) {
    std::vector<size_t> next(s.programs.size(), 0);
    const auto head = [&](size_t rank) -> const Action* {
        // The computation was checked before: only messages can stop a rank.
        while (next[rank] < s.programs[rank].size() && !is_message(s.programs[rank][next[rank]].op)) ++next[rank];
        return next[rank] < s.programs[rank].size() ? &s.programs[rank][next[rank]] : nullptr;
    };
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t rank = 0; rank < next.size(); ++rank)
            for (const Action* a = head(rank); a != nullptr && is_send(a->op); a = head(rank)) {
                const Action receive = *counterpart(s.placement, *a);
                const auto peer = to_size(s.placement.rank_of(receive.replica, receive.stage));
                const Action* const waiting = head(peer);
                if (waiting == nullptr || waiting->op != receive.op || waiting->work() != receive.work()) break;
                ++next[rank], ++next[peer];
                moved = true;
            }
    }
    std::string stuck;
    for (size_t rank = 0; rank < next.size(); ++rank)
        if (const Action* const a = head(rank))
            stuck += (stuck.empty() ? "" : "; ") + place_of(static_cast<int>(rank), next[rank], *a);
    if (!stuck.empty())
        problems.add("sends and receives do not come in one order of all ranks; blocking sends would stop at ", stuck,
                     "; insert_messages() makes such an order");
}

// Points 5 and 6, for a schedule whose computation is right.
void check_messages(const Schedule& s, Problems& problems) {
    std::map<std::pair<Work, Op>, std::pair<int, size_t>> place;
    for_each_action(s, [&](int rank, size_t index, const Action& a) {
        if (!is_message(a.op)) return;
        const std::vector<int>& own = s.microbatches[to_size(a.replica)];
        if (!std::binary_search(own.begin(), own.end(), a.microbatch))
            return problems.add(place_of(rank, index, a), ": replica ", a.replica, " has no microbatch ", a.microbatch);
        if (!counterpart(s.placement, a))
            return problems.add(place_of(rank, index, a), ": the neighbour of stage ", a.stage,
                                " is on the same rank or does not exist; no message is needed");
        if (!place.try_emplace({a.work(), a.op}, rank, index).second)
            problems.add(place_of(rank, index, a), ": occurs twice");
    });
    for (const auto& [key, at] : place) {
        const Action a = action(key.second, key.first), other = *counterpart(s.placement, a);
        if (!place.contains({other.work(), other.op}))
            problems.add(place_of(at.first, at.second, a), ": has no counterpart ", to_string(other), " on rank ",
                         s.placement.rank_of(other.replica, other.stage));
    }
    if (!problems.none()) return;

    // On one rank a send follows its producer, and a consumer its receive; then only messages order the ranks.
    for (size_t rank = 0; rank < s.programs.size(); ++rank) {
        std::set<std::pair<Work, Op>> done;
        for (size_t i = 0; i < s.programs[rank].size(); ++i) {
            const Action& whole = s.programs[rank][i];
            const auto needs = [&](const Work& work, Op op) {
                if (!done.contains({work, op}))
                    problems.add(place_of(static_cast<int>(rank), i, whole), ": needs ", to_string(action(op, work)),
                                 " before it on this rank");
            };
            for (const Action& part : Parts(whole)) {
                const Work work = part.work();
                const auto remote = [&](const std::optional<Work>& source) {
                    return source && !same_rank(s.placement, work, *source);
                };
                if (part.op == Op::send_activation) needs(work, Op::forward);
                if (part.op == Op::send_gradient) needs(work, Op::backward_input);
                if (part.op == Op::forward && remote(source_of_input(s.placement, work)))
                    needs(work, Op::receive_activation);
                if ((part.op == Op::backward || part.op == Op::backward_input) &&
                    remote(source_of_gradient(s.placement, work)))
                    needs(work, Op::receive_gradient);
            }
            for (const Action& part : Parts(whole))
                done.insert({part.work(), part.op == Op::backward ? Op::backward_input : part.op});
        }
    }
    if (problems.none()) check_blocking_sends(s, problems);
}

// Point 8.
void check_unshard(const Schedule& s, Problems& problems) {
    bool any = false;
    for_each_action(s, [&](int, size_t, const Action& a) { any = any || a.op == Op::unshard; });
    if (!any) return;
    std::set<ChunkKey> whole_weights;
    for_each_action(s, [&](int rank, size_t index, const Action& whole) {
        const std::string here = place_of(rank, index, whole);
        if (whole.op == Op::unshard && !whole_weights.insert(chunk_of(whole)).second)
            problems.add(here, ": is unsharded already");
        if (whole.op == Op::reshard && whole_weights.erase(chunk_of(whole)) == 0)
            problems.add(here, ": is not unsharded");
        if (is_compute(whole.op))
            for (const Action& part : Parts(whole))
                if (!whole_weights.contains(chunk_of(part)))
                    problems.add(here, ": stage ", part.stage, " is not unsharded; UNSHARD must come first");
    });
    for (const auto& [replica, stage] : whole_weights)
        problems.add("rank ", s.placement.rank_of(replica, stage), ": stage ", stage, " is unsharded to the end; ",
                     to_string(action(Op::reshard, {replica, stage, -1})), " is missing");
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
        check_unshard(schedule, problems);
    }
    return problems.take();
}

void validate(const Schedule& schedule) {
    constexpr size_t kShown = 5;
    std::vector<std::string> problems = problems_of(schedule);
    if (problems.size() > kShown) {
        problems[kShown] = concat("and ", problems.size() - kShown, " more");
        problems.resize(kShown + 1);
    }
    check<UsageError>(problems.empty(), "schedule ", schedule.name, " cannot run: ", joined(problems, "\n  "));
}

}  // namespace tutti::schedule
