#include "tutti/report/time_spent.h"

#include <algorithm>
#include <cmath>

namespace tutti::report {

Json to_json(const TimeSpent& spent) {
    Json object = Json::object();
    for (const auto& [key, part] : kTimes) object[key] = std::round(spent.*part * 1e6) / 1e6;
    for (const auto& [key, count] : kCounts) object[key] = spent.*count;
    return object;
}

TimeSpent time_spent_from(const Json& object) {
    TimeSpent spent;
    for (const auto& [key, part] : kTimes) spent.*part = object.at(key).get<double>();
    for (const auto& [key, count] : kCounts)
        spent.*count = count == &TimeSpent::from_memory ? object.value(key, int64_t{0}) : object.at(key).get<int64_t>();
    return spent;
}

double expected_goodput(const GoodputTerms& t) {
    const bool copies = t.memory_every > 0;
    const double stalls =
        (copies ? t.memory_stall / t.memory_every : 0) + (t.disk_every > 0 ? t.disk_stall / t.disk_every : 0);
    const double lost = copies ? (1 - t.disk_share) * (t.memory_every / 2 + t.memory_lag) +
                                     t.disk_share * (t.disk_every / 2 + t.disk_restart)
                               : t.disk_every / 2;
    return std::max(0.0, 1 - stalls) * std::max(0.0, 1 - (t.restart + lost) / t.between_failures);
}

}  // namespace tutti::report
