// comm/nccl/communicator.h: the operations of one group on GPU memory. Each operation runs on a stream of its group,
// concurrently with the rank's computation; a wait for the operation makes the rank's stream wait, not the host.
// Messages have a communicator and a stream of their own, and those that a rank begins before its next wait start
// together: NCCL's send and receive wait for their partners, so two ranks that both send first would otherwise wait for
// each other.
//
// A group is made by a non-blocking communicator, which does not hang if a rank is missing, and works with blocking
// ones split from it, whose calls cost a tenth (api.h).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/awake_time.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/nccl/guard.h"
#include "tutti/comm/nccl/nccl_world.h"

namespace tutti::comm::nccl {

// An operation on the GPU. Holds no tensors: buffers record the work that uses them.
class NcclOperation final : public Operation {
  public:
    NcclOperation(const Collective& collective, std::string group, uint64_t sequence, Guard& guard);
    void set_launched(std::shared_ptr<SideWork> work);  // nullptr: on the rank's own stream
    void join() const;                                  // makes the rank's stream wait
    bool advance() override;
    std::string waits_for() const override { return "the GPU"; }
    std::optional<TimeSpan> gpu_times() const override { return times_; }

  private:
    bool poll();
    Guard& guard_;
    const std::string text_;
    mutable std::mutex mutex_;  // of the next two, which the watching thread reads too
    std::shared_ptr<SideWork> work_;
    bool launched_ = false;
    std::optional<AwakeTime> since_begin_;  // since the GPU was seen to run it
    std::optional<TimeSpan> times_;
};

// The hosts of a group whose ranks are numbered host by host: rank = host * local + local rank, and local is a power of
// two, so that each host is a subtree (tree_reduce.h). Other groups, or those with one rank per host, count as one
// host.
struct Hosts {
    int count = 1, local = 1;
    bool in_order = true;  // each host is a subtree
};
// `names`: the name of each rank's host.
Hosts hosts_of(const std::vector<std::string>& names);

class NcclCommunicator final : public Communicator {
  public:
    // `waiting`: the communicators, of all groups, whose messages have not started. is_channel: for messages only.
    NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, Guard& guard, Progress& progress,
                     const DeviceWorldOptions& options, std::vector<NcclCommunicator*>& waiting, bool is_channel);
    ~NcclCommunicator() override;

    Work begin(Collective collective) override;
    void start_messages() override;
    void reserve_reductions(Device& device, DType input, DType output) override;
    const Traffic& traffic(Kind kind) const override;
    Usage usage() const override;

  protected:
    std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) override;
    bool reaches(const Device&) const override { return true; }
    void wait(const Operation& operation) override;

  private:
    struct Message {
        std::shared_ptr<NcclOperation> operation;
        Tensor x;
        int peer;
        bool sends;
    };
    struct Piece {
        std::byte* data;
        int64_t count;  // of elements
    };
    using Pieces = std::function<Piece(int rank)>;  // each rank's part of a tensor

    void join_ranks(bool is_channel);
    void make_communicators(const UniqueId& id, bool is_channel);
    void split(Comm& made, int max_ctas, std::string_view what);
    void connect_pair();
    void destroy() noexcept;
    void drain();
    void start_all_messages();
    std::shared_ptr<NcclOperation> start_alone(const Collective& c, std::shared_ptr<NcclOperation> operation);
    void launch(const Collective& c);
    Result launch_single_call(const Collective& c);
    void reduce_scatter(const Collective& c);
    void all_reduce(const Collective& c);
    void sum_in_place(const Collective& c);
    int64_t longest_piece(DType type) const;
    void sum_piece(const Collective& c, const Pieces& piece, int64_t longest, DType out, void* y);
    void gather_pieces(const Pieces& piece, int64_t element);
    void all_to_all(const Collective& c);

    // Runs `calls` of NCCL in a Turn; grouped: as one NCCL group. `what`: the operation, for errors.
    template <class Calls>
    void call(std::string_view what, const Calls& calls);
    template <class Calls>
    void grouped(std::string_view what, const Calls& calls);
    // On the stream of collectives, inside grouped().
    void send(const void* data, int64_t bytes, int to);
    void receive(void* data, int64_t bytes, int from);
    StreamHandle native() const { return side_->stream().native; }

    const std::unique_ptr<Communicator> host_;
    Device& device_;
    Guard& guard_;
    FlightRecorder& recorder_;
    const DeviceWorldOptions options_;
    const int exceptions_;  // uncaught exceptions at construction
    std::vector<NcclCommunicator*>& waiting_;
    std::unique_ptr<SideStream> side_, message_side_;
    std::shared_ptr<SideWork> last_, last_messages_;
    Comm root_ = nullptr, comm_ = nullptr, message_comm_ = nullptr;
    Hosts hosts_;
    Tensor arrived_;                 // buffer for values of other ranks, of kReductionBytes
    std::vector<Message> messages_;  // begun, but not started
    mutable Traffic both_;           // of the host's communicator and of this one
};

}  // namespace tutti::comm::nccl
