// comm/meta/meta_world.h: one rank of a world of any size, without the other ranks. Every operation is complete once it
// has begun, and no value moves. Operations are checked and counted (calls, bytes, bytes over links) as in every
// backend, so a rehearsed step has the communication of a real step, and the buffers of its reductions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/world.h"

namespace tutti::comm {

// Receives the communication of a rank, in the order of the rank's program.
class CommunicationObserver {
  public:
    virtual ~CommunicationObserver() = default;
    virtual void joins(const Communicator& group) = 0;
    virtual void begins(const Communicator& group, uint64_t sequence, const Collective& collective) = 0;
    virtual void waits(const Communicator& group, const Operation& operation) = 0;
};

class MetaWorld final : public World {
  public:
    // UsageError unless 0 <= rank < size. `observer` may be null. `order`: the order of reductions in the memory of the
    // ranks' devices (nccl/); nullopt: the host reduces.
    MetaWorld(int rank, int size, CommunicationObserver* observer = nullptr, std::optional<SumOrder> order = {});

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::string backend() const override { return "meta"; }
    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override;
    void abort(const std::string& reason) override;  // throws Error with the reason
    Progress& progress() override { return progress_; }
    FlightRecorder& recorder() override { return recorder_; }

  private:
    int rank_, size_;
    CommunicationObserver* observer_;
    std::optional<SumOrder> order_;
    FlightRecorder recorder_;
    Progress progress_;
};

}  // namespace tutti::comm
