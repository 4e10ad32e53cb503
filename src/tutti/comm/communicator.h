// comm/communicator.h: the collectives and messages of one group of ranks. Operations are asynchronous and return a
// Work; their tensors must not be used before Work::wait(). All ranks of a group call the same collectives in the same
// order. Backends (threads/, processes/, nccl/, meta/) implement start().
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/exact_sum.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/flight_record.h"
#include "tutti/comm/progress.h"

namespace tutti::comm {

class Communicator;

// A staging buffer of a backend that reaches the host's memory alone, and the tensor in GPU memory that gets its
// values.
struct HostStaging {
    Tensor buffer, destination;  // both undefined: nothing to copy
    void copy_to_destination();
};

// A handle on an operation in flight. The group must outlive wait(). A Work may be destroyed without wait() only if the
// rank fails.
class [[nodiscard]] Work {
  public:
    Work() = default;  // of an operation that is complete
    Work(std::shared_ptr<Operation> operation, Communicator* group, HostStaging staging = {})
        : operation_(std::move(operation)), group_(group), staging_(std::move(staging)) {}
    bool done() const { return !operation_ || operation_->complete(); }
    // Throws the operation's failure: TimedOut, Aborted, or Error if ranks call different operations.
    void wait();

  private:
    std::shared_ptr<Operation> operation_;
    Communicator* group_ = nullptr;
    HostStaging staging_;
};

// Waits for each operation and empties the list.
void wait_all(std::vector<Work>& works);

struct Traffic {
    int64_t calls = 0;
    int64_t bytes = 0;  // of the tensors
    int64_t sent = 0;   // over links, as bytes_sent() counts
};

// This rank's use of a group so far, all kinds together.
struct Usage {
    int64_t operations = 0;
    int64_t sent = 0;     // bytes over links
    double waited_s = 0;  // time that the rank spent in waits
};

class Communicator {
  public:
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    const std::string& name() const { return name_; }  // "dp_shard"
    int rank() const { return rank_; }                 // in the group
    int size() const { return static_cast<int>(ranks_.size()); }
    const std::vector<int>& ranks() const { return ranks_; }  // of the world, by rank in the group

    // collective.h defines each operation. Shapes do not matter; Error if the numbers of elements do not fit.
    Work all_reduce(const Tensor& x, Reduce reduce = Reduce::sum);
    Work reduce_scatter(const Tensor& x, const Tensor& part);
    Work all_gather(const Tensor& part, const Tensor& x);
    Work broadcast(const Tensor& x, int root);
    Work all_to_all(const Tensor& x, std::vector<int64_t> send_counts, const Tensor& y,
                    std::vector<int64_t> receive_counts);
    Work send(const Tensor& x, int to);
    Work receive(const Tensor& x, int from);
    void barrier();
    // Begins an operation whose sizes and counts fit.
    virtual Work begin(Collective collective);

    // Reductions of numbers on the host over all ranks of the group; these block.
    void sum(ExactSum& value, std::span<int64_t> counts = {});  // both in one operation
    double sum(double value) { return reduced(value, Reduce::sum); }
    double max(double value) { return reduced(value, Reduce::max); }

    // Starts the messages that were begun. Otherwise a backend may defer them until the rank waits for an operation of
    // any group, in order to start a send and a receive together.
    virtual void start_messages() {}

    // Allocates the buffer that reductions of type `input` into type `output` need in the memory of `device`
    // (adds_along_tree() in world.h); otherwise the first reduction allocates it. Not collective.
    virtual void reserve_reductions(Device&, DType /*input*/, DType /*output*/) {}

    virtual const Traffic& traffic(Kind kind) const { return traffic_[to_size(kind)]; }
    virtual Usage usage() const;

  protected:
    Communicator(std::string name, std::vector<int> ranks, int rank, Progress& progress, FlightRecorder& recorder);
    // Starts the operation, which then needs only advance(). `sequence`: as in FlightRecord::Entry.
    virtual std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) = 0;
    // Whether operations access the memory of `device` directly. Other tensors pass through a staging buffer.
    virtual bool reaches(const Device& device) const { return device.host_readable(); }
    virtual void wait(const Operation& operation);
    Progress& progress() { return progress_; }

  private:
    friend class Work;
    double reduced(double value, Reduce reduce);
    void check_overlap(const Collective& collective) const;
    void check_peer(int peer, std::string_view what) const;
    // The operation of a group of one rank: a copy on the device. False if the group is larger, or the copy is between
    // devices or types.
    bool copied_alone(const Tensor& from, const Tensor& to) const;
    HostStaging stage_on_host(Collective& collective) const;

    std::string name_;
    std::vector<int> ranks_;
    int rank_;
    Progress& progress_;
    FlightRecorder& recorder_;
    size_t group_;                                   // number in the recorder
    std::unique_ptr<Device> host_;                   // of scalars and staging buffers
    uint64_t sequence_ = 0;                          // collectives so far
    std::vector<std::array<uint64_t, 2>> messages_;  // sent to and received from each rank so far
    std::array<Traffic, kKinds> traffic_{};
    double waited_s_ = 0;
};

// Text between ranks (paths, reports, errors): any bytes of any length. Slow: for rare events.
//
// The texts of all ranks of the group, by rank. Collective.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text);
// Names of the ranks' devices, by rank: equal for ranks that share a GPU, else different. Collective.
std::vector<std::string> device_identities(Communicator& ranks, const Device& device);
// The number of ranks that use this rank's device, including this rank. Collective.
int ranks_of_device(Communicator& ranks, const Device& device);

// A text from one rank of the group to another.
void send_text(Communicator& ranks, const std::string& text, int to);
std::string receive_text(Communicator& ranks, int from);

}  // namespace tutti::comm
