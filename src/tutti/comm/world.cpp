#include "tutti/comm/world.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tutti/base/to_size.h"

namespace tutti::comm {

namespace {

std::vector<int> ranks_below(int size) {
    std::vector<int> ranks(to_size(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}

}  // namespace

SumOrder sum_order_of(std::string_view name) {
    if (name == "tree") return SumOrder::tree;
    if (name == "fast") return SumOrder::fast;
    check<UsageError>(name == "auto", "comm.order must be tree, fast or auto, got '", name, "'");
    return SumOrder::automatic;
}

std::vector<int> World::ranks_of_host() const { return ranks_below(size()); }

std::unique_ptr<Communicator> World::everyone(const std::string& name) { return group(name, ranks_below(size())); }

int World::rank_in(const std::string& group, const std::vector<int>& ranks) const {
    const auto own = std::find(ranks.begin(), ranks.end(), rank());
    check(own != ranks.end(), "rank ", rank(), " makes group ", group, " of ranks ", joined(ranks),
          ", but is not one of them");
    return static_cast<int>(own - ranks.begin());
}

std::string reason_of(int rank, const std::exception& error) {
    if (dynamic_cast<const Preempted*>(&error) != nullptr) return error.what();
    return concat("rank ", rank, " failed: ", error.what());
}

void dump_flight_record(World& world, const std::string& directory, const std::exception& error) {
    if (directory.empty() || (world.starting() && cause_of(error) != Cause::timed_out)) return;
    try {
        std::filesystem::create_directories(directory);
        const std::filesystem::path path = std::filesystem::path(directory) / concat("rank-", world.rank(), ".json");
        const std::filesystem::path temporary = path.string() + ".tmp";
        std::ofstream file(temporary);
        file << to_json(world.recorder().record(world.rank(), world.size(), cause_of(error), error.what()));
        file.close();
        if (file) std::filesystem::rename(temporary, path);
    } catch (const std::exception&) {  // `error` is what the user must see
    }
}

}  // namespace tutti::comm
