// comm/nccl/communicator.h: the operations of one group on GPU memory. Each operation runs on a stream of its group,
// beside the rank's computation, and a wait for the operation makes the rank's stream wait, not the host. Messages have
// a separate communicator and stream, and those that a rank begins before its next wait start together: NCCL's send and
// receive wait for their partners, and two ranks that each send first would otherwise wait for each other.
//
// A group is made by a non-blocking communicator, which a missing rank cannot hold, and works with blocking ones split
// from it, whose calls cost a tenth (api.h).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/nccl/guard.h"
#include "tutti/comm/nccl/nccl_world.h"

namespace tutti::comm::nccl {

// Complete when the GPU has finished its work. Holds no tensors: buffers record the work that uses them.
class NcclOperation final : public Operation {
  public:
    NcclOperation(const Collective& collective, std::string group, uint64_t sequence, Guard& guard);
    void launched(std::shared_ptr<SideWork> work);  // nullptr: the rank's own stream runs it
    bool is_launched() const;
    void join() const;
    bool advance() override;
    std::string waits_for() const override { return "the GPU"; }
    std::optional<TimeSpan> gpu_times() const override { return times_; }

  private:
    bool look();
    Guard& guard_;
    const std::string text_;
    mutable std::mutex mutex_;  // of the next two, which the watching thread reads
    std::shared_ptr<SideWork> work_;
    bool launched_ = false;
    Clock::time_point begun_{};  // on the GPU; zero: not yet
    std::optional<TimeSpan> times_;
};

// How the ranks of a group lie on hosts: rank = host * local + place. One host where they have no such order, or where
// local is no power of two: the tree of tree_reduce.h then has no subtree for a host.
struct Hosts {
    int count = 1, local = 1;
    bool in_order = true;
};
// `of_rank`: what names the host of each rank.
Hosts hosts_of(const std::vector<std::string>& of_rank);

class NcclCommunicator final : public Communicator {
  public:
    // `waiting`: the communicators whose messages have not started; those of all groups start together. is_channel: for
    // messages only.
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
    void connect_two();
    void leave() noexcept;
    void drain();
    void start_all_messages();
    std::shared_ptr<NcclOperation> start_alone(const Collective& c, std::shared_ptr<NcclOperation> operation);
    void launch(const Collective& c);
    Result launch_alone(const Collective& c);
    void reduce_scatter(const Collective& c);
    void all_reduce(const Collective& c);
    void sum_in_place(const Collective& c);
    int64_t longest_piece(DType type) const;
    void sum_piece(const Collective& c, const Pieces& piece, int64_t longest, DType out, void* y);
    void share_pieces(const Pieces& piece, int64_t element);
    void all_to_all(const Collective& c);

    // `calls`, which call NCCL; together: as one NCCL group. `what`: for errors.
    template <class Calls>
    void call(std::string_view what, const Calls& calls);
    template <class Calls>
    void together(std::string_view what, const Calls& calls);
    // On the stream of collectives.
    void send(const void* data, int64_t bytes, int to);
    void receive(void* data, int64_t bytes, int from);
    Stream native() const { return side_->stream().native; }

    const std::unique_ptr<Communicator> host_;
    Device& device_;
    Guard& guard_;
    FlightRecorder& recorder_;
    const DeviceWorldOptions options_;
    const int exceptions_;  // uncaught ones at construction
    std::vector<NcclCommunicator*>& waiting_;
    std::unique_ptr<SideStream> side_, message_side_;
    std::shared_ptr<SideWork> last_, last_messages_;
    Comm root_ = nullptr, comm_ = nullptr, message_comm_ = nullptr;
    Hosts hosts_;
    Tensor arrived_;                 // values of other ranks, to be added: kReductionBytes
    std::vector<Message> messages_;  // begun and not started
    mutable Traffic both_;           // of the host's communicator and this one
};

}  // namespace tutti::comm::nccl
