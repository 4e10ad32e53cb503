#include "tutti/train/run_clock.h"

#include <algorithm>
#include <optional>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"

namespace tutti::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// The end of an earlier start, as a line of the log or run.json has it.
struct End {
    double time = 0;
    int64_t step = 0;
    report::TimeSpent spent;
};

std::optional<End> end_of(const std::optional<Json>& json, const char* step) {
    try {
        if (!json || json->find("seconds") == nullptr) return std::nullopt;
        return End{json->at("time").get<double>(), json->at(step).get<int64_t>(),
                   report::time_spent_from(json->at("seconds"))};
    } catch (const DataError&) {
        return std::nullopt;
    }
}

// From the newest whole line that has times.
std::optional<End> last_logged(const std::string& text) {
    for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0; end = text.rfind('\n', end - 1)) {
        const size_t before = text.rfind('\n', end - 1);
        const size_t begin = before == std::string::npos ? 0 : before + 1;
        if (auto found = end_of(Json::try_parse(text.substr(begin, end - begin)), "step")) return found;
    }
    return std::nullopt;
}

}  // namespace

RunClock::RunClock(const std::string& out, int64_t step, double trained, Clock::time_point began, From from)
    : trained_before_(trained), saving_before_(0) {
    const double starting = seconds(first_step_ - began);
    std::optional<End> logged, whole;
    if (!out.empty()) {
        logged = last_logged(read_file_if_readable(out + "/metrics.jsonl").value_or(""));
        whole = end_of(Json::try_parse(read_file_if_readable(out + "/run.json").value_or("")), "steps");
    }
    const bool ended_well = whole && (!logged || whole->time >= logged->time);
    const std::optional<End>& last = ended_well ? whole : logged;
    if (!last) {
        spent_.other = starting;
        return;
    }
    spent_ = last->spent;
    saving_before_ = spent_.saving;
    if (from == From::stage) {
        spent_.other += starting;
        return;
    }
    spent_.lost += std::max(0.0, spent_.trained - trained);
    spent_.lost_steps += std::max<int64_t>(0, last->step - step);
    ++(ended_well ? spent_.stops : spent_.deaths);
    spent_.from_memory += from == From::memory ? 1 : 0;
    // Of a stop only what this start needs: when a stopped run goes on is up to others. Of a death all since the last
    // line, but for the steps behind that line that a checkpoint has.
    const double saved = std::max(0.0, trained - last->spent.trained);
    spent_.restarting += ended_well ? starting : std::max(starting, unix_time() - last->time - saved);
}

report::TimeSpent RunClock::spent(double trained) const {
    report::TimeSpent now = spent_;
    now.trained = trained;
    const double known = trained - trained_before_ + spent_.saving - saving_before_;
    now.other += std::max(0.0, seconds(Clock::now() - first_step_) - known);
    return now;
}

}  // namespace tutti::train
