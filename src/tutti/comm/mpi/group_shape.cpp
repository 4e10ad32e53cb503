#include "tutti/comm/mpi/group_shape.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace tutti::comm::mpi {

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

}  // namespace

GroupShape GroupShape::of(const std::vector<int>& hosts_of_ranks, int rank) {
    GroupShape shape;
    std::vector<int> seen;
    for (size_t r = 0; r < hosts_of_ranks.size(); ++r) {
        const auto known = std::find(seen.begin(), seen.end(), hosts_of_ranks[r]);
        const auto host = static_cast<size_t>(known - seen.begin());
        if (known == seen.end()) {
            seen.push_back(hosts_of_ranks[r]);
            shape.members.emplace_back();
        }
        shape.host_of.push_back(static_cast<int>(host));
        shape.position.push_back(static_cast<int>(shape.members[host].size()));
        shape.members[host].push_back(static_cast<int>(r));
        shape.lanes = std::max(shape.lanes, static_cast<int>(shape.members[host].size()));
    }
    add_subtrees(shape.host_of, 0, shape.ranks(), shape.forest);
    shape.rank = rank;
    shape.host = shape.host_of[static_cast<size_t>(rank)];
    return shape;
}

std::vector<Subtree> GroupShape::forest_of(int of_host) const {
    std::vector<Subtree> own;
    std::copy_if(forest.begin(), forest.end(), std::back_inserter(own),
                 [&](const Subtree& t) { return t.host == of_host; });
    return own;
}

}  // namespace tutti::comm::mpi
