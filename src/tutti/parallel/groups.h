// parallel/groups.h: the mesh of a run, and the groups that it communicates in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/comm/world.h"
#include "tutti/mesh/mesh.h"
#include "tutti/spec/run_spec.h"

namespace tutti::parallel {

struct GroupUsage {
    std::string group;
    comm::Usage usage;
};

// The traffic of one kind of operation in a group.
struct GroupTraffic {
    std::string group;
    std::vector<int> ranks;  // of the group
    comm::Kind operation = comm::Kind::barrier;
    comm::Traffic traffic;
};

// The mesh of a run of `ranks` ranks, dp_shard = -1 filled in; all axes, in the order of mesh::Axis.
mesh::Mesh make_mesh(const spec::RunSpec& run, int ranks);

// `axes` without those of one rank, which have no effect, but "dp" stays "dp": sets that are then equal share a group.
mesh::Axes axes_of_group(const mesh::Mesh& mesh, mesh::Axes axes);

class Groups {
  public:
    // Makes the groups of all ranks and of data parallelism; those of tp, of each axis of cp and of the experts' axes
    // that have several ranks; and that of cp as a whole if both of its axes have several ranks. Collective.
    Groups(comm::World& world, mesh::Mesh mesh);

    const mesh::Mesh& mesh() const { return mesh_; }
    int rank() const { return world_.rank(); }
    int coordinate(mesh::Axes axes) const { return mesh_.coordinate(world_.rank(), axes); }
    // The ranks that differ from this rank along these axes only, in the order of rank: a sum over dp is then the sum
    // over the shards, then over the replicas. Sets that differ only in axes of size 1 share one group. The first call
    // with a set makes the group and is collective over the group.
    comm::Communicator& over(mesh::Axes axes);
    // As above, and over the ranks `pipeline_ranks` along pp, which include this rank; empty: this rank alone.
    comm::Communicator& over(mesh::Axes axes, const std::vector<int>& pipeline_ranks);
    // The group of `sender` (rank 0) and `receiver` (rank 1), positions along pp; this rank is one of them. Collective
    // over both.
    comm::Communicator& channel(const std::string& name, int sender, int receiver);
    comm::Communicator& world() { return *all_.front().ranks; }

    // This rank's use so far of groups of more than one rank, in the order of their creation.
    std::vector<GroupUsage> usage() const;
    // The traffic by kind of operation, for every kind and every group.
    std::vector<GroupTraffic> traffic() const;

  private:
    comm::World& world_;
    mesh::Mesh mesh_;
    struct Group {
        mesh::Axes axes;
        std::vector<int> pipeline_ranks;
        std::unique_ptr<comm::Communicator> ranks;
        bool is_channel = false;
    };
    std::vector<Group> all_;  // that of all ranks first
};

// The ranks over which the experts of a layer are distributed. The first call is collective.
autograd::ExpertParallel expert_parallel_of(Groups& groups);

// The traffic after `before`: now - before, without operations that were not called. Both are of the same groups.
std::vector<GroupTraffic> difference(const std::vector<GroupTraffic>& now, const std::vector<GroupTraffic>& before);

}  // namespace tutti::parallel
