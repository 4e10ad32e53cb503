// launch/agent.h: the agent of a host: starts the ranks that `tutti launch` asks for, passes on their output and how
// they ended, and lets none of them outlive it or the launcher.
//
//   the launcher says bye, or the connection closes   stop signal to the ranks; killed after `grace`
//   nothing heard for `silence`                       killed at once: the launcher counts on that
//   the agent is killed                               the system kills its ranks (PR_SET_PDEATHSIG)
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/comm/tcp/file_service.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

// What both sides must have in common, and what a hello frame says, with the "name" of the host: {"version", "digest"
// of the program}.
Json identity_of_program();
// The body of an open_copies frame: open a store for copies of the ranks' state (copy_store.h), and say where in a
// copies_opened frame {"directory", "port", "problem"}.
struct OpenCopies {
    std::string job, host;  // as of Start
    std::string launch;     // names the start of the launcher
    std::string root;       // a tmpfs
    std::string secret;     // of the file servers of all agents; "": one host
    double silence_s = 15;
};
std::string to_body(const OpenCopies& open);
OpenCopies read_open_copies(std::string_view body);

// The body of a start frame.
struct Start {
    std::string job, host;  // names one agent: another one of the same job and host must have ended before
    int64_t generation = 0;
    double silence_s = 15, grace_s = 15;
    std::string directory;                           // of the ranks
    std::vector<std::string> words;                  // of a rank: the program and its arguments
    std::map<std::string, std::string> environment;  // of all ranks
    struct Rank {
        int rank = 0;
        std::map<std::string, std::string> environment;
    };
    std::vector<Rank> ranks;
    std::optional<comm::tcp::CopyPlaces::Peer> source = {};  // the host whose copies this one fetches
};
std::string to_body(const Start& start);
Start read_start(std::string_view body);

// The body of a bye frame: the agent is to end with this code.
struct Bye {
    int code = 0;
    std::string why;  // "": the launcher itself ends with that code
};
std::string to_body(const Bye& bye);

// Serves a launcher until the link closes and no rank is left; returns its last word, if there was one. Call from the
// main thread of a process without other threads.
std::optional<Bye> serve(Link link);

}  // namespace tutti::launch
