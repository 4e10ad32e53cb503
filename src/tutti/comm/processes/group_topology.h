// comm/processes/group_topology.h: how a collective is divided over hosts and ranks, as plain data without
// communication. GroupTopology: the hosts of a group's ranks, the pairs of ranks that exchange data between hosts, and
// the subtrees of the reduction that a host sums alone. Chunking: the chunks of a collective, each of which fits a slot
// of shared memory, and the parts of a chunk that different ranks reduce.
#pragma once

#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/collective.h"

namespace tutti::comm::processes {

// Ranks [first, first + count) of the group, all on one host: a whole subtree of the reduction (tree_reduce.h).
struct Subtree {
    int first, count, host;
};

struct GroupTopology {
    std::vector<int> host_of;               // by rank in the group; hosts are numbered in the order of their first rank
    std::vector<std::vector<int>> members;  // by host: its ranks in the group, ascending
    std::vector<int> position;              // by rank in the group: its index among its host's members
    int rails = 0;                          // members of the largest host
    std::vector<Subtree> forest;            // the largest subtrees that lie on one host, in the order of ranks
    int rank = 0, host = 0;                 // own

    // `hosts_of_ranks`: any numbers that are equal for ranks of one host, by rank in the group.
    static GroupTopology of(const std::vector<int>& hosts_of_ranks, int rank);

    int ranks() const { return static_cast<int>(host_of.size()); }
    int hosts() const { return static_cast<int>(members.size()); }
    // Transfers between hosts are divided over rails, so that all ranks of a host send at once: the handler of rail l
    // on one host exchanges data with the handlers of rail l on the others. On a host with fewer members than rails, a
    // member handles several rails.
    int handler(int of_host, int rail) const {
        const auto& m = members[to_size(of_host)];
        return m[to_size(rail) % m.size()];
    }
    const std::vector<int>& locals() const { return members[to_size(host)]; }
};

struct Chunk {
    uint64_t number = 0;  // over all operations of the group
    int64_t begin = 0;    // in elements: of the whole vector, or of each rank's part of it
    int64_t count = 0;
};

// A range of a chunk. Its owner reduces the part, or holds and broadcasts it. On every other host, the handler of the
// part's rail exchanges data with the owner, so every rank finds each part at a rank of its own host.
struct ChunkPart {
    int owner = 0, rail = 0, host = 0;
    int64_t begin = 0, count = 0;  // elements, in the slot
    int64_t full_begin = 0;        // the part's first element in the full tensor (n parts long)
};

class Chunking {
  public:
    // `capacity`: elements of a slot.
    Chunking(const GroupTopology& topology, const Collective& collective, int64_t capacity);

    uint64_t chunks() const { return chunks_; }
    Chunk chunk(uint64_t index, uint64_t first_number) const;
    std::vector<ChunkPart> parts(const Chunk& chunk) const;

  private:
    const GroupTopology& topology_;
    bool by_rank_;   // part r belongs to rank r: reduce_scatter, all_gather
    int64_t total_;  // elements of the vector, or of a rank's part
    int64_t per_chunk_;
    uint64_t chunks_;
};

}  // namespace tutti::comm::processes
