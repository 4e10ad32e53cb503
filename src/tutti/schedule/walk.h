// schedule/walk.h: runs a schedule without time and without tensors, in one order of all ranks. validate() checks that
// the walk reaches the end, the timeline computes times along the walk, and messages are inserted in its order: one
// walk, so that the three cannot disagree.
#pragma once

#include <optional>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

// Numbers the works of a schedule 0, 1, 2, ..., for tables indexed by work.
class WorkIndex {
  public:
    explicit WorkIndex(const Schedule& schedule);
    // Error for a work that the schedule does not have.
    size_t operator()(const Work& work) const;
    size_t size() const { return to_size(replicas_) * to_size(stages_) * microbatches_; }

  private:
    int replicas_, stages_;
    size_t microbatches_ = 0;  // largest number + 1
};

// The result or message for which an action waits.
struct Need {
    Op op;  // forward; backward_input, which a B satisfies too; a send; a receive
    Work of;
};

// The results and messages that exist.
class Results {
  public:
    explicit Results(const Schedule& schedule);

    // The first need of a simple action that is not met; nullopt: the action can run.
    std::optional<Need> missing(const Action& part) const;
    void finish(const Action& part);

  private:
    bool has(const Need& need) const;
    const Placement& placement_;
    WorkIndex index_;
    bool messages_;
    std::vector<uint16_t> done_;  // a bit for each Op
};

// The work whose forward makes the input of `work`, and the work whose backward makes the gradient of its output.
// nullopt at the first and the last stage.
std::optional<Work> source_of_input(const Placement& placement, const Work& work);
std::optional<Work> source_of_gradient(const Placement& placement, const Work& work);
inline bool same_rank(const Placement& placement, const Work& a, const Work& b) {
    return placement.rank_of(a.replica, a.stage) == placement.rank_of(b.replica, b.stage);
}

struct Blocked {
    int rank;
    size_t index;  // in the rank's program
    Need need;
};

// Calls `visit(rank, action)` for all actions, in passes over the ranks with at most one action of each rank; an action
// runs when its needs are met. Returns the ranks that cannot continue; none: the schedule has no deadlock.
template <class Visit>
std::vector<Blocked> walk(const Schedule& schedule, Visit visit) {
    Results results(schedule);
    const auto missing = [&](const Action& whole) -> std::optional<Need> {
        for (const Action& part : Parts(whole))
            if (const std::optional<Need> need = results.missing(part)) return need;
        return std::nullopt;
    };
    std::vector<size_t> next(schedule.programs.size(), 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t rank = 0; rank < next.size(); ++rank) {
            const Program& program = schedule.programs[rank];
            if (next[rank] == program.size() || missing(program[next[rank]])) continue;
            const Action& whole = program[next[rank]++];
            visit(static_cast<int>(rank), whole);
            for (const Action& part : Parts(whole)) results.finish(part);
            moved = true;
        }
    }
    std::vector<Blocked> blocked;
    for (size_t rank = 0; rank < next.size(); ++rank)
        if (next[rank] < schedule.programs[rank].size())
            blocked.push_back({static_cast<int>(rank), next[rank], *missing(schedule.programs[rank][next[rank]])});
    return blocked;
}

// Error when a walk did not reach the end: "deadlock: rank 0, action 3 (0B0) waits for 1B0; ...".
void check_reached_end(const Schedule& schedule, const std::vector<Blocked>& blocked);
std::string describe(const Schedule& schedule, const std::vector<Blocked>& blocked);

}  // namespace tutti::schedule
