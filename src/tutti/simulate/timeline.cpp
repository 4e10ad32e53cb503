#include "tutti/simulate/timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/report/trace_picture.h"
#include "tutti/simulate/clock.h"

namespace tutti::simulate {

namespace {

using rehearsal::Action;
using rehearsal::BeginOperation;
using rehearsal::KernelCall;
using rehearsal::Program;
using rehearsal::WaitForOperation;

// The ranks that meet in operations: a group, or the sender and the receiver of messages. Each has begun the n-th
// operation of a party when it begins its own n-th.
struct Party {
    size_t name;                                                    // in Layout::names_
    std::vector<int> ranks;                                         // of the world
    std::vector<size_t> members = {};                               // those of them that are laid out
    std::vector<size_t> operations = {};                            // so far
    std::map<std::pair<comm::Kind, int64_t>, double> seconds = {};  // of an operation of so many bytes
};

struct Operation {
    size_t party;
    comm::Summary what;
    double host_bytes;
    size_t arrived = 0;                   // ranks that move its data
    double engaged = 0;                   // when the last of these began to
    double begin = 0, complete = -1;      // once all have
    std::map<size_t, size_t> spans = {};  // by member: its span
};

// What a rank has begun in a party.
struct Line {
    size_t party;
    size_t begun = 0;  // operations
};

// A group of a rank's program.
struct GroupOfRank {
    size_t name;
    Line collectives;
    std::map<int, Line> sends = {}, receives = {};  // by rank of the world
    // Begun and not waited for, in the order of their begin.
    struct Open {
        comm::Kind kind;
        uint64_t sequence;
        size_t operation;
    };
    std::vector<Open> open = {};
};

struct Rank {
    int of_world = 0;
    bool sampled = false;  // the memory before the next action
    double slow = 1;
    const Program* program = nullptr;
    std::vector<double> seconds;     // of each of its calls
    std::vector<int64_t> times_run;  // likewise
    std::vector<size_t> order;       // of actions, repetitions written out
    size_t next = 0;
    Clock clock;
    double waited = 0;
    std::vector<double> waited_for;  // by name
    std::vector<Overlap> overlaps;   // by name
    std::vector<double> of_place;
    double host = 0;                                // when it has launched the kernels so far
    size_t launched = 0;                            // kernels
    std::array<double, kLaunchesAhead> queue = {};  // when the last ones began
    std::set<const Action*> from_step_before;       // begun with the step
    double copies_end = 0;                          // of those begun
    std::map<uint64_t, double> copies;              // ends, by number
    std::vector<double> stream_free;                // by name: operations of groups of one name follow one another
    std::vector<GroupOfRank> groups;
    std::vector<size_t> unengaged;  // operations begun in which this rank has not moved data yet
    std::vector<TimedSpan> spans;
    std::vector<TimedMemory> memory;
    std::multimap<size_t, const Program::Memory*> samples;  // by the action behind them
};

// Begins of collectives that no action waits for.
std::set<const Action*> left_open(const Program& program) {
    std::vector<std::tuple<size_t, comm::Kind, uint64_t>> waits;
    for (const Action& action : program.actions)
        if (const auto* wait = std::get_if<WaitForOperation>(&action.what))
            waits.emplace_back(wait->group, wait->kind, wait->sequence);
    std::ranges::sort(waits);
    std::set<const Action*> open;
    for (const Action& action : program.actions)
        if (const auto* begin = std::get_if<BeginOperation>(&action.what))
            if (!comm::is_message(begin->operation.kind) &&
                !std::ranges::binary_search(waits, std::tuple(begin->group, begin->operation.kind, begin->sequence)))
                open.insert(&action);
    return open;
}

// Runs of like actions that are repeated together.
std::vector<size_t> written_out(const Program& program) {
    std::vector<size_t> order;
    for (size_t begin = 0; begin < program.actions.size();) {
        size_t end = begin + 1;
        const int64_t times = program.actions[begin].times;
        while (end < program.actions.size() && program.actions[end].times == times) ++end;
        for (int64_t t = 0; t < times; ++t)
            for (size_t i = begin; i < end; ++i) order.push_back(i);
        begin = end;
    }
    return order;
}

class Layout {
  public:
    Layout(const std::vector<int>& ranks, const std::vector<Program>& programs, const TimelinePrices& prices,
           bool with_spans)
        : prices_(prices), with_spans_(with_spans), ranks_(programs.size()) {
        for (size_t r = 0; r < programs.size(); ++r) {
            place_of_[ranks[r]] = r;
            ranks_[r].of_world = ranks[r];
            const auto slow = prices.slow.find(ranks[r]);
            if (slow != prices.slow.end()) ranks_[r].slow = slow->second;
            ranks_[r].program = &programs[r];
            for (const KernelCall& call : programs[r].calls) ranks_[r].seconds.push_back(prices.kernel(call));
            ranks_[r].times_run.resize(programs[r].calls.size());
            ranks_[r].of_place.resize(programs[r].places.size());
            ranks_[r].order = written_out(programs[r]);
            ranks_[r].from_step_before = left_open(programs[r]);
            for (const Program::Memory& sample : programs[r].memory)
                if (with_spans) ranks_[r].samples.emplace(sample.action, &sample);
        }
        for (Rank& rank : ranks_)
            for (const Program::Group& group : rank.program->groups)
                rank.groups.push_back({name_of_stream(group.name), {party_of(group, group.ranks, false)}});
        for (Rank& rank : ranks_) {
            rank.stream_free.resize(names_.size());
            rank.waited_for.resize(names_.size());
            rank.overlaps.resize(names_.size());
        }
    }

    Timeline run() {
        for (size_t r = 0; r < ranks_.size(); ++r)
            for (const Action& action : ranks_[r].program->actions)
                if (ranks_[r].from_step_before.contains(&action)) start(r, std::get<BeginOperation>(action.what));
        bool moved = true;
        while (moved) {
            moved = false;
            for (size_t r = 0; r < ranks_.size(); ++r) moved = advance(r) || moved;
        }
        Timeline timeline{.operations = operations_seconds_};
        for (size_t r = 0; r < ranks_.size(); ++r) {
            Rank& rank = ranks_[r];
            check(rank.next == rank.order.size(), "rank ", r, " waits for an operation that other ranks never begin");
            timeline.seconds = std::max(timeline.seconds, rank.clock.now + prices_.step);
            timeline.ranks.push_back(rank.of_world);
            timeline.busy.push_back(rank.clock.busy + prices_.step);
            timeline.waited.push_back(rank.waited);
            for (size_t c = 0; c < rank.seconds.size(); ++c) {
                Calls& calls = timeline.kernels[rank.program->calls[c].kernel];
                calls.number += rank.times_run[c];
                calls.seconds += static_cast<double>(rank.times_run[c]) * rank.seconds[c];
            }
            std::map<std::string, double>& waited_for = timeline.waited_for.emplace_back();
            for (size_t n = 0; n < names_.size(); ++n) {
                if (rank.waited_for[n] > 0) waited_for[names_[n]] = rank.waited_for[n];
                if (rank.overlaps[n].seconds <= 0) continue;
                Overlap& of_all = timeline.overlaps[names_[n]];
                of_all.seconds += rank.overlaps[n].seconds;
                of_all.beside_kernels += rank.overlaps[n].beside_kernels;
            }
            timeline.of_place.push_back(std::move(rank.of_place));
            timeline.spans.push_back(std::move(rank.spans));
            for (auto [at, last] = rank.samples.equal_range(rank.program->actions.size()); at != last; ++at)
                rank.memory.push_back({rank.clock.now, at->second->bytes});
            timeline.memory.push_back(std::move(rank.memory));
        }
        return timeline;
    }

  private:
    static constexpr size_t kHost = 0, kLaunches = 1;  // in names_

    size_t name_of_stream(const std::string& group) {
        const auto known = std::ranges::find(names_, group);
        if (known != names_.end()) return to_size(known - names_.begin());
        names_.push_back(group);
        return names_.size() - 1;
    }
    // `ranks`: of the group, or for messages a sender and a receiver in it.
    size_t party_of(const Program::Group& group, const std::vector<int>& ranks, bool of_messages) {
        const auto [known, is_new] =
            places_of_parties_.try_emplace({group.name, group.ranks, ranks, of_messages}, parties_.size());
        if (is_new) {
            Party& party = parties_.emplace_back(Party{name_of_stream(group.name), ranks});
            for (const int member : ranks)
                if (const auto found = place_of_.find(member); found != place_of_.end())
                    party.members.push_back(found->second);
        }
        return known->second;
    }
    Line& line_of(Rank& rank, const BeginOperation& begin) {
        GroupOfRank& group = rank.groups[begin.group];
        if (!comm::is_message(begin.operation.kind)) return group.collectives;
        const bool sends = begin.operation.kind == comm::Kind::send;
        const Program::Group& in_program = rank.program->groups[begin.group];
        const int peer = in_program.ranks[to_size(begin.operation.peer)], self = rank.of_world;
        std::map<int, Line>& lines = sends ? group.sends : group.receives;
        auto known = lines.find(peer);
        if (known == lines.end()) {
            const std::vector<int> ranks = sends ? std::vector{self, peer} : std::vector{peer, self};
            known = lines.emplace(peer, Line{party_of(in_program, ranks, true)}).first;
        }
        return known->second;
    }

    // Until the rank ends or waits for others. Whether it did anything.
    bool advance(size_t r) {
        Rank& rank = ranks_[r];
        bool moved = false;
        while (rank.next < rank.order.size()) {
            const Action& action = rank.program->actions[rank.order[rank.next]];
            if (!rank.sampled) sample(rank);
            rank.sampled = true;
            const double before = rank.clock.now;
            if (const auto* run = std::get_if<rehearsal::RunKernel>(&action.what)) {
                ++rank.times_run[run->call];
                compute(rank, action, rank.slow * rank.seconds[run->call]);
            } else if (const auto* copy = std::get_if<rehearsal::BeginCopy>(&action.what)) {
                if (prices_.host) {
                    rank.copies_end = std::max(rank.clock.now, rank.copies_end) + prices_.host(copy->bytes);
                    rank.copies[copy->number] = rank.copies_end;
                }
            } else if (const auto* copied = std::get_if<rehearsal::WaitForCopy>(&action.what)) {
                if (const auto found = rank.copies.find(copied->number); found != rank.copies.end())
                    wait_until(rank, found->second, "copy", kHost);
            } else if (const auto* begin = std::get_if<BeginOperation>(&action.what)) {
                if (!rank.from_step_before.contains(&action)) start(r, *begin);
            } else if (!wait(r, std::get<WaitForOperation>(action.what), action.place)) {
                return moved;
            }
            rank.of_place[action.place] += rank.clock.now - before;
            ++rank.next;
            rank.sampled = false;
            moved = true;
        }
        engage(r, rank.clock.now);
        return moved;
    }

    static void sample(Rank& rank) {
        for (auto [at, last] = rank.samples.equal_range(rank.order[rank.next]); at != last; ++at)
            rank.memory.push_back({rank.clock.now, at->second->bytes});
    }

    // The kernel begins when the host has launched it.
    void compute(Rank& rank, const Action& action, double seconds) {
        double& began = rank.queue[rank.launched++ % rank.queue.size()];
        rank.host = std::max(rank.host, began) + prices_.launch;
        wait_until(rank, rank.host, "launch", kLaunches);
        began = rank.clock.now;
        const double begin = rank.clock.now;
        rank.clock.compute(seconds);
        if (!with_spans_) return;
        const std::string& place = rank.program->places[action.place];
        if (!rank.spans.empty() && rank.spans.back().activity == Activity::compute && rank.spans.back().name == place &&
            rank.spans.back().end == begin) {
            rank.spans.back().end = rank.clock.now;
        } else {
            rank.spans.push_back({Activity::compute, place, "", begin, rank.clock.now});
        }
    }

    void start(size_t r, const BeginOperation& begin) {
        Rank& rank = ranks_[r];
        Line& line = line_of(rank, begin);
        std::vector<size_t>& of_party = parties_[line.party].operations;
        if (line.begun == of_party.size()) {
            of_party.push_back(operations_.size());
            operations_.push_back({line.party, begin.operation, begin.host_bytes});
        }
        const size_t operation = of_party[line.begun++];
        rank.groups[begin.group].open.push_back({begin.operation.kind, begin.sequence, operation});
        rank.unengaged.push_back(operation);
        if (prices_.beside_kernels) engage(r, rank.clock.now);
    }

    // From `when` on the rank moves data of all that it has begun.
    void engage(size_t r, double when) {
        Rank& rank = ranks_[r];
        for (const size_t index : rank.unengaged) {
            Operation& operation = operations_[index];
            operation.engaged = std::max(operation.engaged, when);
            if (++operation.arrived == parties_[operation.party].members.size()) finish(operation);
        }
        rank.unengaged.clear();
    }

    void finish(Operation& operation) {
        Party& party = parties_[operation.party];
        const comm::Summary& what = operation.what;
        const auto [known, is_new] = party.seconds.try_emplace({what.kind, what.bytes});
        if (is_new) known->second = prices_.operation(what, party.ranks);
        double begin = operation.engaged, seconds = known->second;
        if (prices_.host && operation.host_bytes > 0) seconds = std::max(seconds, prices_.host(operation.host_bytes));
        if (prices_.beside_kernels)
            for (const size_t member : party.members) begin = std::max(begin, ranks_[member].stream_free[party.name]);
        operation.begin = begin;
        operation.complete = begin + seconds;
        for (const size_t member : party.members) {
            Rank& rank = ranks_[member];
            operations_seconds_ += seconds;
            if (prices_.beside_kernels)
                rank.stream_free[party.name] = operation.complete;
            else
                rank.clock.busy += seconds;
            if (!with_spans_) continue;
            operation.spans[member] = rank.spans.size();
            rank.spans.push_back({Activity::communication, std::string(name_of(what.kind)), names_[party.name], begin,
                                  operation.complete, static_cast<double>(what.bytes), party.ranks});
        }
    }

    bool wait(size_t r, const WaitForOperation& wait, size_t place) {
        Rank& rank = ranks_[r];
        // Repeated microbatches repeat their numbers, too: the operation of this number, else the oldest of its kind.
        GroupOfRank& group = rank.groups[wait.group];
        std::vector<GroupOfRank::Open>& open = group.open;
        auto found = std::ranges::find_if(
            open, [&](const auto& o) { return o.kind == wait.kind && o.sequence == wait.sequence; });
        if (found == open.end()) found = std::ranges::find(open, wait.kind, &GroupOfRank::Open::kind);
        if (found == open.end()) return true;  // waited for before
        engage(r, rank.clock.now);
        const Operation& operation = operations_[found->operation];
        if (operation.complete < 0) return false;
        if (const auto span = operation.spans.find(r); span != operation.spans.end())
            rank.spans[span->second].needed = rank.program->places[place];
        const double contention = comm::is_message(wait.kind) ? 0 : prices_.contention;
        Overlap& overlap = rank.overlaps[group.name];
        overlap.seconds += operation.complete - operation.begin;
        overlap.beside_kernels += rank.clock.computed(operation.begin, operation.complete);
        const double end = rank.clock.end_of_wait(operation.begin, operation.complete, contention);
        wait_until(rank, end, name_of(wait.kind), group.name);
        open.erase(found);
        return true;
    }

    // `name`: in names_.
    void wait_until(Rank& rank, double end, std::string_view what, size_t name) {
        if (end <= rank.clock.now) return;
        if (with_spans_) rank.spans.push_back({Activity::wait, std::string(what), names_[name], rank.clock.now, end});
        rank.waited += end - rank.clock.now;
        rank.waited_for[name] += end - rank.clock.now;
        rank.clock.now = end;
    }

    const TimelinePrices& prices_;
    bool with_spans_;
    std::vector<Rank> ranks_;
    std::vector<std::string> names_ = {"host", "launches"};  // of copies and launches, and of all groups
    std::vector<Party> parties_;
    std::map<std::tuple<std::string, std::vector<int>, std::vector<int>, bool>, size_t> places_of_parties_;
    std::vector<Operation> operations_;
    double operations_seconds_ = 0;
    std::map<int, size_t> place_of_;  // of a rank of the world in ranks_
};

}  // namespace

Timeline lay_out(const std::vector<int>& ranks, const std::vector<Program>& programs, const TimelinePrices& prices,
                 bool with_spans) {
    check(ranks.size() == programs.size(), "lay_out: required a program for each rank");
    return Layout(ranks, programs, prices, with_spans).run();
}

Timeline lay_out(const std::vector<Program>& programs, const TimelinePrices& prices, bool with_spans) {
    std::vector<int> ranks(programs.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return lay_out(ranks, programs, prices, with_spans);
}

double on_cores(const Timeline& timeline, int cores) {
    const double busy = std::accumulate(timeline.busy.begin(), timeline.busy.end(), 0.0);
    return std::max(timeline.seconds, busy / cores);
}

std::string to_trace(const Timeline& timeline) {
    Json events = Json::array();
    for (size_t r = 0; r < timeline.spans.size(); ++r) {
        const auto rank = static_cast<int64_t>(timeline.ranks[r]);
        events.push_back({{"name", "process_name"},
                          {"ph", "M"},
                          {"pid", rank},
                          {"args", {{"name", concat("rank ", rank, ", predicted")}}}});
        const auto event = [&](const TimedSpan& span, const char* category, int track) {
            events.push_back(
                {{"name", span.name},
                 {"cat", category},
                 {"ph", "X"},
                 {"pid", rank},
                 {"tid", track},
                 {"ts", span.begin * 1e6},
                 {"dur", (span.end - span.begin) * 1e6},
                 {"args", {{"step", 1}, {"group", span.group}, {"bytes", static_cast<int64_t>(span.bytes)}}}});
        };
        event({Activity::step, "step 1", "", 0, timeline.seconds}, "step", 0);
        for (const TimedSpan& span : timeline.spans[r]) {
            const int track = span.activity == Activity::compute ? 0 : span.activity == Activity::wait ? 1 : 2;
            event(span, std::string(name_of(span.activity)).c_str(), track);
        }
    }
    return Json{{"traceEvents", std::move(events)}}.dump() + "\n";
}

std::vector<report::TracedRank> traced(const Timeline& timeline) {
    std::vector<report::TracedRank> ranks;
    for (size_t r = 0; r < timeline.spans.size(); ++r) {
        report::TracedRank& rank = ranks.emplace_back();
        rank.rank = timeline.ranks[r];
        const auto add = [&](std::string name, Activity activity, const TimedSpan& span) {
            rank.spans.push_back({.name = std::move(name),
                                  .activity = std::string(name_of(activity)),
                                  .group = span.group,
                                  .step = 1,
                                  .bytes = static_cast<int64_t>(span.bytes),
                                  .begin_us = 1e6 * span.begin,
                                  .end_us = 1e6 * span.end,
                                  .ranks = span.ranks,
                                  .needed = span.needed});
        };
        add("step", Activity::step, {.begin = 0, .end = timeline.seconds});
        for (const TimedSpan& span : timeline.spans[r]) add(span.name, span.activity, span);
        if (r >= timeline.memory.size()) continue;
        for (const TimedMemory& sample : timeline.memory[r]) rank.memory.push_back({1e6 * sample.time, sample.bytes});
    }
    return ranks;
}

svg::Picture picture_of(const Timeline& timeline, const std::string& title) {
    const std::vector<report::TracedRank> ranks = traced(timeline);
    return svg::draw_with_legend(report::bars_of(ranks, ranks.front().spans.front(), title));
}

}  // namespace tutti::simulate
