// The search looks at all groups: first for ranks that call different operations under one sequence number; then at
// which rank waits for which. A rank that others wait for and that waits for none itself is the cause.
#include "tutti/diagnose/flight_findings.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tutti/base/to_size.h"

namespace tutti::diagnose {

using comm::Cause, comm::FlightRecord, comm::State, comm::read_flight_record, comm::in_flight;

namespace {

using Group = FlightRecord::Group;
using Entry = FlightRecord::Entry;

bool is_message(const Entry& e) { return comm::is_message(e.operation.kind); }

// "rank 3", "ranks 0, 2 and 5".
std::string ranks_text(const std::vector<int>& ranks) {
    return concat(ranks.size() == 1 ? "rank " : "ranks ", joined(ranks, ", ", " and ", [](int rank) { return rank; }));
}

std::string place_text(const Entry& e, const Group& group) {
    return concat(is_message(e) ? "message " : "operation ", e.sequence, " of group ", group.name);
}

// Rank `rank` cannot complete an operation, because rank `on` has not begun its part.
struct Wait {
    int rank, on;
    const Entry* entry;
    const Group* group;
};

class Search {
  public:
    Search(const std::vector<FlightRecord>& records, int ranks) : records_(records), by_rank_(to_size(ranks)) {
        for (const FlightRecord& r : records) by_rank_[to_size(r.rank)] = &r;
        for (int rank = 0; rank < ranks; ++rank)
            if (by_rank_[to_size(rank)] == nullptr) missing_.push_back(rank);
        for (const FlightRecord& r : records_)
            for (const Entry& e : r.operations)
                if (in_flight(e.state)) is_message(e) ? note_message(r, e) : note_collective(r, e);
    }

    std::vector<FlightFinding> run() {
        find_different();
        if (findings_.empty()) find_failed();
        find_missing();
        find_behind();
        find_circle();
        if (findings_.empty()) find_level();
        return findings_;
    }

  private:
    const FlightRecord* record_of(int rank) const { return by_rank_[to_size(rank)]; }
    static const Group* find(const FlightRecord& record, const Group& group) {
        for (const Group& g : record.groups)
            if (g.same(group)) return &g;
        return nullptr;
    }

    void note_collective(const FlightRecord& r, const Entry& e) {
        const Group& group = r.groups[e.group];
        for (const int other : group.ranks) {
            if (other == r.rank) continue;
            const FlightRecord* there = record_of(other);
            const Group* its = there != nullptr ? find(*there, group) : nullptr;
            if (its == nullptr || its->begun < e.sequence ||
                (e.state == State::running && waits_there(*there, group, e)))
                waits_.push_back({r.rank, other, &e, &group});
        }
    }

    // Whether that rank's GPU has not reached the operation, because an earlier one does not end.
    static bool waits_there(const FlightRecord& there, const Group& group, const Entry& e) {
        return std::any_of(there.operations.begin(), there.operations.end(), [&](const Entry& its) {
            return its.sequence == e.sequence && its.state == State::started && !is_message(its) &&
                   there.groups[its.group].same(group);
        });
    }

    void note_message(const FlightRecord& r, const Entry& e) {
        const Group& group = r.groups[e.group];
        const int other = group.ranks[to_size(e.operation.peer)];
        const FlightRecord* there = record_of(other);
        uint64_t begun = 0;
        if (there != nullptr) {
            const auto own = std::find(group.ranks.begin(), group.ranks.end(), r.rank) - group.ranks.begin();
            for (const Entry& its : there->operations)
                if (is_message(its) && its.operation.kind != e.operation.kind && its.operation.peer == own &&
                    there->groups[its.group].same(group))
                    begun = std::max(begun, its.sequence);
            if (begun == 0 && there->forgotten > 0) return;  // it may have been before the record begins
        }
        if (begun < e.sequence) waits_.push_back({r.rank, other, &e, &group});
    }

    // All ranks' entries of one number of a group; the first number at which they are not the same.
    void find_different() {
        std::vector<std::pair<double, FlightFinding>> found;
        std::vector<const Group*> done;
        for (const FlightRecord& first : records_)
            for (const Group& group : first.groups) {
                if (std::any_of(done.begin(), done.end(), [&](const Group* g) { return g->same(group); })) continue;
                done.push_back(&group);
                if (auto difference = first_difference(group)) found.push_back(std::move(*difference));
            }
        std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (auto& [time, finding] : found) findings_.push_back(std::move(finding));
    }

    std::optional<std::pair<double, FlightFinding>> first_difference(const Group& group) const {
        std::map<uint64_t, std::vector<std::pair<const FlightRecord*, const Entry*>>> by_number;
        for (const FlightRecord& r : records_)
            for (const Entry& e : r.operations)
                if (!is_message(e) && r.groups[e.group].same(group)) by_number[e.sequence].push_back({&r, &e});
        for (const auto& [number, calls] : by_number) {
            // Ranks that call the same, the most numerous first.
            std::vector<std::vector<std::pair<const FlightRecord*, const Entry*>>> sides;
            for (const auto& call : calls) {
                const auto side = std::find_if(sides.begin(), sides.end(), [&](const auto& s) {
                    return agree(s.front().second->operation, call.second->operation);
                });
                side != sides.end() ? side->push_back(call) : sides.push_back({call});
            }
            if (sides.size() < 2) continue;
            std::stable_sort(sides.begin(), sides.end(),
                             [](const auto& a, const auto& b) { return a.size() > b.size(); });
            FlightFinding finding{.kind = FlightFinding::Kind::different, .group = group.name, .sequence = number};
            double time = calls.front().first->started + calls.front().second->start_s;
            std::string text;
            const bool majority = sides[0].size() > sides[1].size();
            for (size_t s = 0; s < sides.size(); ++s) {
                std::vector<int> ranks;
                for (const auto& [record, entry] : sides[s]) {
                    ranks.push_back(record->rank);
                    time = std::min(time, record->started + entry->start_s);
                }
                text += concat(s == 0 ? "" : ", ", ranks_text(ranks), ranks.size() > 1 ? " call " : " calls ",
                               sides[s].front().second->operation.text());
                if (s > 0 || !majority) finding.ranks.insert(finding.ranks.end(), ranks.begin(), ranks.end());
            }
            std::sort(finding.ranks.begin(), finding.ranks.end());
            finding.text =
                concat("the ranks diverge at operation ", number, " of group ", group.name, ": ", text,
                       majority ? concat("; ", ranks_text(finding.ranks), " took another path") : std::string());
            return std::pair{time, finding};
        }
        return std::nullopt;
    }

    void find_failed() {
        std::vector<const FlightRecord*> failed;
        for (const FlightRecord& r : records_)
            if (r.cause == Cause::failed) failed.push_back(&r);
        std::sort(failed.begin(), failed.end(), [](const auto* a, const auto* b) { return a->written < b->written; });
        for (const FlightRecord* r : failed)
            findings_.push_back({.kind = FlightFinding::Kind::failed,
                                 .ranks = {r->rank},
                                 .text = concat("rank ", r->rank, " failed: ", r->reason,
                                                "; its last operation: ", last_operation(*r))});
    }

    void find_missing() {
        if (missing_.empty()) return;
        FlightFinding finding{.kind = FlightFinding::Kind::missing, .ranks = missing_};
        finding.text = concat(ranks_text(missing_), " left no record: killed, or ",
                              missing_.size() > 1 ? "their hosts or disks are" : "its host or disk is", " gone");
        for (const int rank : missing_)
            if (const Wait* first = first_wait_for(rank)) {
                finding.text += concat("; ", waiting_text(*first), " for rank ", rank, " in ", what_text(*first));
                place(finding, *first);
            }
        findings_.push_back(std::move(finding));
    }

    // Only a wait that timed out shows that a rank stood still: after other failures all ranks stop in any operation.
    void find_behind() {
        const auto is = [](Cause cause) { return [cause](const FlightRecord& r) { return r.cause == cause; }; };
        if (std::any_of(records_.begin(), records_.end(), is(Cause::failed)) ||
            std::none_of(records_.begin(), records_.end(), is(Cause::timed_out)))
            return;
        std::set<int> waiting, waited_for;
        for (const Wait& w : waits_) {
            waiting.insert(w.rank);
            waited_for.insert(w.on);
        }
        for (const int rank : waited_for) {
            if (record_of(rank) == nullptr || waiting.contains(rank)) continue;
            const Wait* first = first_wait_for(rank);
            FlightFinding finding{.kind = FlightFinding::Kind::behind, .ranks = {rank}};
            finding.text =
                concat("rank ", rank, " hung or took another path: it has not begun ", what_text(*first), ", in which ",
                       waiting_text(*first), " for it; its last operation: ", last_operation(*record_of(rank)));
            place(finding, *first);
            findings_.push_back(std::move(finding));
        }
    }

    // The oldest wait for this rank; nullptr: there is none.
    const Wait* first_wait_for(int rank) const {
        const auto begun = [this](const Wait& w) { return record_of(w.rank)->started + w.entry->start_s; };
        const Wait* first = nullptr;
        for (const Wait& w : waits_)
            if (w.on == rank && (first == nullptr || begun(w) < begun(*first))) first = &w;
        return first;
    }
    // "ranks 0 and 2 wait": for the same rank in the same operation.
    std::string waiting_text(const Wait& wait) const {
        std::vector<int> who;
        for (const Wait& w : waits_)
            if (w.on == wait.on && w.group->same(*wait.group) && w.entry->sequence == wait.entry->sequence &&
                is_message(*w.entry) == is_message(*wait.entry))
                who.push_back(w.rank);
        return concat(ranks_text(who), who.size() > 1 ? " wait" : " waits");
    }
    static std::string what_text(const Wait& w) {
        return concat(place_text(*w.entry, *w.group), " (", w.entry->operation.text(), ")");
    }
    static void place(FlightFinding& finding, const Wait& w) {
        if (!finding.group.empty()) return;
        finding.group = w.group->name;
        finding.sequence = w.entry->sequence;
    }

    // Every rank that others wait for waits itself: follow the waits until a rank is visited twice.
    void find_circle() {
        if (!findings_.empty() || waits_.empty()) return;
        std::vector<const Wait*> path;
        std::vector<int> visited;
        for (int rank = waits_.front().rank;;) {
            const auto at = std::find(visited.begin(), visited.end(), rank);
            if (at != visited.end()) {
                path.erase(path.begin(), path.begin() + (at - visited.begin()));
                break;
            }
            visited.push_back(rank);
            const auto next = std::find_if(waits_.begin(), waits_.end(), [&](const Wait& w) { return w.rank == rank; });
            path.push_back(&*next);
            rank = next->on;
        }
        FlightFinding finding{.kind = FlightFinding::Kind::circle,
                              .text = "the ranks wait for one another in a circle"};
        for (const Wait* w : path) {
            finding.ranks.push_back(w->rank);
            finding.text += concat(w == path.front() ? ": rank " : "; rank ", w->rank, " waits for rank ", w->on,
                                   " in ", what_text(*w));
            place(finding, *w);
        }
        std::sort(finding.ranks.begin(), finding.ranks.end());
        findings_.push_back(std::move(finding));
    }

    void find_level() {
        FlightFinding finding{.kind = FlightFinding::Kind::level};
        const FlightRecord* open = nullptr;
        const Entry* entry = nullptr;
        for (const FlightRecord& r : records_)
            for (const Entry& e : r.operations)
                if (in_flight(e.state) && entry == nullptr) {
                    open = &r;
                    entry = &e;
                }
        finding.text = "no rank took another path: all ranks began the same operations of every group";
        if (entry != nullptr) {
            finding.group = open->groups[entry->group].name;
            finding.sequence = entry->sequence;
            finding.text += concat("; ", entry->operation.text(), ", ", place_text(*entry, open->groups[entry->group]),
                                   ", was in flight: its data did not get through");
        } else {
            finding.text += ", and completed them";
        }
        findings_.push_back(std::move(finding));
    }

    const std::vector<FlightRecord>& records_;
    std::vector<const FlightRecord*> by_rank_;
    std::vector<int> missing_;
    std::vector<Wait> waits_;
    std::vector<FlightFinding> findings_;
};

}  // namespace

std::string_view name_of(FlightFinding::Kind finding) {
    constexpr std::string_view kNames[] = {"different", "failed", "missing", "behind", "circle", "level"};  // by Kind
    return kNames[to_size(finding)];
}

std::string last_operation(const FlightRecord& record) {
    if (record.operations.empty()) return "nothing";
    const Entry& last = record.operations.back();
    return concat(last.operation.text(), ", ", place_text(last, record.groups[last.group]), ", ",
                  in_flight(last.state) ? "not complete" : name_of(last.state));
}

std::vector<FlightFinding> find_divergence(const std::vector<FlightRecord>& records, int ranks) {
    return Search(records, ranks).run();
}

FlightReading read_flight(const std::filesystem::path& given) {
    namespace fs = std::filesystem;
    const fs::path directory = fs::is_directory(given / "flight") ? given / "flight" : given;
    FlightReading reading;
    std::vector<std::pair<std::string, FlightRecord>> all;
    double newest = 0;
    for (const auto& file : fs::directory_iterator(directory)) {
        const std::string name = file.path().filename().string();
        if (!name.starts_with("rank-") || !name.ends_with(".json")) continue;
        all.emplace_back(name, read_flight_record(file.path()));
        newest = std::max(newest, all.back().second.started);
    }
    check<DataError>(
        !all.empty(), directory.string(),
        ": no flight records (rank-N.json): the ranks of a run with several ranks write them when the run fails");
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.rank < b.second.rank; });
    for (auto& [name, record] : all) {
        // Written before another record's rank started: a record of an earlier session.
        if (record.written < newest) {
            reading.left_out.push_back(name);
            continue;
        }
        check<DataError>(name == concat("rank-", record.rank, ".json"), (directory / name).string(), ": holds rank ",
                         record.rank, "; required: rank-", record.rank, ".json under its own name");
        check<DataError>(reading.ranks == 0 || record.ranks == reading.ranks, directory.string(),
                         ": records of runs of ", reading.ranks, " and of ", record.ranks, " ranks together, in ", name,
                         "; move those of one of them away");
        reading.ranks = record.ranks;
        reading.records.push_back(std::move(record));
    }
    for (int rank = 0; rank < reading.ranks; ++rank)
        if (std::none_of(reading.records.begin(), reading.records.end(), [&](const auto& r) { return r.rank == rank; }))
            reading.missing.push_back(rank);
    reading.findings = find_divergence(reading.records, reading.ranks);
    return reading;
}

}  // namespace tutti::diagnose
