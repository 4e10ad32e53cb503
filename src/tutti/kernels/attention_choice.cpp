#include "tutti/kernels/attention_choice.h"

#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/kernels/tuning_file.h"

namespace tutti::kernels {

namespace {

constexpr TuningKind kKind{"tutti attention", "requests", "tutti bench attention --tune"};

}  // namespace

std::string AttentionTuning::to_json() const {
    std::vector<Json> rows;
    for (const auto& [key, request] : requests) {
        Json seconds = Json::object();
        for (const auto& [kernels, time] : request.seconds) seconds[kernels] = time;
        rows.push_back({{"request", request.text}, {"key", Json(key)}, {"seconds", std::move(seconds)}});
    }
    return tuning_text(kKind, *this, std::move(rows));
}

AttentionTuning read_attention_tuning(const std::string& path, const MeasuredOn& here) {
    AttentionTuning t{here, {}, {}, false};
    read_tuning(path, kKind, here, [&](const Json& row) {
        TunedAttention request{.text = row.at("request").get<std::string>(), .seconds = {}};
        for (const auto& [kernels, time] : row.at("seconds").items()) {
            const double seconds = time.template get<double>();
            check<DataError>(std::isfinite(seconds) && seconds > 0, "\"seconds\" of ", kernels, " must be above 0, is ",
                             seconds);
            request.seconds.emplace(kernels, seconds);
        }
        check<DataError>(!request.seconds.empty(), "\"seconds\" of ", request.text, " is empty");
        t.requests.emplace(row.at("key").get<std::vector<int64_t>>(), std::move(request));
    });
    return t;
}

}  // namespace tutti::kernels
