#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/schedule/automatic.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

struct GreedyChunk {
    int stage;
    int next_forward = 0, next_backward = 0;  // microbatches, in ascending order
};

struct GreedyRank {
    std::vector<GreedyChunk> chunks;
    std::deque<Work> weights;  // I is done, W is not
    int64_t free_at = 0;
    int ahead = 0;  // forwards without their I
    bool last_was_forward = false;
};

class Greedy {
  public:
    Greedy(const Placement& placement, int microbatches, const Times<int64_t>& times, const GreedyRules& rules)
        : placement_(placement),
          m_(microbatches),
          times_(times),
          rules_(rules),
          schedule_(empty_schedule("greedy", placement, microbatches)) {
        const size_t works = to_size(placement.stages) * to_size(m_);
        input_.assign(works, kUnknown);
        gradient_.assign(works, kUnknown);
        ranks_.resize(to_size(placement.ranks));
        for (int stage = 0; stage < placement.stages; ++stage)
            ranks_[to_size(placement.rank_of(0, stage))].chunks.push_back({stage});
        for (int k = 0; k < m_; ++k) input_[at(0, k)] = 0;
        for (int rank = 0; rank < placement.ranks; ++rank) wake_.emplace(0, rank);
    }

    std::optional<Schedule> run() {
        while (!wake_.empty()) {
            const auto [time, rank] = wake_.top();
            wake_.pop();
            if (ranks_[to_size(rank)].free_at <= time) choose(rank, time);
        }
        const size_t all = 3 * to_size(placement_.chunks_per_rank()) * to_size(m_);
        for (const Program& program : schedule_.programs)
            if (program.size() != all) return std::nullopt;
        return std::move(schedule_);
    }

  private:
    size_t at(int stage, int microbatch) const { return to_size(stage) * to_size(m_) + to_size(microbatch); }

    // The chunk whose next pass can start now, by the rule of depth. `soon`: the earliest start of a blocked pass.
    template <class Arrival>
    GreedyChunk* ready(GreedyRank& rank, int64_t now, int64_t& soon, Arrival arrival) {
        GreedyChunk* found = nullptr;
        for (GreedyChunk& chunk : rank.chunks) {
            const int64_t time = arrival(chunk);
            if (time == kUnknown) continue;
            if (time > now)
                soon = std::min(soon, time);
            else if (found == nullptr || rules_.deep)
                found = &chunk;
        }
        return found;
    }

    void choose(int r, int64_t now) {
        GreedyRank& rank = ranks_[to_size(r)];
        int64_t soon = kUnknown;
        GreedyChunk* const backward = ready(rank, now, soon, [&](const GreedyChunk& c) {
            return c.next_backward < c.next_forward ? gradient_[at(c.stage, c.next_backward)] : kUnknown;
        });
        // Room is left for each later chunk, which frees the saved tensors of earlier ones.
        const auto places_kept = [&](const GreedyChunk& c) { return static_cast<int>(&rank.chunks.back() - &c); };
        const int most_ahead = rules_.slope * (placement_.ranks - 1 - r) + rules_.offset;
        bool full = false;
        GreedyChunk* const forward = ready(rank, now, soon, [&](const GreedyChunk& c) {
            if (c.next_forward == m_) return kUnknown;
            const bool needed = &c != &rank.chunks.front();  // continues a microbatch
            if (!needed && rank.ahead >= most_ahead) return kUnknown;
            const int pending = static_cast<int>(rank.weights.size());
            if (!rules_.memory.admits(rank.ahead + 1 + places_kept(c), pending)) {
                full = full || input_[at(c.stage, c.next_forward)] <= now;
                return kUnknown;
            }
            return input_[at(c.stage, c.next_forward)];
        });
        const bool forward_first =
            rules_.prefer == Prefer::forward || (rules_.prefer == Prefer::alternate && !rank.last_was_forward);
        if (forward != nullptr && (backward == nullptr || forward_first)) return run_forward(r, *forward, now);
        if (backward != nullptr) return run_backward(r, *backward, now);
        if (rank.weights.empty()) return;  // the rank continues when a message arrives
        const int64_t W = times_.of(rank.weights.front().stage).backward_weight;
        const bool waits = soon != kUnknown && 2 * (soon - now) < rules_.wait_halves * W;
        if (full || !waits) run_weight(r, now);
    }

    void run_forward(int r, GreedyChunk& chunk, int64_t now) {
        GreedyRank& rank = ranks_[to_size(r)];
        const int k = chunk.next_forward++;
        ++rank.ahead;
        rank.last_was_forward = true;
        const int64_t end = append(r, Op::forward, {0, chunk.stage, k}, now, times_.of(chunk.stage).forward);
        if (chunk.stage + 1 == placement_.stages)
            gradient_[at(chunk.stage, k)] = end;
        else
            deliver(r, chunk.stage + 1, k, input_, end);
    }
    void run_backward(int r, GreedyChunk& chunk, int64_t now) {
        GreedyRank& rank = ranks_[to_size(r)];
        const Work work{0, chunk.stage, chunk.next_backward++};
        --rank.ahead;
        rank.last_was_forward = false;
        rank.weights.push_back(work);
        const int64_t end = append(r, Op::backward_input, work, now, times_.of(chunk.stage).backward_input);
        if (chunk.stage > 0) deliver(r, chunk.stage - 1, work.microbatch, gradient_, end);
    }
    void run_weight(int r, int64_t now) {
        GreedyRank& rank = ranks_[to_size(r)];
        const Work work = rank.weights.front();
        rank.weights.pop_front();
        append(r, Op::backward_weight, work, now, times_.of(work.stage).backward_weight);
    }

    int64_t append(int r, Op op, const Work& work, int64_t now, int64_t duration) {
        schedule_.programs[to_size(r)].push_back(action(op, work));
        ranks_[to_size(r)].free_at = now + duration;
        wake_.emplace(now + duration, r);
        return now + duration;
    }
    void deliver(int sender, int stage, int microbatch, std::vector<int64_t>& table, int64_t end) {
        const int receiver = placement_.rank_of(0, stage);
        const int64_t time = end + (receiver == sender ? 0 : times_.latency + times_.transfer);
        table[at(stage, microbatch)] = time;
        wake_.emplace(time, receiver);
    }

    const Placement& placement_;
    const int m_;
    const Times<int64_t>& times_;
    const GreedyRules& rules_;
    Schedule schedule_;
    std::vector<GreedyRank> ranks_;
    std::vector<int64_t> input_, gradient_;  // when they arrive; [stage * m + microbatch]
    std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>, std::greater<>> wake_;
};

}  // namespace

std::optional<Schedule> greedy(const Placement& placement, int microbatches, const Times<int64_t>& times,
                               const GreedyRules& rules) {
    return Greedy(placement, microbatches, times, rules).run();
}

namespace {

struct ReorderedRank {
    Program left;      // of the base schedule, in its order
    size_t first = 0;  // the first action that is not done
    std::vector<bool> done;
    int forwards = 0;                       // left
    int before_input = 0, after_input = 0;  // live chunks: until their I, from I until W
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
            ReorderedRank& rank = ranks_[to_size(r)];
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
        ReorderedRank& rank = ranks_[to_size(r)];
        const Action a = rank.left[which];
        rank.done[which] = true;
        while (rank.first < rank.left.size() && rank.done[rank.first]) ++rank.first;
        schedule_.programs[to_size(r)].push_back(a);
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
        ranks_[to_size(r)].free_at = end;
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
    std::vector<std::pair<Op, int>>
        passed_;  // in choose(): an op of a stage that was passed over; later microbatches wait
    std::vector<int64_t> input_, gradient_, weight_;  // when the inputs of each F, I and W exist; kUnknown: not yet
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
