// comm/processes/group.h: one rank's view of a group: its shape, its host's block of shared memory, and the state that
// orders the rank's own operations.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/processes/group_shape.h"
#include "tutti/comm/processes/host.h"
#include "tutti/comm/processes/tags.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::processes {

inline constexpr uint64_t kInFlight = 64;  // operations of a rank that may be in flight at once in a group
inline constexpr uint64_t kSlots = 4;      // chunks of an operation that may be in flight at once

// The description of an operation that a rank sends before data: in shared memory to its host, as a message to others.
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

// Counters only increase. Chunks are numbered over all operations of the group.
struct alignas(64) Member {
    std::atomic<uint64_t> begun, begun_everywhere, finished;  // operations; begun_everywhere: by the other hosts too
    std::atomic<uint64_t> copied_in, reduced, copied_out;     // chunks
    alignas(64) std::array<Announcement, kInFlight> announcements;
};

// A stream of bytes from one rank of the host to another: messages in order, each after its announcement.
struct alignas(64) Channel {
    std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
};

// Sizes of the shared memory of a group with `members` on this host: the members' counters and the channels with their
// rings; and the slots of collectives.
struct BlockLayout {
    int64_t members, slot_bytes, ring_bytes;

    int64_t channels() const { return 2 * members * members; }  // messages and exchanges, by from, to
    int64_t control_bytes() const {
        return members * static_cast<int64_t>(sizeof(Member)) + channels() * static_cast<int64_t>(sizeof(Channel));
    }
    int64_t channel_bytes() const { return control_bytes() + channels() * ring_bytes; }
    int64_t all_slots_bytes() const { return members * static_cast<int64_t>(kSlots) * slot_bytes; }
};

class Group {
  public:
    // `ranks`: of the world, in the group's order. `key` differs between groups of one name and ranks.
    Group(std::string name, uint64_t key, const std::vector<int>& ranks, int rank, Wire& wire, Host& host, Tags& tags);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return shape.rank; }
    bool is_local(int group_rank) const { return shape.host_of[to_size(group_rank)] == shape.host; }
    // The member of a rank of this host.
    Member& member(int group_rank) const {
        return reinterpret_cast<Member*>(block_)[shape.position[to_size(group_rank)]];
    }
    Member& self() const { return member(rank()); }
    // Takes the memory of the slots, before a rank's first collective with data: a channel of a pipeline has none.
    void take_slots();
    std::byte* slot(int group_rank, uint64_t chunk) const;
    Channel& channel(bool exchange, int from, int to) const;
    std::span<std::byte> ring(bool exchange, int from, int to) const;

    // Of messages between this rank and a rank of another host.
    int tag(Use use, int group_rank) const { return first_tags_[to_size(group_rank)] + static_cast<int>(use); }
    int world_rank(int group_rank) const { return ranks_[to_size(group_rank)]; }
    bool all_local(std::atomic<uint64_t> Member::*counter, uint64_t reached) const;
    // Room for operation `sequence` among the announcements.
    bool can_begin(uint64_t sequence) const;
    // "rank 2 of the group", with the rank's known state.
    std::string who(int group_rank) const;

    const std::string name;
    const uint64_t key;
    const GroupShape shape;
    Wire& wire;
    Host& host;
    const BlockLayout layout;

    // The order of the own rank's operations.
    uint64_t chunks_so_far = 0;
    std::vector<uint64_t> sent, received;  // completed messages to and from each rank
    std::string broken;                    // why no operation of this group can succeed any more

  private:
    size_t channel_index(bool exchange, int from, int to) const;

    std::vector<int> ranks_;
    std::vector<int> first_tags_;  // by rank of the group; 0: of this host
    std::byte *block_, *slots_ = nullptr;
};

// Begins a collective (staged_operation.cpp) or a message (stream.cpp) of the group.
std::shared_ptr<Operation> start_staged(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence);
std::shared_ptr<Operation> start_message(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence);

}  // namespace tutti::comm::processes
