#include "tutti/schedule/schedule.h"

#include <algorithm>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::schedule {

namespace {

std::string_view letters_of(Op op) {
    switch (op) {
        case Op::forward: return "F";
        case Op::backward: return "B";
        case Op::backward_input: return "I";
        case Op::backward_weight: return "W";
        case Op::overlap: return "OVERLAP_F_B";
        case Op::send_activation: return "SEND_F";
        case Op::receive_activation: return "RECV_F";
        case Op::send_gradient: return "SEND_B";
        case Op::receive_gradient: return "RECV_B";
        case Op::unshard: return "UNSHARD";
        case Op::reshard: return "RESHARD";
    }
    throw Error("schedule: an action of unknown kind");
}

}  // namespace

Parts::Parts(const Action& whole) {
    parts_[0] = whole;
    if (whole.op != Op::overlap) return;
    parts_[0] = action(Op::forward, whole.work());
    parts_[1] = action(Op::backward, whole.backward);
    count_ = 2;
}

Placement loop_placement(int ranks, int chunks) {
    Placement placement{ranks, ranks * chunks, 1, {}};
    for (int stage = 0; stage < placement.stages; ++stage) placement.rank_of_chunk.push_back(stage % ranks);
    return placement;
}

Placement v_placement(int ranks) {
    Placement placement{ranks, 2 * ranks, 1, {}};
    for (int stage = 0; stage < placement.stages; ++stage)
        placement.rank_of_chunk.push_back(std::min(stage, 2 * ranks - 1 - stage));
    return placement;
}

Placement bidirectional_placement(int ranks) {
    Placement placement{ranks, ranks, 2, {}};
    for (int stage = 0; stage < ranks; ++stage) placement.rank_of_chunk.push_back(stage);
    for (int stage = 0; stage < ranks; ++stage) placement.rank_of_chunk.push_back(ranks - 1 - stage);
    return placement;
}

int Schedule::total_microbatches() const {
    size_t total = 0;
    for (const std::vector<int>& of_replica : microbatches) total += of_replica.size();
    return static_cast<int>(total);
}

bool Schedule::has_messages() const {
    const auto is_any = [](const Action& a) { return is_message(a.op); };
    return std::any_of(programs.begin(), programs.end(),
                       [&](const Program& program) { return std::any_of(program.begin(), program.end(), is_any); });
}

std::vector<std::vector<int>> weight_versions(const Schedule& schedule) {
    std::vector<std::vector<int>> versions;
    for (const Program& program : schedule.programs) {
        std::vector<int>& of_rank = versions.emplace_back();
        std::map<int, int> of_forward;  // by microbatch
        int newest = 0;
        for (const Action& action : program) {
            if (!is_compute(action.op)) continue;
            if (action.op == Op::forward) of_forward[action.microbatch] = newest;
            of_rank.push_back(of_forward.at(action.microbatch));
            if (schedule.updates_each && action.op == Op::backward) ++newest;
        }
    }
    return versions;
}

std::vector<int> versions_held(const Schedule& schedule) {
    std::vector<int> held;
    const auto versions = weight_versions(schedule);
    for (size_t rank = 0; rank < versions.size(); ++rank) {
        std::map<int, int> used;  // forwards whose backward is still to come, by version
        int newest = 0;
        size_t most = 1, i = 0;
        for (const Action& action : schedule.programs[rank]) {
            if (!is_compute(action.op)) continue;
            const int version = versions[rank][i++];
            if (action.op == Op::forward) {
                ++used[version];
            } else {
                if (--used[version] == 0) used.erase(version);
                if (schedule.updates_each) ++newest;
            }
            most = std::max(most, used.size() + (used.contains(newest) ? 0 : 1));
        }
        held.push_back(static_cast<int>(most));
    }
    return held;
}

bool adds_in_ascending_order(const Schedule& schedule) {
    for (const Program& program : schedule.programs) {
        std::map<ChunkKey, int> last;
        for (const Action& whole : program)
            for (const Action& part : Parts(whole)) {
                if (part.op != Op::backward && part.op != Op::backward_weight) continue;
                const auto [entry, is_new] = last.try_emplace(chunk_of(part), part.microbatch);
                if (!is_new && entry->second > part.microbatch) return false;
                entry->second = part.microbatch;
            }
    }
    return true;
}

Schedule empty_schedule(std::string name, Placement placement, int microbatches) {
    Schedule schedule{std::move(name), std::move(placement), {}, {}, {}, true};
    schedule.microbatches.emplace_back();
    for (int k = 0; k < microbatches; ++k) schedule.microbatches[0].push_back(k);
    schedule.programs.resize(to_size(schedule.placement.ranks));
    return schedule;
}

std::string to_string(const Action& a) {
    if (a.op == Op::overlap) {
        const Parts parts(a);
        return concat('(', to_string(parts.begin()[0]), ';', to_string(parts.begin()[1]), ')', letters_of(a.op));
    }
    std::string text = std::to_string(a.stage);  // no stream: a rehearsal names each of its passes
    text.append(to_size(std::max(0, a.replica)), '\'').append(letters_of(a.op));
    return a.microbatch < 0 ? text : text.append(std::to_string(a.microbatch));
}

std::string place_of(int rank, size_t index, const Action& a) {
    return concat("rank ", rank, ", action ", index, " (", to_string(a), ")");
}

}  // namespace tutti::schedule
