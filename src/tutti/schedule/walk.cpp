#include "tutti/schedule/walk.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::schedule {

namespace {

// I and B both make the gradient for which the previous stage waits.
Op recorded_as(Op op) { return op == Op::backward ? Op::backward_input : op; }

uint16_t bit_of(Op op) { return static_cast<uint16_t>(1u << static_cast<unsigned>(recorded_as(op))); }

}  // namespace

std::optional<Work> source_of_input(const Placement&, const Work& work) {
    if (work.stage == 0) return std::nullopt;
    return Work{work.replica, work.stage - 1, work.microbatch};
}

std::optional<Work> source_of_gradient(const Placement& placement, const Work& work) {
    if (work.stage == placement.stages - 1) return std::nullopt;
    return Work{work.replica, work.stage + 1, work.microbatch};
}

WorkIndex::WorkIndex(const Schedule& schedule)
    : replicas_(schedule.placement.replicas), stages_(schedule.placement.stages) {
    for (const std::vector<int>& of_replica : schedule.microbatches)
        for (const int k : of_replica) microbatches_ = std::max(microbatches_, to_size(k) + 1);
}

size_t WorkIndex::operator()(const Work& work) const {
    check(work.replica >= 0 && work.replica < replicas_ && work.stage >= 0 && work.stage < stages_ &&
              work.microbatch >= 0 && to_size(work.microbatch) < microbatches_,
          "schedule: microbatch ", work.microbatch, " of stage ", work.stage, ", replica ", work.replica,
          " is outside the ", microbatches_, " microbatches, ", stages_, " stages, ", replicas_, " replicas");
    const int chunk = work.replica * stages_ + work.stage;
    return to_size(chunk) * microbatches_ + to_size(work.microbatch);
}

Results::Results(const Schedule& schedule)
    : placement_(schedule.placement), index_(schedule), messages_(schedule.has_messages()), done_(index_.size()) {}

bool Results::has(const Need& need) const { return (done_[index_(need.of)] & bit_of(need.op)) != 0; }

void Results::finish(const Action& part) {
    if (part.microbatch >= 0) done_[index_(part.work())] |= bit_of(part.op);
}

std::optional<Need> Results::missing(const Action& part) const {
    const Work work = part.work();
    // The need from another stage: its result on the same rank, else the message.
    const auto input = [&](const std::optional<Work>& source, Op made_by, Op receive) -> std::optional<Need> {
        if (!source) return std::nullopt;
        const Need need =
            messages_ && !same_rank(placement_, work, *source) ? Need{receive, work} : Need{made_by, *source};
        return has(need) ? std::nullopt : std::optional(need);
    };
    const auto own = [&](Op op, const Work& of) -> std::optional<Need> {
        const Need need{op, of};
        return has(need) ? std::nullopt : std::optional(need);
    };
    switch (part.op) {
        case Op::forward: return input(source_of_input(placement_, work), Op::forward, Op::receive_activation);
        case Op::backward:
        case Op::backward_input:
            if (const auto need = own(Op::forward, work)) return need;
            return input(source_of_gradient(placement_, work), Op::backward_input, Op::receive_gradient);
        case Op::backward_weight:
        case Op::send_gradient: return own(Op::backward_input, work);
        case Op::send_activation: return own(Op::forward, work);
        case Op::receive_activation:
            if (const auto source = source_of_input(placement_, work)) return own(Op::send_activation, *source);
            return std::nullopt;
        case Op::receive_gradient:
            if (const auto source = source_of_gradient(placement_, work)) return own(Op::send_gradient, *source);
            return std::nullopt;
        default: return std::nullopt;
    }
}

std::string describe(const Schedule& schedule, const std::vector<Blocked>& blocked) {
    std::string text = "deadlock: ";
    for (const Blocked& b : blocked) {
        const Action& waiting = schedule.programs[to_size(b.rank)][b.index];
        if (&b != blocked.data()) text += "; ";
        text += concat(place_of(b.rank, b.index, waiting), " waits for ", to_string(action(b.need.op, b.need.of)));
    }
    return text;
}

void check_reached_end(const Schedule& schedule, const std::vector<Blocked>& blocked) {
    check(blocked.empty(), "schedule ", schedule.name, ": ", blocked.empty() ? "" : describe(schedule, blocked));
}

}  // namespace tutti::schedule
