#include "tutti/comm/world.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "tutti/base/to_size.h"

namespace tutti::comm {

SumOrder sum_order_of(std::string_view name) {
    if (name == "tree") return SumOrder::tree;
    if (name == "fast") return SumOrder::fast;
    check<UsageError>(name == "auto", "[comm] order is tree, fast or auto, not ", name);
    return SumOrder::automatic;
}

std::vector<int> World::ranks_of_host() const {
    std::vector<int> ranks(to_size(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}

std::unique_ptr<Communicator> World::everyone(const std::string& name) {
    std::vector<int> ranks(to_size(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return group(name, ranks);
}

int World::place_in(const std::string& group, const std::vector<int>& ranks) const {
    const auto place = std::find(ranks.begin(), ranks.end(), rank());
    check(place != ranks.end(), "rank ", rank(), " asks for group ", group, ", of which it is not a member");
    return static_cast<int>(place - ranks.begin());
}

std::string reason_of(int rank, const std::exception& error) {
    if (dynamic_cast<const Preempted*>(&error) != nullptr) return error.what();
    return concat("rank ", rank, " failed: ", error.what());
}

std::string dump_flight_record(World& world, const std::string& directory, const std::exception& error) {
    if (directory.empty() || (world.starting() && cause_of(error) != Cause::timed_out)) return "";
    try {
        std::filesystem::create_directories(directory);
        const std::filesystem::path path = std::filesystem::path(directory) / concat("rank-", world.rank(), ".json");
        const std::filesystem::path temporary = path.string() + ".tmp";
        std::ofstream file(temporary);
        file << to_json(world.recorder().record(world.rank(), world.size(), cause_of(error), error.what()));
        file.close();
        check(static_cast<bool>(file), "the flight record ", path.string(), " could not be written");
        std::filesystem::rename(temporary, path);
        return "";
    } catch (const std::exception& problem) {
        return problem.what();
    }
}

}  // namespace tutti::comm
