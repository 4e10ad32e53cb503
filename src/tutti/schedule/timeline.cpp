// schedule/timeline.cpp: see timeline.h.
#include "tutti/schedule/timeline.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

template <class T>
T duration(const Action& whole, const Times<T>& times) {
    if (whole.op == Op::overlap && times.overlap) return *times.overlap;
    T total = 0;
    for (const Action& part : Parts(whole)) {
        const StageTimes<T>& of = times.of(part.stage);
        if (part.op == Op::forward) total += of.forward;
        if (part.op == Op::backward || part.op == Op::backward_input) total += of.backward_input;
        if (part.op == Op::backward || part.op == Op::backward_weight) total += of.backward_weight;
    }
    return total;
}

// When each forward and each backward has what it needs from another stage.
template <class T>
class Arrivals {
  public:
    Arrivals(const Schedule& schedule, const Times<T>& times)
        : placement_(schedule.placement),
          times_(times),
          index_(schedule),
          input_(index_.size()),
          gradient_(index_.size()),
          link_free_(static_cast<size_t>(placement_.ranks) * size_t(placement_.ranks)) {}

    T of(const Action& part) const {
        if (part.op == Op::forward) return input_[index_(part.work())];
        if (part.op == Op::backward_weight) return 0;
        return gradient_[index_(part.work())];
    }
    // Sends the result of an action that ends at `end` to the stage that waits for the result.
    void send(const Action& part, T end) {
        if (part.op == Op::forward)
            deliver(part.work(), source_of_gradient(placement_, part.work()), input_, end);
        else if (part.op != Op::backward_weight)
            deliver(part.work(), source_of_input(placement_, part.work()), gradient_, end);
    }
    int64_t messages() const { return messages_; }

  private:
    void deliver(const Work& from, const std::optional<Work>& to, std::vector<T>& table, T end) {
        if (!to) return;
        if (!same_rank(placement_, from, *to)) {
            const int sender = placement_.rank_of(from.replica, from.stage);
            const int receiver = placement_.rank_of(to->replica, to->stage);
            T& link_free = link_free_[static_cast<size_t>(sender) * size_t(placement_.ranks) + size_t(receiver)];
            end = link_free = std::max(end, link_free) + times_.transfer;
            end += times_.latency;
            ++messages_;
        }
        table[index_(*to)] = end;
    }

    const Placement& placement_;
    const Times<T>& times_;
    WorkIndex index_;
    std::vector<T> input_, gradient_;
    std::vector<T> link_free_;  // [sender * ranks + receiver]
    int64_t messages_ = 0;
};

// The most works that live at once between their forward and the action that `ends` says.
template <class Ends>
int peak(const Program& program, Ends ends) {
    int live = 0, most = 0;
    for (const Action& whole : program) {
        // Both parts of an overlap live at the same time.
        for (const Action& part : Parts(whole)) live += part.op == Op::forward ? 1 : 0;
        most = std::max(most, live);
        for (const Action& part : Parts(whole)) live -= ends(part.op) ? 1 : 0;
    }
    return most;
}

}  // namespace

template <class T>
Timeline<T> simulate(const Schedule& schedule, const Times<T>& times) {
    const size_t stages = static_cast<size_t>(schedule.placement.stages);
    check(times.stages.size() == 1 || times.stages.size() == stages, "schedule ", schedule.name,
          ": times of 1 stage, which stand for all, or of ", stages, " stages are needed, got ", times.stages.size());
    if (schedule.has_messages()) return simulate(compute_only(schedule), times);

    Timeline<T> timeline;
    timeline.ranks.resize(schedule.programs.size());
    Arrivals<T> arrivals(schedule, times);
    const auto run = [&](int rank, const Action& whole) {
        if (!is_compute(whole.op)) return;
        std::vector<Span<T>>& spans = timeline.ranks[static_cast<size_t>(rank)];
        T start = spans.empty() ? T(0) : spans.back().end;
        for (const Action& part : Parts(whole)) start = std::max(start, arrivals.of(part));
        const T end = start + duration(whole, times);
        for (const Action& part : Parts(whole)) arrivals.send(part, end);
        spans.push_back({start, end, whole});
    };
    check_reached_end(schedule, walk(schedule, run));

    T busiest = 0;
    for (const std::vector<Span<T>>& spans : timeline.ranks) {
        T busy = 0;
        for (const Span<T>& span : spans) busy += span.end - span.start;
        timeline.busy.push_back(busy);
        busiest = std::max(busiest, busy);
        if (spans.empty()) continue;
        timeline.makespan = std::max(timeline.makespan, spans.back().end);
        timeline.cost = std::max(timeline.cost, spans.back().end - spans.front().start);
    }
    timeline.bubble = timeline.makespan - busiest;
    for (const T& busy : timeline.busy) timeline.idle.push_back(timeline.makespan - busy);
    for (const Program& program : schedule.programs) {
        timeline.peak_until_w.push_back(
            peak(program, [](Op op) { return op == Op::backward || op == Op::backward_weight; }));
        timeline.peak_until_i.push_back(
            peak(program, [](Op op) { return op == Op::backward || op == Op::backward_input; }));
    }
    timeline.messages = arrivals.messages();
    return timeline;
}

template Timeline<double> simulate(const Schedule&, const Times<double>&);
template Timeline<int64_t> simulate(const Schedule&, const Times<int64_t>&);

}  // namespace tutti::schedule
