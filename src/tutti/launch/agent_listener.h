// launch/agent_listener.h: a launch whose processes srun or Kubernetes has started, one on each host. Process 0 is the
// launcher and listens; the others are agents that connect to it, and reconnect when the connection is lost.
#pragma once

#include <ostream>
#include <string>

#include "tutti/comm/tcp/rendezvous.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

struct AgentGroup {
    comm::tcp::Rendezvous rendezvous;  // where the launcher listens; with the secret of the job
    std::string label;                 // of this launch: agents of another launch with the same secret are rejected
    int agents = 1;                    // including that of the launcher's host
    int number = 0;                    // of this process
    std::string evidence;              // "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4"
    double silence_s = 15;
};

inline constexpr std::chrono::minutes kWaitForOthers{10};  // of the launcher for agents, and of agents for the launcher

// The launcher's side.
class AgentListener {
  public:
    // Makes the secret if the job has none yet. UsageError for a job without a secret, since agents run any command of
    // the launcher. Error when no port is free.
    explicit AgentListener(const AgentGroup& group);
    int fd() const { return listener_.fd(); }  // for poll()
    struct Agent {
        int number = 0;
        std::string address;  // at which other hosts reach its ranks
        Link link;
    };
    // Agents that have connected and proved the secret since the last call. Does not block.
    std::vector<Agent> accept();
    std::string own_address() const;  // of the launcher's host

  private:
    AgentGroup group_;
    comm::tcp::Key key_{};
    comm::tcp::Listener listener_;
};

// The agent's side: connects to the launcher, serves it, and reconnects when the connection is lost. Returns the exit
// code: the launcher's; 75 after a stop signal before there is a connection; 5 when no launcher answers within
// kWaitForOthers, or when the launcher ended without a bye frame. Writes to `err` what it waits for. Call from the main
// thread of a process without other threads.
int serve_launcher(const AgentGroup& group, std::ostream& err);

}  // namespace tutti::launch
