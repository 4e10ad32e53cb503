#include "tutti/train/testing/small_run.h"

#include <filesystem>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::train {

void SmallRun::TearDown() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
        if (entry.path().filename() != "run.json") continue;
        const auto totals = Json::parse(read_file(entry.path().string()));
        if (!totals.contains("rehearsed")) continue;  // it took no step
        for (const char* key : {"memory", "communication"})
            EXPECT_EQ(totals.at(key), totals.at("rehearsed").at(key)) << entry.path();
    }
}

}  // namespace tutti::train
