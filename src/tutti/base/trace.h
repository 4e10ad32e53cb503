// base/trace.h: the activities of a rank as spans of time: computations, communication and waits. Tracer is the
// interface; Trace stores spans in a buffer that is allocated beforehand. A rank without a trace has a null pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tutti {

enum class Activity : uint8_t {
    step,           // an optimizer update, which encloses the following
    action,         // an action of a schedule (F, B, I or W of a stage and microbatch), which encloses its units
    compute,        // forward, backward, optimizer, including their waits
    data,           // the wait for the next microbatch
    other,          // other activities of the rank's own thread
    wait,           // the rank's own thread waits for an operation
    begin,          // that thread begins an operation and, without a progress thread, advances others
    communication,  // an operation, from its begin to its end
    gpu,            // forward, backward, optimizer on the GPU's clock; "compute" is then the host's time to launch them
};
inline constexpr int kActivities = 9;
std::string_view name_of(Activity activity);  // "compute"

// Begin and end, in nanoseconds of Trace::now_ns().
struct TimeSpan {
    int64_t begin_ns = 0, end_ns = 0;
};

class Tracer {
  public:
    struct What {
        Activity activity;
        std::string_view name;     // "backward", "all_reduce"
        std::string_view of = {};  // "h.3"
        // Set for operations and waits.
        std::string_view group = {};
        uint64_t number = 0;
        int64_t bytes = 0;
    };
    static constexpr size_t kNone = ~size_t{0};

    virtual ~Tracer() = default;
    // By the rank's own thread. The texts may be temporary. Returns the span's number; kNone: the span is not recorded.
    virtual size_t begin(const What& what) = 0;
    virtual void end(size_t span) = 0;  // by any thread; kNone is ignored
    // Ends a span with the times of its work on the GPU.
    virtual void end_on_gpu(size_t span, const TimeSpan& times) = 0;
    // Adds a complete span, in nanoseconds of Trace::now_ns(). By the rank's own thread.
    virtual void add(const What& what, int64_t begin_ns, int64_t end_ns) = 0;
};

class Trace final : public Tracer {
  public:
    struct Span {
        What what;
        int64_t step;
        int64_t begin_ns, end_ns;  // of the steady clock; end -1: not ended
        bool on_gpu = false;       // timed by the GPU
    };

    explicit Trace(size_t capacity);

    // open() starts to record spans, as those of this step; close() stops. Open spans may end after close().
    void open(int64_t step);
    void close() { is_open_ = false; }

    // Each text is stored once, so only a new text allocates memory.
    size_t begin(const What& what) override;
    void end(size_t span) override;
    void end_on_gpu(size_t span, const TimeSpan& times) override;
    void add(const What& what, int64_t begin_ns, int64_t end_ns) override;

    size_t size() const { return spans_.size(); }
    Span span(size_t index) const;
    int64_t dropped() const { return dropped_; }  // spans that did not fit the buffer
    static int64_t now_ns();

  private:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    std::string_view keep(std::string_view text);

    std::vector<Span> spans_;  // never reallocates, since another thread may write the end of a span
    std::unordered_set<std::string, Hash, std::equal_to<>> texts_;
    int64_t step_ = 0, dropped_ = 0;
    bool is_open_ = false;
};

// A span for the lifetime of this object. No effect without a tracer.
class TraceScope {
  public:
    TraceScope(Tracer* tracer, const Tracer::What& what)
        : tracer_(tracer), span_(tracer != nullptr ? tracer->begin(what) : Tracer::kNone) {}
    ~TraceScope() {
        if (tracer_ != nullptr) tracer_->end(span_);
    }
    TraceScope(const TraceScope&) = delete;
    TraceScope& operator=(const TraceScope&) = delete;

  private:
    Tracer* tracer_;
    size_t span_;
};

}  // namespace tutti
