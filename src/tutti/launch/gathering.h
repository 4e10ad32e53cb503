// launch/gathering.h: a launch whose processes another launcher has started, one a host: srun, or pods. The one of
// number 0 is the launcher and keeps a door open; the others are agents that dial in, and dial again when the
// connection is lost.
#pragma once

#include <optional>
#include <ostream>
#include <string>

#include "tutti/comm/tcp/meeting.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

struct Gathering {
    comm::tcp::Meeting meeting;  // where the launcher listens; with the secret of the job
    std::string label;           // of this launch: agents of another one with the same secret are not let in
    int agents = 1;              // with the launcher's own
    int number = 0;              // of this process
    std::string evidence;        // "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4"
    double silence_s = 15;
};

inline constexpr std::chrono::minutes kWaitForOthers{10};  // of the launcher for agents, and of these for it

// The launcher's side.
class Entrance {
  public:
    // Makes the secret if the job has none yet. UsageError for a job without a secret: agents run what the launcher
    // says. Error when no port is free.
    explicit Entrance(const Gathering& gathering);
    int fd() const { return door_.fd(); }  // for poll()
    struct Guest {
        int number = 0;
        std::string address;  // at which other hosts reach its ranks
        Link link;
    };
    // Agents that have proved themselves since; never waits.
    std::vector<Guest> look();
    // The same of the launcher's own host.
    std::string own_address() const;

  private:
    Gathering gathering_;
    comm::tcp::Key key_{};
    comm::tcp::Door door_;
};

// The agent's side: finds the launcher, serves it, and finds it again when the connection is lost. Returns the exit
// code: the launcher's; 75 when this process is asked to stop before there is a launcher; 5 when there is none within
// kWaitForOthers, or it has ended without a word. Says on `err` for what it waits. Call from the main thread of a
// process without other threads.
int attend(const Gathering& gathering, std::ostream& err);

}  // namespace tutti::launch
