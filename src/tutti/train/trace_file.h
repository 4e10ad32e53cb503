// train/trace_file.h: `[log] trace`: which steps of a run are traced, and trace.json, the spans of all ranks in the
// format of Chrome, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/trace.h"
#include "tutti/comm/world.h"
#include "tutti/spec/run_spec.h"

namespace tutti::train {

// Steps first, ..., last; none when last < first.
struct TraceWindow {
    int64_t first = 1, last = 0;
};
// `done`: steps before this session of the run.
TraceWindow trace_window(const spec::RunSpec& run, int64_t done);

// The relation of this rank's clock to rank 0's. Ranks of one machine share a clock; clocks of different machines are
// compared right after a barrier, which is accurate to about the time of a message.
struct TraceClock {
    int64_t offset_ns = 0;  // of this rank's clock to that of rank 0
    int64_t origin_ns = 0;  // rank 0's clock at the time 0 of the trace
};
TraceClock compare_clocks(comm::Communicator& ranks);
// The same from the reading of each rank: "MACHINE TIME TIME ...", its clock after each barrier.
TraceClock clock_from(const std::vector<std::string>& readings, int rank);

// The events of one rank, comma-separated: a process in Chrome's format with a track (thread) for compute, one for
// waits, and for each group as many as it has operations in flight at once, so that the spans of a track nest; and the
// memory in use as a counter by purpose.
std::string events_of(const Trace& trace, int rank, const std::string& label, const TraceClock& clock);

class TraceFile {
  public:
    // Collective over the world. `label` says which rank this is: "dp_shard 1 of 4".
    TraceFile(comm::World& world, const TraceWindow& window, std::string path, std::string label,
              std::function<void(const std::string&)> warn);
    ~TraceFile();

    // Before step `step`: the tracer of the step, or nullptr. The file is written when the step after the last traced
    // one is over, or the run ends (finish): by then the operations of the last traced step have ended too. Collective.
    Trace* before(int64_t step);
    void after(int64_t step);
    void finish();

  private:
    void write();

    comm::World& world_;
    const TraceWindow window_;
    const std::string path_, label_;
    std::function<void(const std::string&)> warn_;
    std::unique_ptr<comm::Communicator> ranks_;  // separate: its traffic is not counted as the run's
    TraceClock clock_;
    Trace trace_;
    bool begun_ = false, written_ = false;
};

}  // namespace tutti::train
