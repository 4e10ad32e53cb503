#include <algorithm>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/rehearsal/card.h"

namespace tutti::rehearsal {

std::string ranks_text(const std::vector<int>& ranks) {
    const size_t n = ranks.size();
    const int distance = n > 1 ? ranks[1] - ranks[0] : 1;
    bool equal = n > 2;
    for (size_t i = 1; i < n; ++i) equal = equal && ranks[i] - ranks[i - 1] == distance;
    if (equal && distance == 1) return concat(ranks.front(), " to ", ranks.back());
    if (equal && n > 4) return concat(ranks[0], ", ", ranks[1], ", ..., ", ranks.back());
    return joined(ranks);
}

std::string placement_warning(const mesh::Mesh& mesh, const std::vector<std::string>& hosts, int64_t sent) {
    check(static_cast<int>(hosts.size()) == mesh.size(), "hosts of ", hosts.size(), " ranks for a mesh of ",
          mesh.size());
    std::map<std::string, int> ranks_of_host;
    for (const std::string& host : hosts) ++ranks_of_host[host];
    int largest = 0;
    for (const auto& [host, ranks] : ranks_of_host) largest = std::max(largest, ranks);
    for (int rank = 0; rank < mesh.size(); ++rank) {
        const std::vector<int> group = mesh.group(rank, mesh::kTp);
        std::set<std::string> of_group;
        for (const int r : group) of_group.insert(hosts[to_size(r)]);
        if (of_group.size() == 1) continue;
        const int tp = mesh.size(mesh::kTp);
        return concat("tensor parallelism crosses hosts: ranks ", ranks_text(group), " of one group are on ",
                      of_group.size(), " hosts, and each rank sends ", format_bytes(sent), " in this group in a step; ",
                      tp <= largest ? "put ranks that are neighbours on one host (mpirun --map-by slot)"
                                    : concat("set parallel.tp to ", largest, " or less, the ranks of a host, and use ",
                                             "cp, pp or data parallelism between hosts"));
    }
    return "";
}

}  // namespace tutti::rehearsal
