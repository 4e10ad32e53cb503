// base/trace.h: what a rank does, as spans: the step notes what it computes, the communicators note their operations
// and waits. Tracer is the interface; Trace keeps the spans with their times, in a buffer that is reserved beforehand.
// A rank that is not traced holds a null pointer.
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
    step,           // one optimizer update, around all that follows
    action,         // a pass of a schedule, F, B, I or W of a stage and a microbatch, around its units
    compute,        // forward, backward, optimizer, with the waits inside
    data,           // until the next microbatch is there
    other,          // of the rank's own thread
    wait,           // the rank's own thread waits for an operation
    begin,          // it begins one, which without a progress thread also moves what is under way
    communication,  // an operation, from its begin to its end
    gpu,  // forward, backward, optimizer as a GPU computed them; "compute" is the host's time of starting them
};
inline constexpr int kActivities = 9;
std::string_view name_of(Activity activity);  // "compute"

// From when to when, in nanoseconds of Trace::now_ns().
struct TimeSpan {
    int64_t begin_ns = 0, end_ns = 0;
};

class Tracer {
  public:
    struct What {
        Activity activity;
        std::string_view name;     // "backward", "all_reduce"
        std::string_view of = {};  // "h.3"
        // Of operations and waits.
        std::string_view group = {};
        uint64_t number = 0;
        int64_t bytes = 0;
    };
    static constexpr size_t kNone = ~size_t{0};

    virtual ~Tracer() = default;
    // By the rank's own thread. The texts may be temporary. Returns the span's number, or kNone: it is not kept.
    virtual size_t begin(const What& what) = 0;
    virtual void end(size_t span) = 0;  // by any thread; kNone: nothing
    // The same of a span that a GPU has timed: it was not under way when begin() was called.
    virtual void end_on_gpu(size_t span, const TimeSpan& times) = 0;
    // A span that is over, in nanoseconds of Trace::now_ns(). By the rank's own thread.
    virtual void add(const What& what, int64_t begin_ns, int64_t end_ns) = 0;
};

class Trace final : public Tracer {
  public:
    struct Span {
        What what;
        int64_t step;
        int64_t begin_ns, end_ns;  // of the steady clock; end -1: not yet
        bool on_gpu = false;       // timed by the GPU that did it
    };

    explicit Trace(size_t capacity);

    // From now on spans are recorded, as of this step; or no more: those begun may still end.
    void open(int64_t step);
    void close() { is_open_ = false; }

    // Each text is kept once: allocates only for one that is new.
    size_t begin(const What& what) override;
    void end(size_t span) override;
    void end_on_gpu(size_t span, const TimeSpan& times) override;
    void add(const What& what, int64_t begin_ns, int64_t end_ns) override;

    size_t size() const { return spans_.size(); }
    Span span(size_t index) const;
    int64_t dropped() const { return dropped_; }  // that the buffer had no room for
    static int64_t now_ns();

  private:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    std::string_view keep(std::string_view text);

    std::vector<Span> spans_;  // never grows: another thread may be writing the end of one
    std::unordered_set<std::string, Hash, std::equal_to<>> texts_;
    int64_t step_ = 0, dropped_ = 0;
    bool is_open_ = false;
};

// A span as long as the object lives. Without a trace: nothing.
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
