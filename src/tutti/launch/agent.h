// launch/agent.h: the agent of a host: starts the ranks that `tutti launch` requests, forwards their output and exit
// codes, and ensures that no rank outlives the agent or the launcher.
//
//   bye from the launcher, or the connection closes   stop signal to the ranks; killed after `grace_s`
//   no frame for `silence_s`                          ranks are killed at once; the launcher relies on that
//   the agent is killed                               the kernel kills its ranks (PR_SET_PDEATHSIG)
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/launch/copy_store.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

// {"version", "digest" of the program}, which must be the same on both sides. A hello frame has these and the "name" of
// the host.
Json identity_of_program();
// The body of an open_copies frame. The agent answers with a copies_opened frame {"directory", "port", "problem"}.
std::string to_body(const OpenCopies& open);
OpenCopies read_open_copies(std::string_view body);

// The body of a start frame.
struct Start {
    std::string job, host;  // identify an agent: an earlier one of the same job and host must have ended
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

// The body of a bye frame: the exit code of the agent.
struct Bye {
    int code = 0;
    std::string why;  // "": the launcher ends with the same code
};
std::string to_body(const Bye& bye);

// Serves a launcher until the link is closed and all ranks have ended. Returns the bye frame, if one came. Call from
// the main thread of a process without other threads.
std::optional<Bye> serve(Link link);

}  // namespace tutti::launch
