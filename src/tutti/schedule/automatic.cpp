#include "tutti/schedule/automatic.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

// Makespan, cost, and the sum over the ranks of the span of which cost is the maximum; less is better.
using Score = std::tuple<int64_t, int64_t, int64_t>;

class Search {
  public:
    Search(const Times<int64_t>& times, const MemoryLimit& memory) : times_(times), memory_(memory) {}

    // nullopt for a candidate that does not fit or deadlocks.
    std::optional<Score> score(const Schedule& candidate) const {
        if (!fits(candidate) || !walk(candidate, [](int, const Action&) {}).empty()) return std::nullopt;
        const Timeline<int64_t> t = simulate(candidate, times_);
        int64_t spans = 0;
        for (const auto& rank : t.ranks) spans += rank.back().end - rank.front().start;
        return Score{t.makespan, t.cost, spans};
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
    bool fits(const Schedule& candidate) const {
        for (const Program& program : candidate.programs) {
            int before_input = 0, after = 0;
            for (const Action& whole : program) {
                const Parts parts(whole);
                for (const Action& part : parts) before_input += part.op == Op::forward ? 1 : 0;
                if (!memory_.admits(before_input, after)) return false;
                for (const Action& part : parts) {
                    if (part.op == Op::backward || part.op == Op::backward_input) --before_input;
                    if (part.op == Op::backward_input) ++after;
                    if (part.op == Op::backward_weight) --after;
                }
            }
        }
        return true;
    }

    const Times<int64_t>& times_;
    MemoryLimit memory_;
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

void offer_greedy(Search& search, const Dimensions& d, const Times<int64_t>& times, const MemoryLimit& memory) {
    std::vector<Placement> placements = {loop_placement(d.ranks, d.chunks)};
    if (d.chunks == 2) placements.push_back(v_placement(d.ranks));
    for (const Placement& placement : placements)
        for (const int slope : {0, 1, 2, 3})
            for (const int offset : {1, 2, 4, memory.chunks})
                for (const Prefer prefer : {Prefer::backward, Prefer::forward, Prefer::alternate})
                    for (const int wait_halves : {0, 1, 2, 3})
                        for (const bool deep : {true, false}) {
                            if (d.chunks == 1 && !deep) continue;
                            if (offset == memory.chunks && slope > 0) continue;
                            const GreedyRules rules{memory, slope, offset, prefer, wait_halves, deep};
                            if (auto s = greedy(placement, d.microbatches, times, rules)) search.offer(*std::move(s));
                        }
}

// Generators whose backwards are split, and the best order so far, with their gaps closed.
void offer_reordered(Search& search, const Dimensions& d, const Times<int64_t>& times, const MemoryLimit& memory) {
    std::vector<Schedule> bases;
    if (search.best()) bases.push_back(*search.best());
    for (const Kind& kind : kinds()) {
        if (kind.chunks != 0 && kind.chunks != d.chunks) continue;
        try {
            const Schedule s = generate(kind.name, {d.ranks, d.chunks, d.microbatches, 0});
            if (s.placement.replicas == 1) bases.push_back(s);
        } catch (const UsageError&) {
            // The kind does not exist for these numbers.
        }
    }
    using Weights = ReorderRules::Weights;
    for (const Schedule& base : bases)
        for (const int ahead : {1, 2, 3, 4, 6, 8, 12})
            for (const int forwards_ahead : {1, 2, 3, 6, 16})
                for (const Weights weights : {Weights::in_order, Weights::behind_after_last_forward, Weights::behind})
                    for (const bool keep_places : {false, true}) {
                        if (d.chunks == 1 && keep_places) continue;
                        const ReorderRules rules{memory, ahead, forwards_ahead, weights, keep_places};
                        std::optional<Schedule> s = reorder(base, times, rules);
                        if (!s) continue;
                        s->ascending = adds_in_ascending_order(*s);
                        if (s->ascending) search.offer(*std::move(s));
                    }
}

// Tries small changes of the best order and keeps improvements.
class Climb {
  public:
    explicit Climb(Search& search) : search_(search) {}

    // Ends early when many tries brought no improvement.
    void run(int tries) {
        constexpr int kPatience = 3000;
        if (!search_.best()) return;
        for (int i = 0, last = 0; i < tries && i - last < kPatience; ++i) {
            Schedule s = *search_.best();
            s.peak_bound.clear();
            if (below(4) == 0)
                let_backwards_pass(s);
            else
                move_one(s.programs[below(s.programs.size())]);
            // A W before every I that it could belong to has no work, so the programs are not an order. Gradients added
            // in another order would have other bits.
            const bool is_order = std::all_of(s.programs.begin(), s.programs.end(), renumber_weights);
            if (is_order && adds_in_ascending_order(s) && search_.offer(std::move(s))) last = i;
        }
    }

  private:
    size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

    // Moves an action near its place.
    void move_one(Program& program) {
        const size_t from = below(program.size()), distance = 1 + below(8);
        const size_t to =
            below(2) == 0 ? from - std::min(from, distance) : std::min(program.size() - 1, from + distance);
        const auto at = [&](size_t index) { return program.begin() + static_cast<std::ptrdiff_t>(index); };
        if (from < to)
            std::rotate(at(from), at(from + 1), at(to + 1));
        else
            std::rotate(at(to), at(from), at(from + 1));
    }
    // Moves a W from before the backward of one microbatch to before that of another nearby, on a run of stages: a
    // gradient that is late on every stage arrives earlier only when all these stages change.
    void let_backwards_pass(Schedule& s) {
        const size_t m = s.microbatches[0].size();
        const size_t from = below(m), near = from + below(9);
        if (near < 4 || near - 4 >= m) return;
        const int first = static_cast<int>(below(to_size(s.placement.stages)));
        const bool upwards = below(2) == 0;
        for (int stage = 0; stage < s.placement.stages; ++stage) {
            if (upwards ? stage < first : stage > first) continue;
            Program& program = s.programs[to_size(s.placement.rank_of(0, stage))];
            const auto backward_of = [&](size_t k) {
                return std::find(program.begin(), program.end(),
                                 action(Op::backward_input, {0, stage, static_cast<int>(k)}));
            };
            const auto late = backward_of(from), other = backward_of(near - 4);
            if (late == program.end() || other == program.end() || late == program.begin()) continue;
            if ((late - 1)->op != Op::backward_weight) continue;
            if (other < late)
                std::rotate(other, late - 1, late);
            else
                std::rotate(late - 1, late, other);
        }
    }
    // Gives each W the work of the first I that has no W yet; false when there is no such I.
    static bool renumber_weights(Program& program) {
        std::deque<Work> waiting;
        for (Action& a : program) {
            if (a.op == Op::backward_input) waiting.push_back(a.work());
            if (a.op != Op::backward_weight) continue;
            if (waiting.empty()) return false;
            a = action(Op::backward_weight, waiting.front());
            waiting.pop_front();
        }
        return true;
    }

    Search& search_;
    std::mt19937 random_{1};
};

}  // namespace

Schedule automatic(const Dimensions& d, const Times<int64_t>& times, MemoryLimit memory) {
    check<UsageError>(d.ranks >= 1 && d.chunks >= 1 && d.microbatches >= 1,
                      "schedule auto: ranks, virtual stages and microbatches must be at least 1, got ", d.ranks, ", ",
                      d.chunks, " and ", d.microbatches);
    check<UsageError>(d.group_size == 0,
                      "schedule auto chooses the groups of microbatches itself, got a group size of ", d.group_size);
    check<UsageError>(memory.chunks == 0 || memory.chunks >= d.chunks, "schedule auto: a microbatch needs ", d.chunks,
                      " live chunks on each rank, got a memory limit of ", memory.chunks);
    const int most = d.chunks * d.microbatches;
    memory.chunks = memory.chunks == 0 ? most : std::min(memory.chunks, most);
    Search search(times, memory);
    offer_generators(search, d);
    offer_greedy(search, d, times, memory);
    offer_reordered(search, d, times, memory);
    // The time of a try is proportional to the actions, about 50 ns each; the limit is about a second for any size.
    const int64_t actions = int64_t{3} * d.ranks * d.chunks * d.microbatches;
    Climb(search).run(static_cast<int>(std::min<int64_t>(10'000, 20'000'000 / actions)));
    check(search.best().has_value(), "schedule auto: no order of ", d.ranks, " ranks fits ", memory.chunks,
          " live chunks");

    Schedule best = *search.best();
    best.name = "auto";
    best.peak_bound = simulate(best, times).peak_until_w;
    best.ascending = adds_in_ascending_order(best);
    return best;
}

}  // namespace tutti::schedule
