#include "tutti/comm/world.h"

#include <filesystem>
#include <fstream>
#include <numeric>

namespace tutti::comm {

std::unique_ptr<Communicator> World::everyone(const std::string& name) {
    std::vector<int> ranks(static_cast<size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return group(name, ranks);
}

std::string dump_flight_record(World& world, const std::string& directory, const std::string& reason) {
    if (directory.empty()) return "";
    try {
        std::filesystem::create_directories(directory);
        const std::filesystem::path path = std::filesystem::path(directory) / concat("rank-", world.rank(), ".json");
        std::ofstream file(path);
        file << world.recorder().to_json(world.rank(), reason) << '\n';
        file.close();
        return file ? "" : concat("the flight record ", path.string(), " could not be written");
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace tutti::comm
