#include "tutti/parallel/groups.h"

#include "tutti/spec/validate.h"

namespace tutti::parallel {

mesh::Mesh make_mesh(const spec::ParallelSpec& parallel, int ranks) {
    const int64_t dp = spec::data_parallel_ranks(parallel, ranks);
    check<UsageError>(dp >= 1 && dp * parallel.tp * parallel.cp * parallel.pp == ranks,
                      "the axes of [parallel] do not make ", ranks, " ranks");
    const auto size = [](int64_t n) { return static_cast<int>(n); };
    return mesh::Mesh({{"tp", size(parallel.tp)},
                       {"cp", size(parallel.cp)},
                       {"dp_shard", size(spec::data_parallel_shards(parallel, ranks))},
                       {"dp_replicate", size(parallel.dp_replicate)},
                       {"pp", size(parallel.pp)}});
}

std::vector<GroupUsage> Groups::usage() const {
    std::vector<GroupUsage> all;
    for (const auto* group : {dp_shard.get(), dp_replicate.get(), dp.get()})
        if (group->size() > 1) all.push_back({group->name(), group->usage()});
    return all;
}

std::vector<GroupTraffic> Groups::traffic() const {
    std::vector<GroupTraffic> all;
    for (const auto* group : {dp_shard.get(), dp_replicate.get(), dp.get()}) {
        if (group->size() == 1) continue;
        for (int k = 0; k < comm::kKinds; ++k) {
            const auto kind = static_cast<comm::Kind>(k);
            all.push_back({group->name(), group->size(), kind, group->traffic(kind)});
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

Groups make_groups(comm::World& world, const mesh::Mesh& mesh) {
    Groups groups;
    groups.dp_shard = world.group(mesh, "dp_shard");
    groups.dp_replicate = world.group(mesh, "dp_replicate");
    std::vector<int> ranks;  // dp_shard innermost: a flat sum over dp is the sum over shards, then over replicas
    for (int replica : groups.dp_replicate->ranks())
        for (int rank : mesh.group(replica, "dp_shard")) ranks.push_back(rank);
    groups.dp = world.group("dp", ranks);
    return groups;
}

}  // namespace tutti::parallel
