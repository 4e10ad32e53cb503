// engine/tracing.h: the spans of a step in a trace: its parts, the units of its passes, and a GPU's own times.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/base/trace.h"
#include "tutti/device/device.h"

namespace tutti::engine {

// Spans of a GPU's compute, by marks in its stream, since the host only starts the work. Without a trace, on a CPU and
// in recorded work (a graph holds no marks) `trace` is null, and nothing is recorded.
class GpuSpans {
  public:
    GpuSpans(Tracer* trace, Device& device) : trace_(trace), device_(device) {}

    void begin() {
        if (trace_ != nullptr) begin_ = device_.mark_time();
    }
    // `name` and `of` live as long as this object.
    void end(std::string_view name, std::string_view of = {}) {
        if (trace_ != nullptr) spans_.push_back({name, of, std::move(begin_), device_.mark_time()});
    }
    void write();  // waits for the device

  private:
    struct Span {
        std::string_view name, of;
        std::unique_ptr<TimeMark> begin, end;
    };
    Tracer* trace_;
    Device& device_;
    std::unique_ptr<TimeMark> begin_;
    std::vector<Span> spans_;
};

// The group of samples of a rank's memory in a trace: spans without length whose object is a purpose (base/purpose.h)
// and whose bytes are those in use from then on.
inline constexpr std::string_view kMemoryGroup = "memory";

// Samples of the memory, of each purpose when it has changed since the last one.
class MemorySamples {
  public:
    MemorySamples(Tracer* trace, const Allocator& memory) : trace_(trace), memory_(memory) { last_.fill(-1); }
    void take();

  private:
    Tracer* trace_;
    const Allocator& memory_;
    std::array<int64_t, kPurposes> last_{};
};

// Records the forward and the backward of each unit as spans of a trace, without the hooks of parallelism around them:
// waits before and after a unit are not part of its span. The memory is sampled at its begin and its end.
class TracingHooks final : public autograd::Hooks {
  public:
    TracingHooks(autograd::Hooks& inner, Tracer* trace, GpuSpans& gpu, MemorySamples& memory)
        : inner_(inner), trace_(trace), gpu_(gpu), memory_(memory) {}

    void before(autograd::Unit& unit, const autograd::Pass& pass) override;
    void after(autograd::Unit& unit, const autograd::Pass& pass) override;
    void gradient_ready(autograd::Parameter& parameter, const autograd::Pass& pass) override {
        inner_.gradient_ready(parameter, pass);
    }

  private:
    autograd::Hooks& inner_;
    Tracer* trace_;
    GpuSpans& gpu_;
    MemorySamples& memory_;
    std::optional<TraceScope> span_;
};

// A step as a span, its parts as spans below, and the work of a GPU in them.
class StepTrace {
  public:
    StepTrace(Tracer* trace, Device& device, bool recorded, autograd::Hooks& hooks)
        : trace_(trace),
          whole_(trace, {Activity::step, "step"}),
          gpu_(device.launches_async() && !recorded ? trace : nullptr, device),
          memory_(trace, device.memory()),
          traced_(hooks, trace, gpu_, memory_),
          hooks_(trace != nullptr ? traced_ : hooks) {}

    Tracer* trace() const { return trace_; }
    autograd::Hooks& hooks() { return hooks_; }  // of the passes
    // Calls `work` as a part of the step.
    template <class Work>
    void part(Activity activity, std::string_view name, Work work) {
        const TraceScope span(trace_, {activity, name});
        memory_.take();
        work();
        memory_.take();
    }
    // A part whose work a GPU does by itself.
    template <class Work>
    void compute(std::string_view name, Work work) {
        part(Activity::compute, name, [&] {
            gpu_.begin();
            work();
            gpu_.end(name);
        });
    }
    void write_gpu_spans() { gpu_.write(); }

  private:
    Tracer* trace_;
    TraceScope whole_;
    GpuSpans gpu_;
    MemorySamples memory_;
    TracingHooks traced_;
    autograd::Hooks& hooks_;
};

}  // namespace tutti::engine
