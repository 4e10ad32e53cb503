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

// Of one kind of operation of a group.
struct GroupTraffic {
    std::string group;
    std::vector<int> ranks;  // of the group
    comm::Kind operation = comm::Kind::barrier;
    comm::Traffic traffic;
};

// The mesh of a run of `ranks` ranks, dp_shard = -1 filled in; all axes, in the order of mesh::Axis.
mesh::Mesh make_mesh(const spec::RunSpec& run, int ranks);

class Groups {
  public:
    // Makes the groups of all ranks, of data parallelism, of tp, the axes of cp and experts where they have several
    // ranks, and of cp where both of its axes do. Collective.
    Groups(comm::World& world, mesh::Mesh mesh);

    const mesh::Mesh& mesh() const { return mesh_; }
    int coordinate(mesh::Axes axes) const { return mesh_.coordinate(world_.rank(), axes); }
    // The ranks that differ from this one along these axes only, in the order of rank: a sum over dp is then the sum
    // over its shards, and over the replicas. Sets that differ in axes of one rank have one group. The first call with
    // a set makes the group and is collective over it.
    comm::Communicator& over(mesh::Axes axes);
    // The same, and along pp those of `pipeline_ranks`, this rank among them; none: this rank alone.
    comm::Communicator& over(mesh::Axes axes, const std::vector<int>& pipeline_ranks);
    // From rank `sender` along pp to rank `receiver`, of which this is one: ranks 0 and 1 of the group. Collective over
    // both.
    comm::Communicator& channel(const std::string& name, int sender, int receiver);
    comm::Communicator& world() { return *all_.front().ranks; }

    // By this rank so far, of the groups of more than one rank, in the order in which they were made.
    std::vector<GroupUsage> usage() const;
    // The same by kind of operation, every kind of every group.
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

// The ranks that the experts of a layer are spread over. Collective at first.
autograd::ExpertParallel expert_parallel_of(Groups& groups);

// What came after `before`: now - before, without operations that were not called. Both are of the same groups.
std::vector<GroupTraffic> difference(const std::vector<GroupTraffic>& now, const std::vector<GroupTraffic>& before);

}  // namespace tutti::parallel
