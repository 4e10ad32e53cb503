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

// How the clocks of the ranks compare. Ranks of one machine share a clock; the others' are compared when all have just
// come out of a barrier, which is good to about the time that a message takes.
struct TraceClock {
    int64_t offset_ns = 0;  // of this rank's clock to that of rank 0
    int64_t origin_ns = 0;  // rank 0's clock at the time 0 of the trace
};
TraceClock compare_clocks(comm::Communicator& ranks);
// The same from what each rank says: "MACHINE TIME TIME ...", its clock after each barrier.
TraceClock clock_from(const std::vector<std::string>& readings, int rank);

// The events of one rank, comma-separated: a process of Chrome's with a lane (thread) for compute and one for waits,
// and for each group as many as it has operations under way at once, so that the spans of a lane nest.
std::string events_of(const Trace& trace, int rank, const std::string& label, const TraceClock& clock);

class TraceFile {
  public:
    // Collective over the world. `label` says which rank this is: "dp_shard 1 of 4".
    TraceFile(comm::World& world, const TraceWindow& window, std::string path, std::string label,
              std::function<void(const std::string&)> warn);
    ~TraceFile();

    // Before step `step`: what it is to be traced into, or nullptr. Once the step after the last traced one is over, or
    // the run ends (finish), the file is written: by then the operations of the last one have ended, too. Collective.
    Trace* before(int64_t step);
    void after(int64_t step);
    void finish();

  private:
    void write();

    comm::World& world_;
    const TraceWindow window_;
    const std::string path_, label_;
    std::function<void(const std::string&)> warn_;
    std::unique_ptr<comm::Communicator> ranks_;  // of its own: what it sends is not the run's traffic
    TraceClock clock_;
    Trace trace_;
    bool begun_ = false, written_ = false;
};

}  // namespace tutti::train
