// launch/hosts.h: the hosts of a launch: a file as Open MPI, DeepSpeed and MPICH read it, and the places of ranks.
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

struct HostLine {
    std::string name;     // for ssh
    int slots = 1;        // ranks at most: its devices
    std::string address;  // at which the ranks of other hosts reach it; the name unless the file says another
    std::string rack;     // hosts of one rack may fail together; "": not known
};

// A host on each line: "n1 slots=8", "n1:8" or "n1", and after that addr=ADDRESS and rack=NAME. # begins a comment.
// UsageError, with the line, for anything else, for a host that is named twice and for a file without hosts.
std::vector<HostLine> parse_hosts(const std::string& text, const std::string& origin);

// Whether ranks on the host need no ssh: it is this machine.
bool is_this_host(const std::string& name);

// How many ranks each host gets, when those with `ready` slots fill up in order. The sum is `ranks`, or all slots.
std::vector<int> place(const std::vector<int>& ready, int ranks);

// Which host holds the second copy of each host's state: hosts in pairs, three of an odd number in a ring, so that two
// lost hosts of N lose both copies with probability 1 / (N - 1), where one ring of all has 2 / (N - 1). The halves of
// the hosts in the order of racks are paired: on another rack, where no rack has more than half of them. A host alone
// has none: -1. `racks`: of each host that takes part.
std::vector<int> buddies(const std::vector<std::string>& racks);

}  // namespace tutti::launch
