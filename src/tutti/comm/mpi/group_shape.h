// comm/mpi/group_shape.h: a group's ranks seen by host, as plain data: who works together inside a host, who talks to
// whom between hosts, and which partial sums of the tree a host can make alone. No communication. Below: nothing. Used
// by staged_operation.cpp.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti::comm::mpi {

// Ranks [first, first + count) of the group: a whole subtree of the tree (tree_reduce.h) that lives on one host.
struct Subtree {
    int first, count, host;
};

struct GroupShape {
    std::vector<int> host_of;               // by rank in the group; hosts are numbered in the order of their first rank
    std::vector<std::vector<int>> members;  // by host: its ranks in the group, rising
    std::vector<int> position;              // by rank in the group: its place among its host's members
    int lanes = 0;                          // members of the largest host
    std::vector<Subtree> forest;            // the largest such subtrees, in the order of ranks
    int rank = 0, host = 0;                 // own

    // hosts_of_ranks: any numbers that are equal on equal hosts, by rank in the group.
    static GroupShape of(const std::vector<int>& hosts_of_ranks, int rank);

    int ranks() const { return static_cast<int>(host_of.size()); }
    int hosts() const { return static_cast<int>(members.size()); }
    // Between hosts, work is cut into lanes, so that all ranks of a host talk at once: lane l of one host talks to lane
    // l of the others. A host with fewer members than lanes gives some members several.
    int handler(int of_host, int lane) const {
        const auto& m = members[static_cast<size_t>(of_host)];
        return m[static_cast<size_t>(lane) % m.size()];
    }
    const std::vector<int>& locals() const { return members[static_cast<size_t>(host)]; }
    std::vector<Subtree> forest_of(int of_host) const;
};

}  // namespace tutti::comm::mpi
