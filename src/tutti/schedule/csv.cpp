// schedule/csv.cpp: schedules as text, in the format of torch.distributed.pipelining.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

namespace {

// Larger numbers mean a broken file; tables are as long as the largest number.
constexpr int kMostStages = 1 << 16, kMostMicrobatches = 1 << 20;

struct Word {
    std::string_view letters;
    Op op;
    bool of_microbatch;
};
// Longer words come before their prefixes.
constexpr std::array kWords = {
    Word{"SEND_F", Op::send_activation, true},
    Word{"RECV_F", Op::receive_activation, true},
    Word{"SEND_B", Op::send_gradient, true},
    Word{"RECV_B", Op::receive_gradient, true},
    Word{"UNSHARD", Op::unshard, false},
    Word{"RESHARD", Op::reshard, false},
    Word{"F", Op::forward, true},
    Word{"B", Op::backward, true},
    Word{"I", Op::backward_input, true},
    Word{"W", Op::backward_weight, true},
};

// Takes a number from the front of the text.
std::optional<int> take_number(std::string_view& text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || number < 0) return std::nullopt;
    text.remove_prefix(to_size(end - text.data()));
    return number;
}

std::optional<Action> parse_simple(std::string_view text) {
    Action a;
    const std::optional<int> stage = take_number(text);
    if (!stage || *stage >= kMostStages) return std::nullopt;
    a.stage = *stage;
    if (text.starts_with('\'')) {
        a.replica = 1;
        text.remove_prefix(1);
    }
    for (const Word& word : kWords) {
        if (!text.starts_with(word.letters)) continue;
        text.remove_prefix(word.letters.size());
        a.op = word.op;
        if (word.of_microbatch) {
            const std::optional<int> microbatch = take_number(text);
            if (!microbatch || *microbatch >= kMostMicrobatches) return std::nullopt;
            a.microbatch = *microbatch;
        }
        return text.empty() ? std::optional(a) : std::nullopt;
    }
    return std::nullopt;
}

std::optional<Action> parse(std::string_view text) {
    constexpr std::string_view kOverlap = ")OVERLAP_F_B";
    if (!text.starts_with('(') || !text.ends_with(kOverlap)) return parse_simple(text);
    text.remove_prefix(1);
    text.remove_suffix(kOverlap.size());
    const size_t middle = text.find(';');
    if (middle == std::string_view::npos) return std::nullopt;
    std::optional<Action> forward = parse_simple(text.substr(0, middle));
    const std::optional<Action> backward = parse_simple(text.substr(middle + 1));
    if (!forward || forward->op != Op::forward || !backward || backward->op != Op::backward) return std::nullopt;
    forward->op = Op::overlap;
    forward->backward = backward->work();
    return forward;
}

// Assigns chunks to the ranks that compute with them; UsageError for a chunk of two ranks or of none.
Placement placement_of(const std::vector<Program>& programs, const std::string& name) {
    std::map<ChunkKey, int> rank_of;
    Placement placement{static_cast<int>(programs.size()), 0, 1, {}};
    for (int rank = 0; rank < placement.ranks; ++rank)
        for (const Action& whole : programs[to_size(rank)]) {
            if (!is_compute(whole.op)) continue;
            for (const Action& part : Parts(whole)) {
                const auto [chunk, is_new] = rank_of.try_emplace(chunk_of(part), rank);
                check<UsageError>(is_new || chunk->second == rank, name, ": stage ", part.stage,
                                  " is computed by rank ", chunk->second, " and by rank ", rank, " (", to_string(whole),
                                  "); a stage belongs to one rank, which is one row");
                placement.stages = std::max(placement.stages, part.stage + 1);
                placement.replicas = std::max(placement.replicas, part.replica + 1);
            }
        }
    for (int replica = 0; replica < placement.replicas; ++replica)
        for (int stage = 0; stage < placement.stages; ++stage) {
            const auto chunk = rank_of.find({replica, stage});
            check<UsageError>(chunk != rank_of.end(), name, ": no rank computes stage ", stage, " of replica ", replica,
                              ", although there are ", placement.stages, " stages");
            placement.rank_of_chunk.push_back(chunk->second);
        }
    return placement;
}

}  // namespace

Action parse_action(std::string_view text) {
    const std::optional<Action> a = parse(text);
    check<UsageError>(a.has_value(), "`", text,
                      "` is not an action; expected: stage, operation, microbatch, such as 2F0, 2B0, 2I0, ",
                      "2W0, 2SEND_F0, 2RECV_F0, 2SEND_B0, 2RECV_B0, 2UNSHARD, 2RESHARD or (0F7;7B3)OVERLAP_F_B");
    return *a;
}

Schedule parse_csv(std::string_view text, const std::string& name) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    check<UsageError>(!text.empty(), name, ": empty; expected one row per rank with actions such as 0F0,0F1,0B0");
    Schedule schedule;
    schedule.name = name;
    for (const std::string_view row : split(text, '\n')) {
        Program& program = schedule.programs.emplace_back();
        int cell_number = 0;
        for (const std::string_view blank_cell : split(row, ',')) {
            ++cell_number;
            const std::string_view cell = trimmed(blank_cell, " \t\r\"");
            if (cell.empty() || cell.ends_with("REDUCE_GRAD") || cell.ends_with("REPLICA_REDUCE")) continue;
            try {
                program.push_back(parse_action(cell));
            } catch (const UsageError& error) {
                throw UsageError(
                    concat(name, ", row ", schedule.programs.size(), ", cell ", cell_number, ": ", error.what()));
            }
        }
    }
    schedule.placement = placement_of(schedule.programs, name);
    std::vector<std::set<int>> seen(to_size(schedule.placement.replicas));
    for (const Program& program : schedule.programs)
        for (const Action& whole : program)
            for (const Action& part : Parts(whole))
                if (part.op == Op::forward) seen[to_size(part.replica)].insert(part.microbatch);
    for (const std::set<int>& of_replica : seen)
        schedule.microbatches.emplace_back(of_replica.begin(), of_replica.end());
    schedule.ascending = adds_in_ascending_order(schedule);
    return schedule;
}

Schedule read_csv(const std::string& path) {
    try {
        return parse_csv(read_file(path), path);
    } catch (const DataError& error) {
        throw UsageError(concat("cannot read the schedule ", error.what()));
    }
}

std::string to_csv(const Schedule& schedule) {
    std::string text;
    for (const Program& program : schedule.programs)
        text += joined(program, ",", [](const Action& action) { return to_string(action); }) + '\n';
    return text;
}

}  // namespace tutti::schedule
