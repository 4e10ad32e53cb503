// cli/flight.cpp: `tutti report --flight DIR`: which rank of a failed run went another way first, in words or as JSON.
// The finding is diagnose/flight_findings.h's.
#include <algorithm>
#include <ctime>
#include <iomanip>
#include <sstream>

#include "tutti/base/json.h"
#include "tutti/cli/commands.h"
#include "tutti/diagnose/flight_findings.h"

namespace tutti::cli {

namespace {

using diagnose::last_operation;

std::string time_text(double unix_time) {
    const auto seconds = static_cast<std::time_t>(unix_time);
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    std::ostringstream text;
    text << std::put_time(&utc, "%Y-%m-%d %H:%M:%S UTC");
    return text.str();
}

std::string_view words_of(comm::Cause cause) {
    switch (cause) {
        case comm::Cause::failed: return "failed by itself";
        case comm::Cause::timed_out: return "waited too long";
        case comm::Cause::told: return "was stopped";
    }
    return "?";
}

Json describe(const diagnose::FlightReading& reading) {
    Json findings = Json::array(), stood = Json::array();
    for (const diagnose::FlightFinding& f : reading.findings) {
        Json finding = {{"finding", name_of(f.kind)}, {"ranks", f.ranks}};
        if (!f.group.empty()) finding.update({{"group", f.group}, {"sequence", f.sequence}});
        finding["text"] = f.text;
        findings.push_back(finding);
    }
    for (const comm::FlightRecord& r : reading.records) {
        Json groups = Json::object();
        for (const auto& g : r.groups) groups[g.name] = g.begun;
        stood.push_back({{"rank", r.rank},
                         {"cause", name_of(r.cause)},
                         {"reason", r.reason},
                         {"written", r.written},
                         {"last", last_operation(r)},
                         {"begun", groups}});
    }
    return {{"ranks", reading.ranks},
            {"missing", reading.missing},
            {"left_out", reading.left_out},
            {"findings", findings},
            {"records", stood}};
}

}  // namespace

int report_flight(const std::string& directory, bool json, const Io& io) {
    const diagnose::FlightReading reading = diagnose::read_flight(directory);
    if (json) {
        io.out << describe(reading).dump(2, Json::InvalidUtf8::replace) << '\n';
        return 0;
    }
    double written = 0;
    for (const comm::FlightRecord& r : reading.records) written = std::max(written, r.written);
    io.out << "records of " << reading.records.size() << " of " << reading.ranks << " ranks, " << time_text(written)
           << '\n';
    for (const diagnose::FlightFinding& finding : reading.findings)
        io.out << (&finding == &reading.findings.front() ? "=> " : "   then: ") << finding.text << '\n';
    for (const comm::FlightRecord& r : reading.records) {
        io.out << "\nrank " << r.rank << " " << words_of(r.cause) << ": " << r.reason
               << "\n  last: " << last_operation(r) << "\n  begun:";
        for (const auto& g : r.groups) io.out << (&g == &r.groups.front() ? " " : ", ") << g.name << " " << g.begun;
        io.out << '\n';
    }
    for (const std::string& name : reading.left_out)
        io.err << "tutti: note: " << name << " is of an earlier session of the run and was left out\n";
    return 0;
}

}  // namespace tutti::cli
