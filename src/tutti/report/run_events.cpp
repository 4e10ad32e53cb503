#include "tutti/report/run_events.h"

#include <fstream>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::report {

namespace {

std::string events_file(const std::string& run_directory) { return concat(run_directory, "/", kEventsFile); }

}  // namespace

bool append_event(const std::string& run_directory, const RunEvent& e) {
    std::ofstream out(events_file(run_directory), std::ios::app);
    Json line = {
        {"time", e.time}, {"event", e.kind}, {"generation", e.generation}, {"ranks", e.ranks}, {"text", e.text}};
    if (e.step >= 0) line["step"] = e.step;
    out << line.dump() + "\n" << std::flush;
    return out.good();
}

std::vector<RunEvent> read_events(const std::string& run_directory) {
    std::vector<RunEvent> events;
    std::istringstream lines(read_file_if_there(events_file(run_directory)).value_or(""));
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
        const std::optional<Json> json = Json::try_parse(line);
        if (!json || !json->is_object()) continue;
        try {
            events.push_back({json->at("time").get<double>(), json->at("event").text(),
                              json->at("generation").get<int64_t>(), json->at("ranks").get<int>(),
                              json->at("text").text(), json->value("step", int64_t{-1})});
        } catch (const DataError&) {  // of another version
        }
    }
    return events;
}

}  // namespace tutti::report
