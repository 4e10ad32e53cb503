#include "tutti/report/trace_read.h"

#include <algorithm>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::report {

namespace {

// Disjoint stretches of time, in order.
using Stretches = std::vector<std::pair<double, double>>;

Stretches united(Stretches all) {
    std::sort(all.begin(), all.end());
    Stretches result;
    for (const auto& [begin, end] : all)
        if (!result.empty() && begin <= result.back().second)
            result.back().second = std::max(result.back().second, end);
        else
            result.emplace_back(begin, end);
    return result;
}

Stretches common(const Stretches& a, const Stretches& b) {
    Stretches result;
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const double begin = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
        if (begin < end) result.emplace_back(begin, end);
        a[i].second < b[j].second ? ++i : ++j;
    }
    return result;
}

double length(const Stretches& all) {
    double sum = 0;
    for (const auto& [begin, end] : all) sum += end - begin;
    return sum;
}

Stretches of(const TracedRank& rank, std::initializer_list<std::string_view> activities) {
    Stretches all;
    for (const TracedSpan& s : rank.spans)
        if (std::find(activities.begin(), activities.end(), s.activity) != activities.end())
            all.emplace_back(s.begin_us, s.end_us);
    return united(std::move(all));
}

TracedSpan span_of(const Json& event) {
    const Json& arguments = event.at("args");
    TracedSpan s;
    s.name = event.at("name").get<std::string>();
    s.activity = event.at("cat").get<std::string>();
    s.group = arguments.value("group", "");
    s.step = arguments.at("step").get<int64_t>();
    s.number = arguments.value("number", int64_t{0});
    s.bytes = arguments.value("bytes", int64_t{0});
    s.track = event.at("tid").get<int>();
    s.begin_us = event.at("ts").get<double>();
    s.end_us = s.begin_us + event.at("dur").get<double>();
    return s;
}

TracedMemory memory_of(const Json& event) {
    TracedMemory m{.us = event.at("ts").get<double>(), .bytes = {}};
    for (const Purpose purpose : kAllPurposes)
        m.bytes[purpose] = event.at("args").value(std::string(name_of(purpose)), int64_t{0});
    return m;
}

}  // namespace

std::vector<TracedRank> read_trace(const std::filesystem::path& path) {
    return parse_trace(read_file(path.string()), path.string());
}

std::vector<TracedRank> parse_trace(std::string_view text, const std::string& name) {
    constexpr const char* kAdvice = "; remove it to report without it";
    std::map<int, TracedRank> ranks;
    try {
        const Json document = Json::parse(text);
        for (const Json& event : document.at("traceEvents")) {
            const bool memory = event.at("ph") == "C" && event.at("name") == "memory";
            if (event.at("ph") != "X" && !memory) continue;
            const int rank = event.at("pid").get<int>();
            ranks[rank].rank = rank;
            if (memory) {
                ranks[rank].memory.push_back(memory_of(event));
                continue;
            }
            ranks[rank].spans.push_back(span_of(event));
        }
    } catch (const JsonError& error) {
        throw DataError(concat(name, ": damaged at byte ", error.byte, ": required: the JSON of a trace", kAdvice));
    } catch (const DataError& error) {
        throw DataError(concat(name, ": not a trace of this program: ", error.what(), kAdvice));
    }
    std::vector<TracedRank> all;
    for (auto& [number, rank] : ranks) all.push_back(std::move(rank));
    return all;
}

std::vector<RankTimes> times_of(const std::vector<TracedRank>& trace) {
    std::vector<RankTimes> all;
    for (const TracedRank& rank : trace) {
        const Stretches steps = of(rank, {"step"}), waits = common(of(rank, {"wait", "begin"}), steps);
        const auto without_waits = [&](std::initializer_list<std::string_view> activities) {
            const Stretches time = common(of(rank, activities), steps);
            return std::pair{time, length(time) - length(common(time, waits))};
        };
        // A GPU computes while the host waits for it.
        const Stretches on_gpu = common(of(rank, {"gpu"}), steps);
        const bool gpu = !on_gpu.empty();
        const auto [of_host, compute_of_host] = without_waits({"compute"});
        const Stretches& computing = gpu ? on_gpu : of_host;
        const double compute = gpu ? length(on_gpu) : compute_of_host;
        const auto [fetching, data] = without_waits({"data"});
        const Stretches communicating = common(of(rank, {"communication"}), steps);
        const Stretches both = common(communicating, computing);
        RankTimes t{.rank = rank.rank};
        t.steps = std::count_if(rank.spans.begin(), rank.spans.end(),
                                [](const TracedSpan& s) { return s.activity == "step"; });
        const double scale = 1e-3 / static_cast<double>(std::max<int64_t>(1, t.steps));
        t.step_ms = scale * length(steps);
        t.compute_ms = scale * compute;
        t.data_ms = scale * data;
        t.wait_ms = scale * length(waits);
        t.communication_ms = scale * length(communicating);
        t.hidden_ms = scale * (length(both) - (gpu ? 0 : length(common(both, waits))));
        all.push_back(t);
    }
    return all;
}

}  // namespace tutti::report
