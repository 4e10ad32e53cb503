#include "tutti/comm/processes/group_shape.h"

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

GroupShape GroupShape::of(const std::vector<int>& hosts_of_ranks, int rank) {
    GroupShape shape;
    std::vector<int> seen;
    for (size_t r = 0; r < hosts_of_ranks.size(); ++r) {
        const auto known = std::find(seen.begin(), seen.end(), hosts_of_ranks[r]);
        const auto host = to_size(known - seen.begin());
        if (known == seen.end()) {
            seen.push_back(hosts_of_ranks[r]);
            shape.members.emplace_back();
        }
        shape.host_of.push_back(static_cast<int>(host));
        shape.position.push_back(static_cast<int>(shape.members[host].size()));
        shape.members[host].push_back(static_cast<int>(r));
        shape.rails = std::max(shape.rails, static_cast<int>(shape.members[host].size()));
    }
    add_subtrees(shape.host_of, 0, shape.ranks(), shape.forest);
    shape.rank = rank;
    shape.host = shape.host_of[to_size(rank)];
    return shape;
}

Cutting::Cutting(const GroupShape& shape, const Collective& collective, int64_t capacity)
    : shape_(shape),
      by_rank_(collective.kind == Kind::reduce_scatter || collective.kind == Kind::all_gather),
      total_(elements(collective)),
      per_chunk_(by_rank_ ? capacity / shape.ranks() : capacity) {
    check(per_chunk_ > 0, "a group of ", shape.ranks(), " ranks is too large for slots of ", capacity, " elements");
    chunks_ = static_cast<uint64_t>(ceil_div(total_, per_chunk_));
}

Chunk Cutting::chunk(uint64_t index, uint64_t first_number) const {
    const int64_t begin = static_cast<int64_t>(index) * per_chunk_;
    return {first_number + index, begin, std::min(per_chunk_, total_ - begin)};
}

std::vector<Part> Cutting::parts(const Chunk& chunk) const {
    std::vector<Part> all;
    if (by_rank_) {
        for (int r = 0; r < shape_.ranks(); ++r) {
            const auto i = to_size(r);
            all.push_back(
                {r, shape_.position[i], shape_.host_of[i], r * chunk.count, chunk.count, r * total_ + chunk.begin});
        }
        return all;
    }
    const int n = shape_.rails * shape_.hosts();
    for (int i = 0; i < n; ++i) {
        const int rail = i / shape_.hosts(), host = i % shape_.hosts();
        const int64_t begin = chunk.count * i / n, end = chunk.count * (i + 1) / n;
        all.push_back({shape_.handler(host, rail), rail, host, begin, end - begin, chunk.begin + begin});
    }
    return all;
}

}  // namespace tutti::comm::processes
