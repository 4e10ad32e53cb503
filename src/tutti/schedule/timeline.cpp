#include "tutti/schedule/timeline.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
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

// When the input of each forward and each backward arrives from another stage.
template <class T>
class Arrivals {
  public:
    Arrivals(const Schedule& schedule, const Times<T>& times)
        : placement_(schedule.placement),
          times_(times),
          index_(schedule),
          input_(index_.size()),
          gradient_(index_.size()),
          link_free_(to_size(placement_.ranks) * size_t(placement_.ranks)) {}

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
            T& link_free = link_free_[to_size(sender) * size_t(placement_.ranks) + size_t(receiver)];
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

// The most works that live at once between their forward and the action for which `ends` is true.
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
    const size_t stages = to_size(schedule.placement.stages);
    check(times.stages.size() == 1 || times.stages.size() == stages, "schedule ", schedule.name,
          ": times of 1 stage, which stand for all, or of ", stages, " stages are needed, got ", times.stages.size());
    if (schedule.has_messages()) return simulate(compute_only(schedule), times);

    Timeline<T> timeline;
    timeline.ranks.resize(schedule.programs.size());
    Arrivals<T> arrivals(schedule, times);
    const auto run = [&](int rank, const Action& whole) {
        if (!is_compute(whole.op)) return;
        std::vector<Span<T>>& spans = timeline.ranks[to_size(rank)];
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

namespace {

constexpr int64_t kLargest = int64_t{1} << 53;  // sums up to this number are exact as doubles too

std::optional<int64_t> times(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product) || product > kLargest) return std::nullopt;
    return product;
}

struct Ratio {
    int64_t top = 0, bottom = 1;
};

// Digits with at most one decimal point and an optional exponent.
std::optional<Ratio> parse_decimal(std::string_view text) {
    Ratio value;
    bool point = false, digits = false;
    size_t i = 0;
    for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
        if (text[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (text[i] < '0' || text[i] > '9') return std::nullopt;
        digits = true;
        const auto top = times(value.top, 10), bottom = times(value.bottom, point ? 10 : 1);
        if (!top || !bottom) return std::nullopt;
        value = {*top + (text[i] - '0'), *bottom};
    }
    if (!digits) return std::nullopt;
    if (i == text.size()) return value;
    text.remove_prefix(i + 1);
    const bool negative = text.starts_with('-');
    if (negative || text.starts_with('+')) text.remove_prefix(1);
    if (text.empty() || text.size() > 2 || text.find_first_not_of("0123456789") != std::string_view::npos)
        return std::nullopt;
    for (int exponent = std::stoi(std::string(text)); exponent > 0; --exponent) {
        int64_t& grows = negative ? value.bottom : value.top;
        const auto grown = times(grows, 10);
        if (!grown) return std::nullopt;
        grows = *grown;
    }
    return value;
}

std::optional<Ratio> parse_ratio(std::string_view text) {
    const size_t slash = text.find('/');
    std::optional<Ratio> value = parse_decimal(text.substr(0, slash));
    if (value && slash != std::string_view::npos) {
        const std::optional<Ratio> by = parse_decimal(text.substr(slash + 1));
        if (!by || by->top == 0) return std::nullopt;
        const auto top = times(value->top, by->bottom), bottom = times(value->bottom, by->top);
        if (!top || !bottom) return std::nullopt;
        value = Ratio{*top, *bottom};
    }
    if (!value) return std::nullopt;
    const int64_t common = std::gcd(value->top, value->bottom);
    return Ratio{value->top / common, value->bottom / common};
}

}  // namespace

ExactTimes exact_times(const std::vector<NamedText>& texts, int64_t actions) {
    std::vector<Ratio> ratios;
    ExactTimes result;
    for (const auto& [name, text] : texts) {
        const std::optional<Ratio> ratio = parse_ratio(text);
        check<UsageError>(ratio.has_value(), name,
                          " must be a time of 0 or more, such as 1, 0.25, 3e-3 or 1/3, with at most 15 digits, got `",
                          text, "`");
        const auto unit = times(result.unit, ratio->bottom / std::gcd(result.unit, ratio->bottom));
        check<UsageError>(unit.has_value(), name, " = ", text,
                          " and the other times have no common unit that is large enough ",
                          "to count in; write them with fewer digits");
        result.unit = *unit;
        ratios.push_back(*ratio);
    }
    for (size_t i = 0; i < ratios.size(); ++i) {
        const auto count = times(ratios[i].top, result.unit / ratios[i].bottom);
        check<UsageError>(count && times(*count, actions), texts[i].name, " = ", texts[i].text,
                          " has too many digits beside the other times for an exact sum over ", actions,
                          " actions; write the times with fewer digits");
        result.counts.push_back(*count);
    }
    return result;
}

}  // namespace tutti::schedule
