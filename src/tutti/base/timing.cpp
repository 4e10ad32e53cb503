#include "tutti/base/timing.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace tutti {

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_text(double unix_time) {
    const auto seconds = static_cast<std::time_t>(unix_time);
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char text[32] = {};
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
    return text;
}

Timing timing_of(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const size_t middle = seconds.size() / 2;
    const double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
    return {median, seconds.front(), seconds.back(), static_cast<int>(seconds.size())};
}

Timing time_calls(const TimingLimits& limits, const std::function<void()>& call, const std::function<void()>& finish) {
    // A run lasts at least 2 ms, of which the clock's resolution and a late wake-up are less than 1 %.
    constexpr double kShortestRun = 2e-3;
    const double begin = seconds_now();
    call();
    finish();
    const double second = seconds_now();
    call();  // not the first call, which also faults pages in and compiles kernels
    finish();
    const double once = std::max(seconds_now() - second, 1e-9);
    const int calls = once >= kShortestRun ? 1 : static_cast<int>(kShortestRun / once) + 1;

    std::vector<double> times;
    if (calls == 1) times.push_back(once);
    while (static_cast<int>(times.size()) < limits.max_runs &&
           (static_cast<int>(times.size()) < limits.min_runs || seconds_now() - begin < limits.seconds)) {
        const double start = seconds_now();
        for (int i = 0; i < calls; ++i) call();
        finish();
        times.push_back((seconds_now() - start) / calls);
    }
    return timing_of(std::move(times));
}

}  // namespace tutti
