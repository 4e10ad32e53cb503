// schedule/automatic.cpp: see automatic.h. The rules are in greedy.h.
#include "tutti/schedule/automatic.h"

#include <algorithm>
#include <optional>
#include <random>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/schedule/greedy.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

using Score = std::tuple<int64_t, int64_t, int>;  // makespan, cost, peak: less is better

class Search {
  public:
    Search(const Times<int64_t>& times, int limit) : times_(times), limit_(limit) {}

    // What does not fit or deadlocks is passed over.
    std::optional<Score> score(const Schedule& candidate) const {
        if (!walk(candidate, [](int, const Action&) {}).empty()) return std::nullopt;
        const Timeline<int64_t> t = simulate(candidate, times_);
        const int peak = *std::max_element(t.peak_until_w.begin(), t.peak_until_w.end());
        if (peak > limit_) return std::nullopt;
        return Score{t.makespan, t.cost, peak};
    }
    bool offer(Schedule candidate) {
        const std::optional<Score> its = score(candidate);
        if (!its || (best_ && *its >= best_score_)) return false;
        best_ = std::move(candidate);
        best_score_ = *its;
        return true;
    }
    const std::optional<Schedule>& best() const { return best_; }

  private:
    const Times<int64_t>& times_;
    int limit_;
    std::optional<Schedule> best_;
    Score best_score_;
};

void offer_generators(Search& search, const Dimensions& d) {
    for (const Kind& kind : kinds()) {
        if (kind.chunks != 0 && kind.chunks != d.chunks) continue;
        std::vector<int> group_sizes = {0};
        if (kind.takes_group_size && d.chunks > 1)
            for (int N = 1; N <= d.microbatches; N *= 2) group_sizes.push_back(N);
        for (const int N : group_sizes) {
            try {
                const Schedule s = generate(kind.name, {d.ranks, d.chunks, d.microbatches, N});
                if (s.placement.replicas == 1) search.offer(s);
            } catch (const UsageError&) {
                // The kind does not exist for these numbers.
            }
        }
    }
}

void offer_greedy(Search& search, const Dimensions& d, const Times<int64_t>& times, int limit) {
    std::vector<Placement> placements = {loop_placement(d.ranks, d.chunks)};
    if (d.chunks == 2) placements.push_back(v_placement(d.ranks));
    for (const Placement& placement : placements)
        for (const int slope : {0, 1, 2, 3})
            for (const int offset : {1, 2, 4, limit})
                for (const Prefer prefer : {Prefer::backward, Prefer::forward, Prefer::alternate})
                    for (const int patience : {0, 1, 2})
                        for (const bool deep : {true, false}) {
                            if (d.chunks == 1 && !deep) continue;
                            if (offset == limit && slope > 0) continue;
                            const GreedyRules rules{limit, slope, offset, prefer, patience, deep};
                            if (auto s = greedy(placement, d.microbatches, times, rules)) search.offer(*std::move(s));
                        }
}

// Moves an action within its rank, near its place, as long as something gets better now and then.
void climb(Search& search, int tries) {
    if (!search.best()) return;
    std::mt19937 random(1);
    const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    for (int i = 0; i < tries; ++i) {
        Schedule s = *search.best();
        Program& program = s.programs[below(s.programs.size())];
        const size_t from = below(program.size()), distance = 1 + below(8);
        const size_t to =
            below(2) == 0 ? from - std::min(from, distance) : std::min(program.size() - 1, from + distance);
        const auto at = [&](size_t index) { return program.begin() + static_cast<std::ptrdiff_t>(index); };
        if (from < to)
            std::rotate(at(from), at(from + 1), at(to + 1));
        else
            std::rotate(at(to), at(from), at(from + 1));
        s.peak_bound.clear();
        search.offer(std::move(s));
    }
}

bool adds_in_ascending_order(const Program& program) {
    std::vector<int> last;
    for (const Action& whole : program)
        for (const Action& part : Parts(whole)) {
            if (part.op != Op::backward && part.op != Op::backward_weight) continue;
            last.resize(std::max(last.size(), static_cast<size_t>(part.stage) + 1), -1);
            if (part.microbatch < last[static_cast<size_t>(part.stage)]) return false;
            last[static_cast<size_t>(part.stage)] = part.microbatch;
        }
    return true;
}

}  // namespace

Schedule automatic(const Dimensions& d, const Times<int64_t>& times, int memory_limit) {
    check<UsageError>(d.ranks >= 1 && d.chunks >= 1 && d.microbatches >= 1,
                      "schedule auto: ranks, virtual stages and microbatches must be at least 1, got ", d.ranks, ", ",
                      d.chunks, " and ", d.microbatches);
    check<UsageError>(d.group_size == 0,
                      "schedule auto chooses the groups of microbatches itself, got a group size of ", d.group_size);
    check<UsageError>(memory_limit == 0 || memory_limit >= d.chunks, "schedule auto: a microbatch needs ", d.chunks,
                      " live chunks on each rank, got a memory limit of ", memory_limit);
    const int most = d.chunks * d.microbatches;
    const int limit = memory_limit == 0 ? most : std::min(memory_limit, most);
    Search search(times, limit);
    offer_generators(search, d);
    offer_greedy(search, d, times, limit);
    // About as long as the grid of rules, whatever the size: a try costs time in proportion to the actions.
    const int64_t actions = int64_t{3} * d.ranks * d.chunks * d.microbatches;
    climb(search, static_cast<int>(std::min<int64_t>(2000, 2'000'000 / actions)));
    check(search.best().has_value(), "schedule auto: no order of ", d.ranks, " ranks fits ", limit, " live chunks");

    Schedule best = *search.best();
    best.name = "auto";
    best.peak_bound.assign(static_cast<size_t>(d.ranks), limit);
    best.ascending = std::all_of(best.programs.begin(), best.programs.end(), adds_in_ascending_order);
    return best;
}

}  // namespace tutti::schedule
