#include "tutti/engine/tracing.h"

#include <ranges>

#include "tutti/base/to_size.h"

namespace tutti::engine {

void GpuSpans::write() {
    if (spans_.empty()) return;
    const auto now = device_.mark_time();
    device_.synchronize();
    const int64_t now_ns = Trace::now_ns();
    const auto time_of = [&](const TimeMark& mark) {
        return now_ns - static_cast<int64_t>(1e9 * now->seconds_since(mark));
    };
    for (const Span& span : spans_)
        trace_->add({Activity::gpu, span.name, span.of, "GPU"}, time_of(*span.begin), time_of(*span.end));
    spans_.clear();
}

void MemorySamples::take() {
    if (trace_ == nullptr) return;
    const int64_t now = Trace::now_ns();
    bool any = false;
    for (const Purpose purpose : std::views::reverse(kAllPurposes)) {
        int64_t& last = last_[to_size(purpose)];
        const int64_t bytes = memory_.usage(purpose).current;
        if (bytes == last && (any || purpose != kAllPurposes[0]))
            continue;  // the sample of no change has the first purpose
        any = true;
        last = bytes;
        trace_->add({Activity::other, "memory", name_of(purpose), kMemoryGroup, 0, bytes}, now, now);
    }
}

void TracingHooks::before(autograd::Unit& unit, const autograd::Pass& pass) {
    inner_.before(unit, pass);
    span_.emplace(trace_, Tracer::What{Activity::compute, autograd::name_of(pass.kind), unit.name});
    memory_.take();
    gpu_.begin();
}

void TracingHooks::after(autograd::Unit& unit, const autograd::Pass& pass) {
    gpu_.end(autograd::name_of(pass.kind), unit.name);
    memory_.take();
    span_.reset();
    inner_.after(unit, pass);
}

}  // namespace tutti::engine
