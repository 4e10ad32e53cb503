// launch/hosts.h: the hosts file of a launch, in the formats of Open MPI, DeepSpeed and MPICH, and the placement of
// ranks.
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

struct HostLine {
    std::string name;     // for ssh
    int slots = 1;        // most ranks: the number of its devices
    std::string address;  // at which ranks of other hosts reach it [the name]
    std::string rack;     // hosts of one rack may fail together; "": unknown
};

// A host on each line: "n1 slots=8", "n1:8" or "n1", and after that addr=ADDRESS and rack=NAME. # begins a comment.
// UsageError, with the line, for anything else, for a host that is named twice and for a file without hosts.
std::vector<HostLine> parse_hosts(const std::string& text, const std::string& origin);

// Whether the name is that of this machine, which needs no ssh.
bool is_this_host(const std::string& name);

// The number of ranks on each host, whose `ready` slots are filled in order. The sum is `ranks`, or all slots.
std::vector<int> place(const std::vector<int>& ready, int ranks);

// The host that holds the second copy of each host's state; -1 for a single host. Hosts are paired (three of an odd
// number form a ring), so that losing two of N hosts loses both copies with probability 1 / (N - 1), where one ring of
// all hosts has 2 / (N - 1). The first half of the hosts, sorted by rack, is paired with the second: partners are on
// different racks if no rack has more than half of the hosts. `racks`: of each host that takes part.
std::vector<int> buddies(const std::vector<std::string>& racks);

}  // namespace tutti::launch
