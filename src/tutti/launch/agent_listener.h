// launch/agent_listener.h: a launch whose processes another launcher has started, one a host: srun, or pods. Process 0
// is the launcher and listens; the others are agents that connect to it, and connect again when the connection is lost.
#pragma once

#include <optional>
#include <ostream>
#include <string>

#include "tutti/comm/tcp/rendezvous.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

struct AgentGroup {
    comm::tcp::Rendezvous rendezvous;  // where the launcher listens; with the secret of the job
    std::string label;                 // of this launch: agents of another one with the same secret are not let in
    int agents = 1;                    // with the launcher's own
    int number = 0;                    // of this process
    std::string evidence;              // "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4"
    double silence_s = 15;
};

inline constexpr std::chrono::minutes kWaitForOthers{10};  // of the launcher for agents, and of these for it

// The launcher's side.
class AgentListener {
  public:
    // Makes the secret if the job has none yet. UsageError for a job without a secret: agents run what the launcher
    // says. Error when no port is free.
    explicit AgentListener(const AgentGroup& group);
    int fd() const { return listener_.fd(); }  // for poll()
    struct Agent {
        int number = 0;
        std::string address;  // at which other hosts reach its ranks
        Link link;
    };
    // Agents that have connected and proved themselves since the last call; never waits.
    std::vector<Agent> accept();
    // The same of the launcher's own host.
    std::string own_address() const;

  private:
    AgentGroup group_;
    comm::tcp::Key key_{};
    comm::tcp::Listener listener_;
};

// The agent's side: finds the launcher, serves it, and finds it again when the connection is lost. Returns the exit
// code: the launcher's; 75 when this process is asked to stop before there is a launcher; 5 when there is none within
// kWaitForOthers, or it has ended without a word. Says on `err` for what it waits. Call from the main thread of a
// process without other threads.
int serve_launcher(const AgentGroup& group, std::ostream& err);

}  // namespace tutti::launch
