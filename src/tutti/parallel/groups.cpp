#include "tutti/parallel/groups.h"

#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/spec/rules.h"

namespace tutti::parallel {

using mesh::Axis;

mesh::Mesh make_mesh(const spec::RunSpec& run, int ranks) {
    const spec::ParallelSpec& p = run.parallel;
    check<UsageError>(spec::axes_fill_ranks(p, ranks), "the axes of [parallel] do not make ", ranks, " ranks");
    // Ranks beyond the number of key and value heads hold copies of these heads.
    const int64_t kv_heads = run.model.kv_heads;
    const int64_t copies = kv_heads > 0 && p.tp > kv_heads && p.tp % kv_heads == 0 ? p.tp / kv_heads : 1;
    const auto size = [](int64_t n) { return static_cast<int>(n); };
    const int64_t shards = spec::data_parallel_shards(p, ranks), experts = p.ep * p.etp;
    check<UsageError>(p.tp * p.cp * shards % experts == 0, "[parallel] ep * etp = ", p.ep, " * ", p.etp,
                      ": must divide tp * cp * dp_shard = ", p.tp, " * ", p.cp, " * ", shards);
    return mesh::Mesh({{Axis::tp_copy, size(copies)},
                       {Axis::tp_part, size(p.tp / copies)},
                       {Axis::cp_ulysses, size(spec::ulysses_ranks(p))},
                       {Axis::cp_ring, size(p.cp / spec::ulysses_ranks(p))},
                       {Axis::dp_shard, size(shards)},
                       {Axis::dp_replicate, size(p.dp_replicate)},
                       {Axis::pp, size(p.pp)}},
                      {{Axis::etp, size(p.etp)},
                       {Axis::ep, size(p.ep)},
                       {Axis::edp, size(p.tp * p.cp * shards / experts)},
                       {Axis::dp_replicate, size(p.dp_replicate)},
                       {Axis::pp, size(p.pp)}});
}

autograd::ExpertParallel expert_parallel_of(Groups& groups) {
    const mesh::Mesh& mesh = groups.mesh();
    if (mesh.second_axes().empty() || mesh.size(mesh::kExpertParallel) == 1) return {};
    return {&groups.over(mesh::kExpertParallel), mesh.size(Axis::etp)};
}

Groups::Groups(comm::World& world, mesh::Mesh mesh) : world_(world), mesh_(std::move(mesh)) {
    mesh::Axes everything;
    for (const mesh::AxisSize& a : mesh_.axes()) everything = everything | a.axis;
    all_.push_back({everything, {}, world.everyone("world")});
    for (const mesh::Axes axes : {mesh::Axes(Axis::dp_shard), mesh::Axes(Axis::dp_replicate), mesh::kDp}) over(axes);
    for (const mesh::Axes axes : {mesh::kTp, mesh::Axes(Axis::cp_ulysses), mesh::Axes(Axis::cp_ring)})
        if (mesh_.size(axes) > 1) over(axes);
    expert_parallel_of(*this);  // makes the group of experts
    if (mesh_.size(Axis::cp_ulysses) > 1 && mesh_.size(Axis::cp_ring) > 1) over(mesh::kCp);
}

comm::Communicator& Groups::over(mesh::Axes axes) { return over(axes, {}); }

mesh::Axes axes_of_group(const mesh::Mesh& mesh, mesh::Axes axes) {
    mesh::Axes several = axes;
    for (const mesh::Axes whole : {mesh::kTp, mesh::kCp, mesh::kDp, mesh::kExpertParallel})
        for (int i = 0; i < mesh::kAxes; ++i) {
            const mesh::Axes axis = static_cast<Axis>(i);
            if (whole.contains(axis) && axes.contains(axis) && !axes.contains(whole) && mesh.size(axis) == 1)
                several = several - axis;
        }
    return several;
}

comm::Communicator& Groups::over(mesh::Axes axes, const std::vector<int>& pipeline_ranks) {
    const mesh::Axes several = axes_of_group(mesh_, axes);
    if (!several.empty() || !pipeline_ranks.empty()) axes = several;
    for (const Group& group : all_)
        if (!group.is_channel && group.axes == axes && group.pipeline_ranks == pipeline_ranks) return *group.ranks;
    std::vector<int> ranks = mesh_.group(world_.rank(), axes | (pipeline_ranks.empty() ? mesh::Axes() : Axis::pp));
    std::string name = mesh::name_of(axes);
    if (!pipeline_ranks.empty()) {
        std::erase_if(ranks, [&](int rank) {
            return std::find(pipeline_ranks.begin(), pipeline_ranks.end(), mesh_.coordinate(rank, Axis::pp)) ==
                   pipeline_ranks.end();
        });
        name += name.empty() ? "pp" : "+pp";
        for (const int rank : pipeline_ranks) name += concat(rank == pipeline_ranks.front() ? " " : ",", rank);
    }
    return *all_.emplace_back(Group{axes, pipeline_ranks, world_.group(name, ranks)}).ranks;
}

comm::Communicator& Groups::channel(const std::string& name, int sender, int receiver) {
    const std::vector<int> along = mesh_.group(world_.rank(), Axis::pp);
    const std::vector<int> ranks = {along.at(to_size(sender)), along.at(to_size(receiver))};
    return *all_.emplace_back(Group{.ranks = world_.channel(name, ranks), .is_channel = true}).ranks;
}

std::vector<GroupUsage> Groups::usage() const {
    std::vector<GroupUsage> all;
    for (const Group& group : all_)
        if (group.ranks->size() > 1) all.push_back({group.ranks->name(), group.ranks->usage()});
    return all;
}

std::vector<GroupTraffic> Groups::traffic() const {
    std::vector<GroupTraffic> all;
    for (const Group& of : all_) {
        const comm::Communicator* group = of.ranks.get();
        if (group->size() == 1) continue;
        for (int k = 0; k < comm::kKinds; ++k) {
            const auto kind = static_cast<comm::Kind>(k);
            all.push_back({group->name(), group->ranks(), kind, group->traffic(kind)});
        }
    }
    return all;
}

std::vector<GroupTraffic> difference(const std::vector<GroupTraffic>& now, const std::vector<GroupTraffic>& before) {
    check(now.size() == before.size(), "traffic of ", now.size(), " and of ", before.size(), " operations of groups");
    std::vector<GroupTraffic> all;
    for (size_t i = 0; i < now.size(); ++i) {
        GroupTraffic d = now[i];
        d.traffic.calls -= before[i].traffic.calls;
        d.traffic.bytes -= before[i].traffic.bytes;
        d.traffic.sent -= before[i].traffic.sent;
        if (d.traffic.calls > 0) all.push_back(d);
    }
    return all;
}

}  // namespace tutti::parallel
