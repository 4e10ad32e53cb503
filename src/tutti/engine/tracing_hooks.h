// engine/tracing_hooks.h: notes the forward and the backward of each unit as spans of a trace, inside whatever
// parallelism does around them: its waits before and after a unit are not the unit's.
#pragma once

#include <optional>

#include "tutti/autograd/tape.h"
#include "tutti/base/trace.h"

namespace tutti::engine {

class TracingHooks final : public autograd::Hooks {
  public:
    TracingHooks(autograd::Hooks& inner, Tracer* trace) : inner_(inner), trace_(trace) {}

    void before_forward(autograd::Unit& unit) override {
        inner_.before_forward(unit);
        span_.emplace(trace_, Tracer::What{Activity::compute, backward_ ? "recompute" : "forward", unit.name});
    }
    void after_forward(autograd::Unit& unit) override {
        span_.reset();
        inner_.after_forward(unit);
    }
    void before_backward(autograd::Unit& unit) override {
        backward_ = true;
        inner_.before_backward(unit);
        span_.emplace(trace_, Tracer::What{Activity::compute, "backward", unit.name});
    }
    void after_backward(autograd::Unit& unit) override {
        span_.reset();
        inner_.after_backward(unit);
    }
    void gradient_ready(autograd::Parameter& parameter) override { inner_.gradient_ready(parameter); }

  private:
    autograd::Hooks& inner_;
    Tracer* trace_;
    bool backward_ = false;
    std::optional<TraceScope> span_;
};

}  // namespace tutti::engine
