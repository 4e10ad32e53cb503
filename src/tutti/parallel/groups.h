// parallel/groups.h: the groups that a run communicates in, made from the mesh of its config. Below: comm/, mesh/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/world.h"
#include "tutti/spec/run_spec.h"

namespace tutti::parallel {

struct GroupUsage {
    std::string group;
    comm::Usage usage;
};

// Of one kind of operation of a group.
struct GroupTraffic {
    std::string group;
    int size = 1;  // of the group
    comm::Kind operation = comm::Kind::barrier;
    comm::Traffic traffic;
};

struct Groups {
    std::unique_ptr<comm::Communicator> dp_shard;      // ranks that share out one copy of the state
    std::unique_ptr<comm::Communicator> dp_replicate;  // ranks that hold the same part of different copies
    std::unique_ptr<comm::Communicator> dp;            // both: all ranks that see different samples

    // By this rank so far, of the groups of more than one rank, in the order above.
    std::vector<GroupUsage> usage() const;
    // The same by kind of operation, every kind of every group.
    std::vector<GroupTraffic> traffic() const;
};

// What came after `before`: now - before, without operations that were not called. Both are of the same groups.
std::vector<GroupTraffic> difference(const std::vector<GroupTraffic>& now, const std::vector<GroupTraffic>& before);

// The mesh of a run of `ranks` ranks, dp_shard = -1 filled in. The axes in the order of docs/design.md.
mesh::Mesh make_mesh(const spec::ParallelSpec& parallel, int ranks);
// Collective over all ranks of the world.
Groups make_groups(comm::World& world, const mesh::Mesh& mesh);

}  // namespace tutti::parallel
