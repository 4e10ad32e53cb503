#include "tutti/train/testing/small_run.h"

#include <filesystem>
#include <nlohmann/json.hpp>

namespace tutti::train {

void SmallRun::TearDown() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
        if (entry.path().filename() != "run.json") continue;
        std::ifstream in(entry.path());
        const auto totals = nlohmann::json::parse(in);
        if (!totals.contains("rehearsed")) continue;  // it took no step
        for (const char* key : {"memory", "communication"})
            EXPECT_EQ(totals.at(key), totals.at("rehearsed").at(key)) << entry.path();
    }
}

}  // namespace tutti::train
