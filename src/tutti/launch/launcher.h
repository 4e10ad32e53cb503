// launch/launcher.h: `tutti launch`: runs the ranks as processes on one or more hosts, with an agent on each. When a
// rank dies, all ranks of its generation end, and the next generation continues from the newest checkpoint, on the
// hosts that are left and in the layout that the caller chooses for them. Hosts that come back are used again.
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
    int ranks = 0;                   // at most the requested number
    std::vector<std::string> words;  // appended to the command line of each rank: --set parallel.tp=2
    std::string text;                // "tp 2 dp 2", for messages
};

// The id of the run in this directory, unique on a host.
std::string job_of(const std::string& out);

struct LaunchedRun {
    std::string out;                 // run directory
    std::vector<std::string> words;  // command line of a rank, program first, without the layout's words
    // The best layout of at most `ranks` ranks, or nothing.
    std::function<std::optional<Layout>(int ranks)> layout;
    std::function<int64_t()> newest_step;           // of a checkpoint on disk; 0: none
    std::function<void(int64_t step)> count_start;  // throws after too many failed starts from this step
    std::function<void()> require_free;             // UsageError while another process trains in the directory
    bool copies_in_memory = false;                  // checkpoint.memory_every > 0
    std::function<void()> remove_traces;  // of starts, from the directory of a run that none of them has begun
};

inline constexpr const char* kLaunchLock = "launch.lock";  // in the run directory; held by the launcher

struct LaunchOptions {
    std::vector<HostLine> hosts;
    int ranks = 1, min_ranks = 1;
    int max_restarts = 3;                   // without a new checkpoint; 0: no restarts
    double grace_s = 25;                    // from a request to stop until ranks are killed
    double silence_s = 15;                  // without a frame of an agent, after which its host is lost
    double grow_after_s = 600;              // until a host that came back is used
    std::string ssh;                        // the command that reaches a host, without the host's name
    std::string program;                    // path of this program, on every host
    std::optional<AgentGroup> agents = {};  // agents connect to the launcher; without: started over ssh
};

// Returns the exit code: 0 done; 75 stopped, with nothing lost; 2, 3, 70 of a rank, which a new start would repeat; 4
// or 5 else. UsageError when another launcher or run has the directory. Call from the main thread.
int launch(const LaunchedRun& run, const LaunchOptions& options, std::ostream& out, std::ostream& err);

}  // namespace tutti::launch
