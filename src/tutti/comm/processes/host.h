// comm/processes/host.h: the shared state of the ranks of one host besides their groups: the notifier, the reason of an
// abort, each rank's status and last operation, and the memory from which groups take their blocks. All of it is in one
// window of shared memory.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/collective.h"
#include "tutti/comm/processes/wire.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::processes {

enum class RankStatus : uint32_t { starting, running, ended, failed, dead };

// The last operation that a rank began, for the error messages of ranks that wait for this rank.
struct LastOperation {
    std::array<char, 40> group{};
    uint64_t sequence = 0;  // 0: none yet
    Summary operation;
    std::string text() const;  // "all_reduce of 3 f32, operation 7 of group dp"
};

class Host final : public Notifier {
  public:
    // Shared memory for the groups of a rank together. Only pages that are used take memory.
    static constexpr int64_t kBytesPerRank = int64_t{64} << 20;

    // `window`: from Wire::share; control_bytes and the memory of the groups. Collective over the host's ranks.
    Host(Wire& wire, std::byte* window, int64_t bytes, bool progress_threads);
    static int64_t control_bytes(int ranks_of_host);
    ~Host() override;

    // Memory of the group with this key, shared by the `members` of this host that ask for it, zeroed in its first
    // `zeroed` bytes. Every member has the section `channels`; both are free again when all members have released the
    // key. Error when the window is full.
    enum class Section : uint8_t { channels, slots };
    std::byte* acquire(uint64_t key, Section section, int64_t bytes, int64_t zeroed, int members);
    void release(uint64_t key);

    void note(const LastOperation& operation);  // of the own rank
    // Whether a rank of this host itself waited a moment ago, in any operation.
    bool is_waiting(int world_rank) const;
    // For a rank of this host, behind its name: "; its last operation is …", " and has ended". "" for ranks of other
    // hosts and before the first operation.
    std::string last_operation(int world_rank) const;

    void set_status(RankStatus status);
    // The own rank has ended without error: no code may use the window any more.
    void close();
    // True when no rank of the host is running.
    bool all_stopped() const;
    void abort(const std::string& reason);  // the first reason stays

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
    int64_t take(int64_t bytes);  // an offset in the window
    Block& free_block(int64_t bytes);
    void poll();
    void detect_dead_ranks();
    size_t local_of(int world_rank) const;  // locals.size(): on another host

    Wire& wire_;
    std::byte* window_;
    int64_t bytes_;
    size_t local_;
    std::chrono::nanoseconds spin_time_;
    Control* control_;
    // The next poll for messages, and their number at the last poll: polls become rarer while no message arrives.
    std::atomic<Clock::rep> nap_;
    std::atomic<uint64_t> messages_seen_{0};
    std::atomic<bool> closed_{false};
};

}  // namespace tutti::comm::processes
