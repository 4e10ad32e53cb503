// launch/launcher.h: `tutti launch`: a run as processes on one host or several, through an agent on each. The death of
// any rank ends all ranks of the generation; new processes continue from the newest checkpoint, on the hosts that are
// left, in the layout that the caller chooses for them, and on more again when hosts come back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tutti/launch/agent_listener.h"
#include "tutti/launch/hosts.h"

namespace tutti::launch {

struct Layout {
    int ranks = 0;                   // at most as many as were asked for
    std::vector<std::string> words;  // for the command line of each rank: --set parallel.tp=2
    std::string text;                // for people: "tp 2 dp 2"
};

// Names the run in this directory among those of a host.
std::string job_of(const std::string& out);

// What the launcher must know of a run.
struct LaunchedRun {
    std::string out;                 // run directory
    std::vector<std::string> words;  // command line of a rank, program first, without the layout's words
    // The best layout of at most so many ranks, or nothing.
    std::function<std::optional<Layout>(int ranks)> layout;
    std::function<int64_t()> newest_step;           // of a checkpoint on disk; 0: none
    std::function<void(int64_t step)> count_start;  // throws when too many starts from this step have died
    std::function<void()> require_free;             // UsageError while another process trains in the directory
    bool copies_in_memory = false;                  // in memory (checkpoint.memory_every)
};

struct LaunchOptions {
    std::vector<HostLine> hosts;
    int ranks = 1, min_ranks = 1;
    int max_restarts = 3;                   // without a new checkpoint; 0: none at all
    double grace_s = 25;                    // from a request to stop until ranks are killed
    double silence_s = 15;                  // without a word of an agent: its host is lost
    double grow_after_s = 600;              // a host that came back is used after this
    std::string ssh;                        // command that reaches a host: words that end before its name
    std::string program;                    // this program, on every host
    std::optional<AgentGroup> agents = {};  // agents of all hosts but the first dial in; without: ssh reaches them
};

// Returns the exit code: 0 done; 75 stopped, with nothing lost; 2, 3, 70 of a rank, which a new start would repeat; 4
// or 5 else. UsageError when another launcher or run has the directory. Call from the main thread.
int launch(const LaunchedRun& run, const LaunchOptions& options, std::ostream& out, std::ostream& err);

}  // namespace tutti::launch
