#include "tutti/comm/processes/group_topology.h"

#include <algorithm>
#include <bit>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::processes {

namespace {

void add_subtrees(const std::vector<int>& host_of, int first, int count, std::vector<Subtree>& forest) {
    const auto begin = host_of.begin() + first, end = begin + count;
    if (std::all_of(begin, end, [&](int host) { return host == *begin; })) {
        forest.push_back({first, count, *begin});
        return;
    }
    const int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2);
    add_subtrees(host_of, first, left, forest);
    add_subtrees(host_of, first + left, count - left, forest);
}

int64_t elements(const Collective& c) {
    switch (c.kind) {
        case Kind::all_reduce:
        case Kind::broadcast:
        case Kind::all_gather: return c.input.numel();
        case Kind::reduce_scatter: return c.output.numel();
        default: return 0;
    }
}

}  // namespace

GroupTopology GroupTopology::of(const std::vector<int>& hosts_of_ranks, int rank) {
    GroupTopology topology;
    std::vector<int> seen;
    for (size_t r = 0; r < hosts_of_ranks.size(); ++r) {
        const auto known = std::find(seen.begin(), seen.end(), hosts_of_ranks[r]);
        const auto host = to_size(known - seen.begin());
        if (known == seen.end()) {
            seen.push_back(hosts_of_ranks[r]);
            topology.members.emplace_back();
        }
        topology.host_of.push_back(static_cast<int>(host));
        topology.position.push_back(static_cast<int>(topology.members[host].size()));
        topology.members[host].push_back(static_cast<int>(r));
        topology.rails = std::max(topology.rails, static_cast<int>(topology.members[host].size()));
    }
    add_subtrees(topology.host_of, 0, topology.ranks(), topology.forest);
    topology.rank = rank;
    topology.host = topology.host_of[to_size(rank)];
    return topology;
}

Chunking::Chunking(const GroupTopology& topology, const Collective& collective, int64_t capacity)
    : topology_(topology),
      by_rank_(collective.kind == Kind::reduce_scatter || collective.kind == Kind::all_gather),
      total_(elements(collective)),
      per_chunk_(by_rank_ ? capacity / topology.ranks() : capacity) {
    check(per_chunk_ > 0, "a group of ", topology.ranks(), " ranks is too large for slots of ", capacity, " elements");
    chunks_ = static_cast<uint64_t>(ceil_div(total_, per_chunk_));
}

Chunk Chunking::chunk(uint64_t index, uint64_t first_number) const {
    const int64_t begin = static_cast<int64_t>(index) * per_chunk_;
    return {first_number + index, begin, std::min(per_chunk_, total_ - begin)};
}

std::vector<ChunkPart> Chunking::parts(const Chunk& chunk) const {
    std::vector<ChunkPart> all;
    if (by_rank_) {
        for (int r = 0; r < topology_.ranks(); ++r) {
            const auto i = to_size(r);
            all.push_back({r, topology_.position[i], topology_.host_of[i], r * chunk.count, chunk.count,
                           r * total_ + chunk.begin});
        }
        return all;
    }
    const int n = topology_.rails * topology_.hosts();
    for (int i = 0; i < n; ++i) {
        const int rail = i / topology_.hosts(), host = i % topology_.hosts();
        const int64_t begin = chunk.count * i / n, end = chunk.count * (i + 1) / n;
        all.push_back({topology_.handler(host, rail), rail, host, begin, end - begin, chunk.begin + begin});
    }
    return all;
}

}  // namespace tutti::comm::processes
