#include "tutti/schedule/lowering.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

bool is_in(const std::vector<ChunkKey>& all, const ChunkKey& chunk) {
    return std::find(all.begin(), all.end(), chunk) != all.end();
}

// A copy with programs made by `rewrite(program)`.
template <class Rewrite>
Schedule with_programs(const Schedule& schedule, Rewrite rewrite) {
    Schedule result = schedule;
    for (Program& program : result.programs) program = rewrite(program);
    return result;
}

}  // namespace

Schedule insert_messages(const Schedule& schedule) {
    check(!schedule.has_messages(), "schedule ", schedule.name, ": has messages already; compute_only() removes them");
    Schedule result = with_programs(schedule, [](const Program&) { return Program{}; });
    const Placement& placement = schedule.placement;
    const auto send = [&](int rank, const Work& from, const std::optional<Work>& to, Op send_op, Op receive_op) {
        if (!to || same_rank(placement, from, *to)) return;
        result.programs[to_size(rank)].push_back(action(send_op, from));
        const int receiver = placement.rank_of(to->replica, to->stage);
        result.programs[to_size(receiver)].push_back(action(receive_op, *to));
    };
    const std::vector<Blocked> blocked = walk(schedule, [&](int rank, const Action& whole) {
        result.programs[to_size(rank)].push_back(whole);
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
    return with_programs(schedule, [](Program program) {
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
    return with_programs(schedule, [max_active](const Program& program) {
        Program result;
        std::vector<ChunkKey> active;  // in the order of their use
        const auto add = [&](Op op, const ChunkKey& chunk) {
            result.push_back(action(op, {chunk.first, chunk.second, -1}));
        };
        for (size_t at = 0; at < program.size(); ++at) {
            if (is_compute(program[at].op)) {
                std::vector<ChunkKey> next;
                for (size_t i = at; i < program.size() && next.size() < to_size(max_active); ++i) {
                    if (!is_compute(program[i].op)) continue;
                    for (const Action& part : Parts(program[i]))
                        if (!is_in(next, chunk_of(part)) && next.size() < to_size(max_active))
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

}  // namespace tutti::schedule
