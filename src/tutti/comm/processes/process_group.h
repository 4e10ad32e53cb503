// comm/processes/process_group.h: one rank's view of a group: its topology, its block of the host's shared memory, and
// the order of the rank's own operations.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/processes/group_topology.h"
#include "tutti/comm/processes/shared_state.h"
#include "tutti/comm/processes/tags.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::processes {

inline constexpr uint64_t kInFlight = 64;  // operations that a rank may have in flight in a group
inline constexpr uint64_t kSlots = 4;      // chunks that an operation may have in flight

// The description of an operation, which a rank publishes before any data: in shared memory to its host, as a message
// to other hosts.
struct Announcement {
    uint64_t group = 0, sequence = 0;
    int64_t count = 0;
    int32_t peer = 0;
    Kind kind = Kind::barrier;
    Reduce reduce = Reduce::sum;
    DType dtype = DType::u8;

    static Announcement of(const Collective& collective, uint64_t group, uint64_t sequence);
    Summary summary() const { return {.kind = kind, .reduce = reduce, .dtype = dtype, .count = count, .peer = peer}; }
};

// A rank's progress in a group. Counters only increase. Chunks are numbered over all operations of the group.
struct alignas(64) Member {
    std::atomic<uint64_t> begun, begun_everywhere, finished;  // operations; begun_everywhere: on the other hosts too
    std::atomic<uint64_t> copied_in, reduced, copied_out;     // chunks
    alignas(64) std::array<Announcement, kInFlight> announcements;
};

// The two streams of bytes between two ranks: messages, and parts of all_to_all. Each keeps its own order.
enum class StreamKind : uint8_t { messages, all_to_all };

// Bytes that went through the ring of a stream between two ranks of the host.
struct alignas(64) RingCounters {
    std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
};

// Sizes of the shared memory of a group with `members` on this host: the members' counters, the rings with their
// counters, and the slots of collectives.
struct BlockLayout {
    int64_t members, slot_bytes, ring_bytes;

    int64_t rings() const { return 2 * members * members; }  // by kind of stream, sender, receiver
    int64_t counter_bytes() const {
        return members * static_cast<int64_t>(sizeof(Member)) + rings() * static_cast<int64_t>(sizeof(RingCounters));
    }
    int64_t all_rings_bytes() const { return counter_bytes() + rings() * ring_bytes; }
    int64_t all_slots_bytes() const { return members * static_cast<int64_t>(kSlots) * slot_bytes; }
};

class ProcessGroup {
  public:
    // `ranks`: of the world, in the group's order. `key`: group_key().
    ProcessGroup(std::string name, uint64_t key, const std::vector<int>& ranks, int rank, Wire& wire, SharedState& host,
                 Tags& tags);
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return topology.rank; }
    bool is_local(int group_rank) const { return topology.host_of[to_size(group_rank)] == topology.host; }
    // The counters of a rank of this host.
    Member& member(int group_rank) const {
        return reinterpret_cast<Member*>(block_)[topology.position[to_size(group_rank)]];
    }
    Member& self() const { return member(rank()); }
    // Allocates the slots, before the rank's first collective with data: a group for messages alone needs none.
    void allocate_slots();
    std::byte* slot(int group_rank, uint64_t chunk) const;
    RingCounters& ring_counters(StreamKind kind, int from, int to) const;
    std::span<std::byte> ring(StreamKind kind, int from, int to) const;

    // The tag of messages between this rank and a rank of another host.
    int tag(Use use, int group_rank) const { return first_tags_[to_size(group_rank)] + static_cast<int>(use); }
    int world_rank(int group_rank) const { return ranks_[to_size(group_rank)]; }
    // Whether all ranks of this host have reached this value of a counter.
    bool all_local(std::atomic<uint64_t> Member::*counter, uint64_t reached) const;
    // Whether there is room for operation `sequence` among the announcements.
    bool can_begin(uint64_t sequence) const;
    // "rank 2 of the group (rank 6 of all) on host n1"
    std::string name_of(int group_rank) const;

    const std::string name;
    const uint64_t key;
    const GroupTopology topology;
    Wire& wire;
    SharedState& host;
    const BlockLayout layout;

    // Progress of the rank's own operations.
    uint64_t chunks_so_far = 0;
    std::vector<uint64_t> sent, received;  // complete messages to and from each rank
    std::string broken;                    // why all further operations of this group fail

  private:
    size_t ring_index(StreamKind kind, int from, int to) const;

    std::vector<int> ranks_;
    std::vector<int> first_tags_;  // by rank of the group; 0 for ranks of this host
    std::byte *block_, *slots_ = nullptr;
};

// Starts a collective (staged_operation.cpp) or a message (stream.cpp) of the group.
std::shared_ptr<Operation> start_staged(const std::shared_ptr<ProcessGroup>& group, Collective collective,
                                        uint64_t sequence);
std::shared_ptr<Operation> start_message(const std::shared_ptr<ProcessGroup>& group, Collective collective,
                                         uint64_t sequence);

}  // namespace tutti::comm::processes
