// report/run_events.h: what happened to a run of `tutti launch`: events.jsonl of the run directory, one object a line,
// written by the launcher, and by rank 0 where the ranks have continued from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::report {

struct RunEvent {
    double time = 0;   // seconds of the system's clock
    std::string kind;  // kStarted, kResumed, kDied, kHost, kEnded
    int64_t generation = 0;
    int ranks = 0;      // of the generation
    std::string text;   // "5 of 8 ranks: dp 5"; "rank 3 on host n2 was killed by signal 9 (Killed)"
    int64_t step = -1;  // kResumed: the last step of the state that was loaded; 0: the start
};
inline constexpr const char *kStarted = "started", *kResumed = "resumed", *kDied = "died", *kHost = "host",
                            *kEnded = "ended";

inline constexpr const char* kEventsFile = "events.jsonl";  // in the run directory

// Appends a line. False when the file cannot be written.
bool append_event(const std::string& run_directory, const RunEvent& event);
// All complete lines; damaged ones are left out. Nothing where there is no file.
std::vector<RunEvent> read_events(const std::string& run_directory);

}  // namespace tutti::report
