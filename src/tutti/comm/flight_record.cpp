#include "tutti/comm/flight_record.h"

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/comm/progress.h"

namespace tutti::comm {

namespace {

// The value of an enumeration with this name; its values are 0 ... count - 1.
template <class Enum>
Enum named(const std::string& name, int count) {
    for (int i = 0; i < count; ++i)
        if (name_of(static_cast<Enum>(i)) == name) return static_cast<Enum>(i);
    throw DataError(concat("\"", name, "\" is no word of this program's records"));
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
    if (!under_way(e.state)) json["end_s"] = e.end_s;
    return json;
}

FlightRecord::Entry entry_of(const Json& json, const FlightRecord& record) {
    FlightRecord::Entry e;
    e.group = json.at("in").get<size_t>();
    check<DataError>(e.group < record.groups.size(), "an operation is in group number ", e.group, " of ",
                     record.groups.size());
    e.sequence = json.at("sequence").get<uint64_t>();
    e.operation.kind = named<Kind>(json.at("kind").get<std::string>(), kKinds);
    e.operation.reduce = json.at("reduce").get<std::string>() == "max" ? Reduce::max : Reduce::sum;
    const auto dtype = json.at("dtype").get<std::string>();
    const auto known = dtype_from(dtype);
    check<DataError>(known.has_value(), "\"", dtype, "\" is no type of values");
    e.operation.dtype = *known;
    e.operation.count = json.at("count").get<int64_t>();
    e.operation.peer = json.at("peer").get<int>();
    e.operation.bytes = json.at("bytes").get<int64_t>();
    const auto ranks = static_cast<int>(record.groups[e.group].ranks.size());
    check<DataError>(e.operation.peer >= 0 && e.operation.peer < ranks, "an operation is with rank ", e.operation.peer,
                     " of a group of ", ranks);
    e.state = named<State>(json.at("state").get<std::string>(), 4);
    e.start_s = json.at("start_s").get<double>();
    e.end_s = json.value("end_s", 0.0);
    return e;
}

FlightRecord record_of(const Json& json) {
    FlightRecord r;
    r.rank = json.at("rank").get<int>();
    r.ranks = json.at("ranks").get<int>();
    check<DataError>(r.rank >= 0 && r.rank < r.ranks, "it is of rank ", r.rank, " of ", r.ranks);
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
            check<DataError>(rank >= 0 && rank < r.ranks, "group ", r.groups.back().name, " has a rank ", rank, " of ",
                             r.ranks);
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
    constexpr const char* kAdvice = "; move it away to read the other ranks' without it, as of a rank that left none";
    try {
        return record_of(Json::parse(text));
    } catch (const JsonError& error) {
        throw DataError(concat(path.string(), ": damaged at byte ", error.byte, " of ", text.size(),
                               ": required: the JSON of a flight record", kAdvice));
    } catch (const DataError& error) {
        throw DataError(concat(path.string(), ": not a flight record of this program: ", error.what(), kAdvice));
    }
}

}  // namespace tutti::comm
