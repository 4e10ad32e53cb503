// comm/nccl/communicator.h: the operations of one group on GPU memory. Each operation runs on a stream of its group,
// beside the rank's computation, and a wait for the operation makes the rank's stream wait, not the host. Messages have
// a separate communicator and stream, and those that a rank begins before its next wait start together: NCCL's send and
// receive wait for their partners, and two ranks that each send first would otherwise wait for each other.
#pragma once

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

// GPU memory for values that arrive to be summed.
class Scratch {
  public:
    Scratch() = default;
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::byte* of(int64_t bytes);

  private:
    std::byte* data_ = nullptr;
    int64_t bytes_ = 0;
};

class NcclCommunicator final : public Communicator {
  public:
    // `waiting`: the communicators whose messages have not started; those of all groups start together.
    NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, Guard& guard, Progress& progress,
                     const DeviceWorldOptions& options, std::vector<NcclCommunicator*>& waiting);
    ~NcclCommunicator() override;

    Work begin(Collective collective) override;
    void start_messages() override;
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
    void join_ranks();
    void start_all_messages();
    void leave(Comm& comm) noexcept;
    std::shared_ptr<NcclOperation> start_alone(const Collective& c, std::shared_ptr<NcclOperation> operation);
    void launch(const Collective& c);
    Result launch_alone(const Collective& c);
    void reduce_scatter(const Collective& c);
    void all_reduce(const Collective& c);
    void sum_in_place(const Collective& c);
    void all_to_all(const Collective& c);

    // Returns when `calls`, which call NCCL, are complete on `comm`. together: as one NCCL group; grouped: by a thread
    // that holds guard_.calling(), without a wait. `what`: for errors.
    template <class Calls>
    void grouped(std::string_view what, const Calls& calls);
    template <class Calls>
    void call(Comm comm, std::string_view what, const Calls& calls);
    template <class Calls>
    void together(Comm comm, std::string_view what, const Calls& calls);
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
    Comm comm_ = nullptr, message_comm_ = nullptr;
    std::vector<Message> messages_;  // begun and not started
    Scratch scratch_;
    Scratch first_messages_;  // separate: a Scratch that grows waits for the whole GPU
    mutable Traffic both_;    // of the host's communicator and this one
};

}  // namespace tutti::comm::nccl
