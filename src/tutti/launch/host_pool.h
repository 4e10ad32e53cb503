// launch/host_pool.h: the hosts of a launch: connects to their agents, receives what these send, and reports hosts that
// become ready or are lost.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/agent_listener.h"
#include "tutti/launch/host.h"
#include "tutti/launch/launcher.h"

namespace tutti::launch {

class HostPool {
  public:
    struct Events {
        std::function<void(size_t host, const Frame& frame)> frame;
        std::function<void(size_t host)> ready, lost;
        std::function<void(const std::string& line)> log;  // a line that ssh or an agent wrote on standard error
    };
    // `copies`: what each agent opens to store copies of the ranks' state, host and launch apart; none: no copies.
    HostPool(const LaunchOptions& options, const std::optional<OpenCopies>& copies, Events events);

    Host& operator[](size_t host) { return hosts_[host]; }
    bool agents_connect() const { return agents_.has_value(); }

    // Waits up to 50 ms for a signal on `signals`, a descriptor, or for an agent; then turn() handles what has come.
    void wait(int signals) const;
    void turn();
    // Lets the agents start the ranks of a generation, placed[i] of them on host i. `common`: what their start frames
    // have in common: host, ranks, environment and copies are added here.
    void start(const Start& common, const std::vector<int>& placed, const std::string& secret_of_copies);
    void send_to_all(Frame::Type type, const std::string& body);
    // Lets all agents end, with this code where they have connected themselves, and waits up to 5 s for them. Agents
    // that end by themselves remove their copies in memory; else their guards do, later.
    void dismiss(int code);

    // By host: its slots if it has been ready for `time`, else 0.
    std::vector<int> ready_slots(Clock::duration time = {}) const;
    // Whether each host is ready, or will not be soon: none is to be connected to, and no lost one may still run ranks.
    bool is_settled() const;
    std::string missing() const;  // "; host n2: its agent has ended" for each host that is not ready
    int64_t copied_step() const;  // the newest step of which a host has had copies; 0: none

  private:
    void connect();
    void admit();
    void name(size_t host);
    void update(size_t host);

    const LaunchOptions& options_;
    Events events_;
    std::optional<AgentListener> agents_;
    std::vector<Host> hosts_;
    std::map<std::string, std::string> logged_;  // the last line of each host
};

}  // namespace tutti::launch
