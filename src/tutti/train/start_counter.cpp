#include "tutti/train/start_counter.h"

#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::train {

namespace {

std::string file_of(const std::string& out) { return out + "/starts.json"; }

// A file that cannot be read counts as none: the count is a fuse, not a state of the run.
int64_t starts_since(const std::string& out, int64_t step) {
    std::error_code unreadable;
    if (!std::filesystem::is_regular_file(file_of(out), unreadable)) return 0;
    const std::optional<Json> json = Json::try_parse(read_file(file_of(out)));
    if (!json || !json->is_object()) return 0;
    const Json *of = json->find("step"), *starts = json->find("starts");
    const bool fits = of && starts && of->is_integer() && starts->is_integer() && of->get<int64_t>() == step;
    return fits ? starts->get<int64_t>() : 0;
}

}  // namespace

void count_start(const std::string& out, int64_t step, bool force, int64_t most) {
    const int64_t starts = force ? 0 : starts_since(out, step);
    check<InternalError>(starts < most, out, ": the last ", starts,
                         " starts of this run died before a checkpoint after step ", step,
                         ": starting it again as it is loses the same work again. The logs of those starts say why; a "
                         "smaller checkpoint.every saves earlier; --force starts it nevertheless");
    std::ofstream file(file_of(out), std::ios::trunc);
    file << Json{{"step", step}, {"starts", starts + 1}}.dump() << '\n';
}

void forget_starts(const std::string& out) {
    std::error_code ignored;
    std::filesystem::remove(file_of(out), ignored);
}

}  // namespace tutti::train
