// comm/processes/shared_state.h: the state that the ranks of one host share, in one window of shared memory: the
// notifier, the reason of an abort, the status and last operation of each rank, and the allocator of the groups'
// blocks.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <span>
#include <string>

#include "tutti/comm/collective.h"
#include "tutti/comm/processes/wire.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::processes {

enum class RankStatus : uint32_t { starting, running, ended, failed, dead };

// The last operation that a rank began, for the time-out messages of other ranks.
struct LastOperation {
    std::array<char, 40> group{};
    uint64_t sequence = 0;  // 0: none yet
    Summary operation;
    std::string text() const;  // "all_reduce of 3 f32, operation 7 of group dp"
};

class SharedState final : public Notifier {
  public:
    // Shared memory reserved for the groups of one rank. Pages are allocated when they are first written.
    static constexpr int64_t kBytesPerRank = int64_t{64} << 20;

    // `window`: from Wire::share, `bytes` long: control_bytes(), then the memory of the groups. Collective over the
    // host's ranks.
    SharedState(Wire& wire, std::byte* window, int64_t bytes, bool progress_threads);
    static int64_t control_bytes(int ranks_of_host);
    ~SharedState() override;

    // A section of the block of the group with this key, shared by the group's `members` on this host; the first
    // `zeroed` bytes are zero. Every member acquires the section `rings`; both sections are freed when all members have
    // released the key. Error when the window is full.
    enum class Section : uint8_t { rings, slots };
    std::byte* acquire(uint64_t key, Section section, int64_t bytes, int64_t zeroed, int members);
    void release(uint64_t key);

    void set_last_operation(const LastOperation& operation);  // of this rank
    // Whether a rank of this host has polled a moment ago, as ranks that wait do.
    bool is_waiting(int world_rank) const;
    // Text to follow the name of a rank of this host: "; its last operation is …", " and has ended". "" for ranks of
    // other hosts and before the first operation.
    std::string last_operation(int world_rank) const;

    void set_status(RankStatus status);
    // This rank has ended without error: the window must not be used any more.
    void close();
    bool all_stopped() const;               // no rank of the host is running
    void abort(const std::string& reason);  // the first reason is kept

    void sleep(Clock::time_point until, const std::function<bool()>& ready) override;
    void notify() override;
    void check_abort() const override;
    std::chrono::nanoseconds spin_time() const override { return spin_time_; }

  private:
    struct Control;
    struct RankState;
    struct Block;

    RankState& state(size_t local) const;
    std::span<Block> blocks() const;
    int64_t allocate(int64_t bytes);  // an offset in the window; never freed
    Block& free_block(int64_t bytes);
    void poll();
    void detect_dead_ranks();
    size_t local_of(int world_rank) const;  // locals.size() for a rank of another host

    Wire& wire_;
    std::byte* window_;
    int64_t bytes_;
    size_t local_;
    std::chrono::nanoseconds spin_time_;
    Control* control_;
    // The longest sleep until the next poll, which doubles while no message arrives, and the number of messages that
    // had arrived at the last poll.
    std::atomic<Clock::rep> nap_;
    std::atomic<uint64_t> messages_seen_{0};
    std::atomic<bool> closed_{false};
};

}  // namespace tutti::comm::processes
