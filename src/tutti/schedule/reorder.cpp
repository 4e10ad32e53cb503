// schedule/reorder.cpp: see reorder.h.
#include "tutti/schedule/reorder.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

struct ReorderedRank {
    Program left;      // of the base, in its order
    size_t first = 0;  // that is not done
    std::vector<bool> done;
    int forwards = 0;                       // left
    int before_input = 0, after_input = 0;  // chunks that live: until their I, from there until their W
    int64_t free_at = 0;
};

class Reorder {
  public:
    Reorder(const Schedule& base, const Times<int64_t>& times, const ReorderRules& rules)
        : placement_(base.placement), times_(times), rules_(rules), index_(base), schedule_(base) {
        input_.assign(index_.size(), kUnknown);
        gradient_.assign(index_.size(), kUnknown);
        weight_.assign(index_.size(), kUnknown);
        for (const int k : base.microbatches[0]) input_[index_({0, 0, k})] = 0;
        for (Program& program : schedule_.programs) {
            ReorderedRank& rank = ranks_.emplace_back();
            rank.left = std::move(program);
            rank.done.assign(rank.left.size(), false);
            program.clear();
            for (const Action& a : rank.left) rank.forwards += a.op == Op::forward ? 1 : 0;
            wake_.emplace(0, static_cast<int>(ranks_.size()) - 1);
        }
        schedule_.peak_bound.clear();
    }

    std::optional<Schedule> run() {
        while (!wake_.empty()) {
            const auto [time, r] = wake_.top();
            wake_.pop();
            ReorderedRank& rank = ranks_[static_cast<size_t>(r)];
            if (rank.free_at > time) continue;
            if (const std::optional<size_t> next = choose(rank, time)) start(r, *next, time);
        }
        for (const ReorderedRank& rank : ranks_)
            if (rank.first < rank.left.size()) return std::nullopt;
        return std::move(schedule_);
    }

  private:
    std::optional<size_t> choose(const ReorderedRank& rank, int64_t now) {
        using Weights = ReorderRules::Weights;
        const bool weights_behind = rules_.weights == Weights::behind ||
                                    (rules_.weights == Weights::behind_after_last_forward && rank.forwards == 0);
        passed_.clear();
        std::optional<size_t> weight;
        const int most = std::max(rules_.ahead, rules_.forwards_ahead);
        int seen = 0;
        for (size_t i = rank.first; i < rank.left.size() && seen < most; ++i) {
            if (rank.done[i]) continue;
            const Action& a = rank.left[i];
            const bool in_reach = seen++ < (a.op == Op::forward ? rules_.forwards_ahead : rules_.ahead);
            const std::pair<Op, int> kind{a.op, a.stage};
            if (std::find(passed_.begin(), passed_.end(), kind) != passed_.end()) continue;
            passed_.push_back(kind);
            if (!in_reach || !can_start(rank, a, now)) continue;
            if (a.op != Op::backward_weight || !weights_behind) return i;
            if (!weight) weight = i;
        }
        return weight;
    }

    bool can_start(const ReorderedRank& rank, const Action& a, int64_t now) const {
        const size_t work = index_(a.work());
        if (a.op == Op::backward_weight) return weight_[work] <= now;
        if (a.op == Op::backward_input) return gradient_[work] <= now;
        if (input_[work] > now) return false;
        int places = 1;
        if (rules_.keep_places)
            for (int stage = a.stage + 1; stage < placement_.stages; ++stage)
                places += placement_.rank_of(0, stage) == placement_.rank_of(0, a.stage) ? 1 : 0;
        return rules_.memory.admits(rank.before_input + places, rank.after_input);
    }

    void start(int r, size_t which, int64_t now) {
        ReorderedRank& rank = ranks_[static_cast<size_t>(r)];
        const Action a = rank.left[which];
        rank.done[which] = true;
        while (rank.first < rank.left.size() && rank.done[rank.first]) ++rank.first;
        schedule_.programs[static_cast<size_t>(r)].push_back(a);
        const StageTimes<int64_t>& of = times_.of(a.stage);
        if (a.op == Op::forward) {
            --rank.forwards, ++rank.before_input;
            finish(r, now + of.forward);
            const std::optional<Work> next = source_of_gradient(placement_, a.work());
            deliver(r, next.value_or(a.work()), next ? input_ : gradient_, rank.free_at);
        } else if (a.op == Op::backward_input) {
            --rank.before_input, ++rank.after_input;
            finish(r, now + of.backward_input);
            weight_[index_(a.work())] = rank.free_at;
            if (const std::optional<Work> before = source_of_input(placement_, a.work()))
                deliver(r, *before, gradient_, rank.free_at);
        } else {
            --rank.after_input;
            finish(r, now + of.backward_weight);
        }
    }

    void finish(int r, int64_t end) {
        ranks_[static_cast<size_t>(r)].free_at = end;
        wake_.emplace(end, r);
    }
    void deliver(int sender, const Work& to, std::vector<int64_t>& table, int64_t end) {
        const int receiver = placement_.rank_of(to.replica, to.stage);
        const int64_t time = end + (receiver == sender ? 0 : times_.latency + times_.transfer);
        table[index_(to)] = time;
        wake_.emplace(time, receiver);
    }

    const Placement& placement_;
    const Times<int64_t>& times_;
    const ReorderRules& rules_;
    WorkIndex index_;
    Schedule schedule_;
    std::vector<ReorderedRank> ranks_;
    std::vector<std::pair<Op, int>> passed_;  // in choose(): behind an action of a stage its later microbatches wait
    std::vector<int64_t> input_, gradient_, weight_;  // when each F, I and W has what it needs; kUnknown: not yet
    std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>, std::greater<>> wake_;
};

}  // namespace

std::optional<Schedule> reorder(const Schedule& base, const Times<int64_t>& times, const ReorderRules& rules) {
    for (const Program& program : base.programs)
        for (const Action& a : program)
            if (a.op != Op::forward && a.op != Op::backward_input && a.op != Op::backward_weight) return std::nullopt;
    return Reorder(base, times, rules).run();
}

}  // namespace tutti::schedule
