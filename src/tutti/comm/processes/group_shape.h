// comm/processes/group_shape.h: the division of work in a group, as plain data without communication. GroupShape: which
// ranks share a host, which ranks of different hosts exchange messages, and which partial sums of the tree a host can
// compute alone. Cutting: how a collective is cut into chunks that fit a slot of shared memory, and each chunk into
// parts for different ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/collective.h"

namespace tutti::comm::processes {

// Ranks [first, first + count) of the group: a whole subtree of the tree (tree_reduce.h) on one host.
struct Subtree {
    int first, count, host;
};

struct GroupShape {
    std::vector<int> host_of;               // by rank in the group; hosts are numbered in the order of their first rank
    std::vector<std::vector<int>> members;  // by host: its ranks in the group, ascending
    std::vector<int> position;              // by rank in the group: its place among its host's members
    int rails = 0;                          // members of the largest host
    std::vector<Subtree> forest;            // the largest such subtrees, in the order of ranks
    int rank = 0, host = 0;                 // own

    // hosts_of_ranks: any numbers that are equal on equal hosts, by rank in the group.
    static GroupShape of(const std::vector<int>& hosts_of_ranks, int rank);

    int ranks() const { return static_cast<int>(host_of.size()); }
    int hosts() const { return static_cast<int>(members.size()); }
    // Between hosts, work is divided over rails, so that all ranks of a host send at once: the member on rail l of one
    // host exchanges data with those on rail l of the others. On a host with fewer members than rails some members have
    // several rails.
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

// A range of a chunk. One rank, the owner, reduces the part for all hosts, or holds the part and sends it to all; on
// every other host the handler of the part's rail works with the owner. Every rank therefore finds each part at a rank
// of its own host.
struct Part {
    int owner = 0, rail = 0, host = 0;
    int64_t begin = 0, count = 0;  // elements, in the slot
    int64_t full_begin = 0;        // element of the full tensor (n parts long) where the part begins
};

class Cutting {
  public:
    // `capacity`: elements that fit a slot.
    Cutting(const GroupShape& shape, const Collective& collective, int64_t capacity);

    uint64_t chunks() const { return chunks_; }
    Chunk chunk(uint64_t index, uint64_t first_number) const;
    std::vector<Part> parts(const Chunk& chunk) const;

  private:
    const GroupShape& shape_;
    bool by_rank_;   // part r belongs to rank r: reduce_scatter, all_gather
    int64_t total_;  // elements of the vector, or of a rank's part
    int64_t per_chunk_;
    uint64_t chunks_;
};

}  // namespace tutti::comm::processes
