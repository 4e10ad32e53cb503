#include "tutti/schedule/lowering.h"

#include <algorithm>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

using ChunkKey = std::pair<int, int>;  // (replica, stage)
ChunkKey chunk_of(const Action& part) { return {part.replica, part.stage}; }

bool is_in(const std::vector<ChunkKey>& all, const ChunkKey& chunk) {
    return std::find(all.begin(), all.end(), chunk) != all.end();
}

// A copy without slots, and with programs made by `rewrite(rank, program)`.
template <class Rewrite>
Schedule with_programs(const Schedule& schedule, Rewrite rewrite) {
    Schedule result = schedule;
    result.activation_slots.clear();
    result.receive_slots.clear();
    for (size_t rank = 0; rank < schedule.programs.size(); ++rank) {
        result.programs[rank] = rewrite(static_cast<int>(rank), schedule.programs[rank]);
        for (Action& a : result.programs[rank]) a.slot = -1;
    }
    return result;
}

}  // namespace

Schedule insert_messages(const Schedule& schedule) {
    check(!schedule.has_messages(), "schedule ", schedule.name, ": has messages already; compute_only() removes them");
    Schedule result = with_programs(schedule, [](int, const Program&) { return Program{}; });
    const Placement& placement = schedule.placement;
    const auto send = [&](int rank, const Work& from, const std::optional<Work>& to, Op send_op, Op receive_op) {
        if (!to || same_rank(placement, from, *to)) return;
        result.programs[static_cast<size_t>(rank)].push_back(action(send_op, from));
        const int receiver = placement.rank_of(to->replica, to->stage);
        result.programs[static_cast<size_t>(receiver)].push_back(action(receive_op, *to));
    };
    const std::vector<Blocked> blocked = walk(schedule, [&](int rank, const Action& whole) {
        result.programs[static_cast<size_t>(rank)].push_back(whole);
        for (const Action& part : Parts(whole)) {
            const Work work = part.work();
            // The output goes to the source of the gradient, and the input's gradient to the source of the input.
            if (part.op == Op::forward)
                send(rank, work, source_of_gradient(placement, work), Op::send_activation, Op::receive_activation);
            if (part.op == Op::backward || part.op == Op::backward_input)
                send(rank, work, source_of_input(placement, work), Op::send_gradient, Op::receive_gradient);
        }
    });
    check_reached_end(schedule, blocked);
    return result;
}

Schedule compute_only(const Schedule& schedule) {
    return with_programs(schedule, [](int, Program program) {
        std::erase_if(program, [](const Action& a) { return !is_compute(a.op); });
        return program;
    });
}

Schedule insert_unshard(const Schedule& schedule, int max_active) {
    bool overlaps = false;
    for (const Program& program : schedule.programs)
        for (const Action& a : program) overlaps = overlaps || a.op == Op::overlap;
    check<UsageError>(max_active >= (overlaps ? 2 : 1), "schedule ", schedule.name, ": required at least ",
                      overlaps ? "2 unsharded chunks, those of an overlap" : "1 unsharded chunk", ", got ", max_active);
    return with_programs(schedule, [max_active](int, const Program& program) {
        Program result;
        std::vector<ChunkKey> active;  // in the order of their use
        const auto add = [&](Op op, const ChunkKey& chunk) {
            result.push_back(action(op, {chunk.first, chunk.second, -1}));
        };
        for (size_t at = 0; at < program.size(); ++at) {
            if (is_compute(program[at].op)) {
                std::vector<ChunkKey> next;
                for (size_t i = at; i < program.size() && next.size() < static_cast<size_t>(max_active); ++i) {
                    if (!is_compute(program[i].op)) continue;
                    for (const Action& part : Parts(program[i]))
                        if (!is_in(next, chunk_of(part)) && next.size() < static_cast<size_t>(max_active))
                            next.push_back(chunk_of(part));
                }
                for (const ChunkKey& chunk : active)
                    if (!is_in(next, chunk)) add(Op::reshard, chunk);
                std::erase_if(active, [&](const ChunkKey& chunk) { return !is_in(next, chunk); });
                for (const ChunkKey& chunk : next)
                    if (!is_in(active, chunk)) {
                        add(Op::unshard, chunk);
                        active.push_back(chunk);
                    }
            }
            result.push_back(program[at]);
        }
        for (const ChunkKey& chunk : active) add(Op::reshard, chunk);
        return result;
    });
}

Schedule insert_gradient_reduction(const Schedule& schedule) {
    return with_programs(schedule, [](int, const Program& program) {
        std::map<ChunkKey, size_t> last;
        const auto adds = [](const Action& part) { return part.op == Op::backward || part.op == Op::backward_weight; };
        for (size_t i = 0; i < program.size(); ++i)
            for (const Action& part : Parts(program[i]))
                if (adds(part)) last[chunk_of(part)] = i;
        Program result;
        for (size_t i = 0; i < program.size(); ++i) {
            result.push_back(program[i]);
            for (const Action& part : Parts(program[i]))
                if (adds(part) && last[chunk_of(part)] == i)
                    result.push_back(action(Op::reduce_gradient, {part.replica, part.stage, -1}));
        }
        return result;
    });
}

Schedule insert_replica_reduction(const Schedule& schedule) {
    const Placement& placement = schedule.placement;
    if (placement.replicas == 1) return schedule;
    return with_programs(schedule, [&](int rank, Program program) {
        for (int stage = 0; stage < placement.stages; ++stage)
            for (int replica = 0; replica < placement.replicas; ++replica)
                if (placement.rank_of(replica, stage) == rank)
                    program.push_back(action(Op::replica_reduce, {replica, stage, -1}));
        return program;
    });
}

namespace {

// Hands out numbers 0, 1, 2, ..., the smallest free one first.
class SlotPool {
  public:
    int take() {
        if (free_.empty()) return size_++;
        const int slot = *free_.begin();
        free_.erase(free_.begin());
        return slot;
    }
    void give_back(int slot) { free_.insert(slot); }
    int size() const { return size_; }

  private:
    std::set<int> free_;
    int size_ = 0;
};

}  // namespace

Schedule assign_slots(const Schedule& schedule) {
    Schedule result = schedule;
    result.activation_slots.clear();
    result.receive_slots.clear();
    for (Program& program : result.programs) {
        SlotPool activations, received;
        std::map<Work, int> activation_of, input_of, gradient_of;
        const auto release = [](SlotPool& pool, std::map<Work, int>& slots, const Work& work) {
            const auto entry = slots.find(work);
            if (entry == slots.end()) return;
            pool.give_back(entry->second);
            slots.erase(entry);
        };
        for (Action& whole : program) {
            if (whole.op == Op::receive_activation) whole.slot = input_of[whole.work()] = received.take();
            if (whole.op == Op::receive_gradient) whole.slot = gradient_of[whole.work()] = received.take();
            if (!is_compute(whole.op)) continue;
            // Both parts of an overlap live at the same time: take first, free afterwards.
            for (const Action& part : Parts(whole))
                if (part.op == Op::forward) whole.slot = activation_of[part.work()] = activations.take();
            for (const Action& part : Parts(whole)) {
                if (part.op == Op::forward) release(received, input_of, part.work());
                if (part.op == Op::backward || part.op == Op::backward_input)
                    release(received, gradient_of, part.work());
                if (part.op == Op::backward || part.op == Op::backward_weight)
                    release(activations, activation_of, part.work());
            }
        }
        result.activation_slots.push_back(activations.size());
        result.receive_slots.push_back(received.size());
    }
    return result;
}

Schedule lower(const Schedule& schedule, const LowerOptions& options) {
    Schedule result = schedule;
    if (options.fsdp) result = insert_unshard(result, options.max_active);
    if (options.gradient_reduction) result = insert_gradient_reduction(result);
    result = insert_replica_reduction(result);
    return assign_slots(insert_messages(result));
}

}  // namespace tutti::schedule
