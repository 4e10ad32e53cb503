#include "tutti/comm/flight_record.h"

#include <algorithm>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/comm/progress.h"

namespace tutti::comm {

namespace {

// The value of an enumeration of `count` values that has this name.
template <class Enum>
Enum named(const std::string& name, int count) {
    for (int i = 0; i < count; ++i)
        if (name_of(static_cast<Enum>(i)) == name) return static_cast<Enum>(i);
    throw DataError(concat("\"", name, "\" is not a kind, state or cause of this program's flight records"));
}

Json json_of(const FlightRecord::Entry& e, const FlightRecord& record) {
    const Summary& o = e.operation;
    Json json = {{"group", record.groups[e.group].name},
                 {"in", e.group},
                 {"sequence", e.sequence},
                 {"operation", o.text()},
                 {"kind", name_of(o.kind)},
                 {"reduce", o.reduce == Reduce::max ? "max" : "sum"},
                 {"dtype", name_of(o.dtype)},
                 {"count", o.count},
                 {"peer", o.peer},
                 {"bytes", o.bytes},
                 {"state", name_of(e.state)},
                 {"start_s", e.start_s}};
    if (!in_flight(e.state)) json["end_s"] = e.end_s;
    return json;
}

FlightRecord::Entry entry_of(const Json& json, const FlightRecord& record) {
    FlightRecord::Entry e;
    e.group = json.at("in").get<size_t>();
    check<DataError>(e.group < record.groups.size(), "an operation is of group ", e.group, ", required one below ",
                     record.groups.size());
    e.sequence = json.at("sequence").get<uint64_t>();
    e.operation.kind = named<Kind>(json.at("kind").get<std::string>(), kKinds);
    e.operation.reduce = json.at("reduce").get<std::string>() == "max" ? Reduce::max : Reduce::sum;
    const auto dtype = json.at("dtype").get<std::string>();
    const auto known = dtype_from(dtype);
    check<DataError>(known.has_value(), "\"", dtype, "\" is not a data type");
    e.operation.dtype = *known;
    e.operation.count = json.at("count").get<int64_t>();
    e.operation.peer = json.at("peer").get<int>();
    e.operation.bytes = json.at("bytes").get<int64_t>();
    const auto ranks = static_cast<int>(record.groups[e.group].ranks.size());
    check<DataError>(e.operation.peer >= 0 && e.operation.peer < ranks, "an operation has peer ", e.operation.peer,
                     ", required a rank below ", ranks, ", those of its group");
    e.state = named<State>(json.at("state").get<std::string>(), 4);
    e.start_s = json.at("start_s").get<double>();
    e.end_s = json.value("end_s", 0.0);
    return e;
}

FlightRecord record_of(const Json& json) {
    FlightRecord r;
    r.rank = json.at("rank").get<int>();
    r.ranks = json.at("ranks").get<int>();
    check<DataError>(r.rank >= 0 && r.rank < r.ranks, "rank is ", r.rank, ", required one below ", r.ranks);
    r.cause = named<Cause>(json.at("cause").get<std::string>(), 3);
    r.reason = json.at("reason").get<std::string>();
    r.started = json.at("started").get<double>();
    r.written = json.at("written").get<double>();
    for (const Json& group : json.at("groups")) {
        r.groups.push_back({.name = group.at("name").get<std::string>(),
                            .ranks = group.at("ranks").get<std::vector<int>>(),
                            .generation = group.at("generation").get<int>(),
                            .begun = group.at("begun").get<uint64_t>()});
        for (const int rank : r.groups.back().ranks)
            check<DataError>(rank >= 0 && rank < r.ranks, "group ", r.groups.back().name, " has rank ", rank,
                             ", required one below ", r.ranks);
    }
    for (const Json& operation : json.at("operations")) r.operations.push_back(entry_of(operation, r));
    r.forgotten = json.at("forgotten").get<uint64_t>();
    return r;
}

}  // namespace

std::string_view name_of(State state) {
    switch (state) {
        case State::started: return "started";
        case State::complete: return "complete";
        case State::failed: return "failed";
        case State::running: return "running";
    }
    return "?";
}

std::string_view name_of(Cause cause) {
    return cause == Cause::failed ? "failed" : cause == Cause::timed_out ? "timed_out" : "told";
}

Cause cause_of(const std::exception& error) {
    if (dynamic_cast<const Aborted*>(&error) != nullptr) return Cause::told;
    return dynamic_cast<const TimedOut*>(&error) != nullptr ? Cause::timed_out : Cause::failed;
}

std::string to_json(const FlightRecord& r) {
    Json groups = Json::array(), operations = Json::array();
    for (const FlightRecord::Group& g : r.groups)
        groups.push_back({{"name", g.name}, {"ranks", g.ranks}, {"generation", g.generation}, {"begun", g.begun}});
    for (const FlightRecord::Entry& e : r.operations) operations.push_back(json_of(e, r));
    const Json json = {{"rank", r.rank},     {"ranks", r.ranks},         {"cause", name_of(r.cause)},
                       {"reason", r.reason}, {"started", r.started},     {"written", r.written},
                       {"groups", groups},   {"operations", operations}, {"forgotten", r.forgotten}};
    return json.dump(1, Json::InvalidUtf8::replace) + "\n";
}

FlightRecord read_flight_record(const std::filesystem::path& path) {
    const std::string text = read_file(path.string());
    constexpr const char* kAdvice = "; move the file away to read the records of the other ranks";
    try {
        return record_of(Json::parse(text));
    } catch (const JsonError& error) {
        throw DataError(concat(path.string(), ": damaged at byte ", error.byte, " of ", text.size(),
                               ": required: the JSON of a flight record", kAdvice));
    } catch (const DataError& error) {
        throw DataError(concat(path.string(), ": not a flight record of this program: ", error.what(), kAdvice));
    }
}

FlightRecorder::FlightRecorder() : origin_s_(seconds_now()), started_(unix_time()) {}

double FlightRecorder::now() const { return seconds_now() - origin_s_; }

size_t FlightRecorder::add_group(const std::string& name, const std::vector<int>& ranks) {
    std::lock_guard lock(mutex_);
    const auto generation = std::count_if(groups_.begin(), groups_.end(), [&](const FlightRecord::Group& group) {
        return group.name == name && group.ranks == ranks;
    });
    groups_.push_back({.name = name, .ranks = ranks, .generation = static_cast<int>(generation)});
    return groups_.size() - 1;
}

uint64_t FlightRecorder::start(size_t group, uint64_t sequence, const Summary& operation) {
    std::lock_guard lock(mutex_);
    ring_[count_ % kEntries] = {.group = group, .sequence = sequence, .operation = operation, .start_s = now()};
    if (trace_ != nullptr)
        spans_[count_ % kEntries] = trace_->begin({.activity = Activity::communication,
                                                   .name = name_of(operation.kind),
                                                   .of = name_of(operation.dtype),
                                                   .group = groups_[group].name,
                                                   .number = sequence,
                                                   .bytes = operation.bytes});
    if (!is_message(operation.kind)) groups_[group].begun = sequence;
    return count_++;
}

void FlightRecorder::run(uint64_t number) {
    std::lock_guard lock(mutex_);
    if (number + kEntries >= count_) ring_[number % kEntries].state = State::running;
}

void FlightRecorder::finish(uint64_t number, State state, const std::optional<TimeSpan>& gpu_times) {
    std::lock_guard lock(mutex_);
    if (number + kEntries < count_) return;  // overwritten since
    ring_[number % kEntries].state = state;
    ring_[number % kEntries].end_s = now();
    if (trace_ == nullptr) return;
    const size_t span = spans_[number % kEntries];
    gpu_times ? trace_->end_on_gpu(span, *gpu_times) : trace_->end(span);
}

bool FlightRecorder::traces() const {
    const std::lock_guard lock(mutex_);
    return trace_ != nullptr;
}

void FlightRecorder::trace_into(Tracer* trace) {
    std::lock_guard lock(mutex_);
    trace_ = trace;
    spans_.fill(Tracer::kNone);
}

std::vector<FlightRecorder::Entry> FlightRecorder::last_entries() const {
    std::vector<Entry> all;
    for (uint64_t i = count_ > kEntries ? count_ - kEntries : 0; i < count_; ++i) all.push_back(ring_[i % kEntries]);
    return all;
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
    std::lock_guard lock(mutex_);
    return last_entries();
}

FlightRecord FlightRecorder::record(int rank, int ranks, Cause cause, const std::string& reason) const {
    std::lock_guard lock(mutex_);
    return {.rank = rank,
            .ranks = ranks,
            .cause = cause,
            .reason = reason,
            .started = started_,
            .written = unix_time(),
            .groups = groups_,
            .operations = last_entries(),
            .forgotten = count_ > kEntries ? count_ - kEntries : 0};
}

}  // namespace tutti::comm
