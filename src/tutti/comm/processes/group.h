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
#include "tutti/comm/progress.h"

namespace tutti::comm::processes {

inline constexpr uint64_t kInFlight = 64;  // operations of a rank that may be under way at once in a group
inline constexpr uint64_t kSlots = 4;      // chunks of an operation that may be under way at once

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
    std::atomic<uint64_t> begun, heard, finished;          // operations; heard: begun by other hosts too
    std::atomic<uint64_t> copied_in, reduced, copied_out;  // chunks
    alignas(64) std::array<Announcement, kInFlight> announcements;
};

// A stream of bytes from one rank of the host to another: messages in order, each after its announcement.
struct alignas(64) Channel {
    std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
};

enum class Use : uint8_t { announcement, part, result, message, message_data, exchange, exchange_data };
inline constexpr int kUses = 8;  // tags of a group

// Sizes and addresses in the block of shared memory of a group with `members` on this host.
struct BlockLayout {
    int64_t members, slot_bytes, ring_bytes;

    int64_t channels() const { return 2 * members * members; }  // messages and exchanges, by from, to
    int64_t control_bytes() const {
        return members * static_cast<int64_t>(sizeof(Member)) + channels() * static_cast<int64_t>(sizeof(Channel));
    }
    int64_t bytes() const {
        return control_bytes() + members * static_cast<int64_t>(kSlots) * slot_bytes + channels() * ring_bytes;
    }
};

class Group {
  public:
    // `ranks`: of the world, in the group's order. `key` differs between groups of one name and ranks.
    Group(std::string name, uint64_t key, const std::vector<int>& ranks, int rank, Wire& wire, Host& host);
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
    std::byte* slot(int group_rank, uint64_t chunk) const;
    Channel& channel(bool exchange, int from, int to) const;
    std::span<std::byte> ring(bool exchange, int from, int to) const;

    int tag(Use use) const { return first_tag + static_cast<int>(use); }
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
    const int first_tag;

    // The order of the own rank's operations.
    uint64_t chunks_so_far = 0;
    std::vector<uint64_t> sent, received;  // completed messages to and from each rank
    std::string broken;                    // why no operation of this group can succeed any more

  private:
    size_t channel_index(bool exchange, int from, int to) const;

    std::vector<int> ranks_;
    std::byte* block_;
};

// The key of a group: equal on all ranks, different for other names, ranks or generations.
uint64_t group_key(const std::string& name, const std::vector<int>& ranks, int generation);
// The first of kUses tags, below `highest`.
int first_tag_of(uint64_t key, int highest);

// Begins a collective (staged_operation.cpp) or a message (stream.cpp) of the group.
std::shared_ptr<Operation> start_staged(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence);
std::shared_ptr<Operation> start_message(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence);

}  // namespace tutti::comm::processes
