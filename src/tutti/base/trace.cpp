#include "tutti/base/trace.h"

#include <array>
#include <atomic>
#include <chrono>

#include "tutti/base/to_size.h"

namespace tutti {

std::string_view name_of(Activity activity) {
    constexpr std::array<std::string_view, kActivities> kNames = {"step", "action", "compute",       "data", "other",
                                                                  "wait", "begin",  "communication", "gpu"};
    return kNames[to_size(activity)];
}

Trace::Trace(size_t capacity) { spans_.reserve(capacity); }

void Trace::open(int64_t step) {
    step_ = step;
    is_open_ = true;
}

size_t Trace::begin(const What& what) {
    if (!is_open_) return kNone;
    if (spans_.size() == spans_.capacity()) {
        ++dropped_;
        return kNone;
    }
    What kept = what;
    for (std::string_view* text : {&kept.name, &kept.of, &kept.group}) *text = keep(*text);
    spans_.push_back({kept, step_, now_ns(), -1});
    return spans_.size() - 1;
}

// Atomic, since the progress thread may end a communication while the rank's own thread reads.
void Trace::end(size_t span) {
    if (span == kNone) return;
    std::atomic_ref(spans_.data()[span].end_ns).store(now_ns(), std::memory_order_release);
}

void Trace::end_on_gpu(size_t span, const TimeSpan& times) {
    if (span == kNone) return;
    Span& stored = spans_.data()[span];
    std::atomic_ref(stored.begin_ns).store(times.begin_ns, std::memory_order_relaxed);
    std::atomic_ref(stored.on_gpu).store(true, std::memory_order_relaxed);
    std::atomic_ref(stored.end_ns).store(times.end_ns, std::memory_order_release);
}

void Trace::add(const What& what, int64_t begin_ns, int64_t end_ns) {
    const size_t span = begin(what);
    if (span == kNone) return;
    spans_[span].begin_ns = begin_ns;
    std::atomic_ref(spans_.data()[span].end_ns).store(end_ns, std::memory_order_release);
}

Trace::Span Trace::span(size_t index) const {
    auto& stored = const_cast<Span&>(spans_[index]);
    const int64_t end = std::atomic_ref(stored.end_ns).load(std::memory_order_acquire);
    return {stored.what, stored.step, std::atomic_ref(stored.begin_ns).load(std::memory_order_relaxed), end,
            std::atomic_ref(stored.on_gpu).load(std::memory_order_relaxed)};
}

int64_t Trace::now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::string_view Trace::keep(std::string_view text) {
    if (text.empty()) return {};
    const auto known = texts_.find(text);
    return known != texts_.end() ? *known : *texts_.emplace(text).first;
}

}  // namespace tutti
