#include "tutti/comm/processes/process_group.h"

#include <algorithm>
#include <bit>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::processes {

namespace {

std::vector<int> hosts_of(const std::vector<int>& ranks, const Topology& place) {
    std::vector<int> hosts;
    for (const int rank : ranks) hosts.push_back(place.host_of[to_size(rank)]);
    return hosts;
}

// Slots of 512 KiB: four slots of a few ranks fit a shared L3 cache, and the copies outweigh a chunk's three barriers.
// An all_reduce of 64 MiB over two ranks took 16 to 22 ms; with slots of 128 KiB, 18 to 28. Rings: at most 1 MiB per
// rank and direction.
BlockLayout layout_of(const GroupTopology& topology) {
    const auto members = static_cast<int64_t>(topology.locals().size());
    const auto ring = std::bit_floor(static_cast<uint64_t>((1 << 20) / members));
    return {.members = members,
            .slot_bytes = 512 << 10,
            .ring_bytes = std::clamp(static_cast<int64_t>(ring), int64_t{4 << 10}, int64_t{256 << 10})};
}

}  // namespace

Announcement Announcement::of(const Collective& collective, uint64_t group, uint64_t sequence) {
    const Summary s = collective.summary();
    return {.group = group,
            .sequence = sequence,
            .count = s.count,
            .peer = s.peer,
            .kind = s.kind,
            .reduce = s.reduce,
            .dtype = s.dtype};
}

ProcessGroup::ProcessGroup(std::string name_, uint64_t key_, const std::vector<int>& ranks, int rank, Wire& wire_,
                           SharedState& host_, Tags& tags)
    : name(std::move(name_)),
      key(key_),
      topology(GroupTopology::of(hosts_of(ranks, wire_.topology()), rank)),
      wire(wire_),
      host(host_),
      layout(layout_of(topology)),
      sent(ranks.size()),
      received(ranks.size()),
      ranks_(ranks),
      block_(host.acquire(key, SharedState::Section::rings, layout.all_rings_bytes(), layout.counter_bytes(),
                          static_cast<int>(layout.members))) {
    for (int r = 0; r < topology.ranks(); ++r) first_tags_.push_back(is_local(r) ? 0 : tags.claim(world_rank(r), key));
}

ProcessGroup::~ProcessGroup() { host.release(key); }

void ProcessGroup::allocate_slots() {
    if (slots_ != nullptr) return;
    slots_ =
        host.acquire(key, SharedState::Section::slots, layout.all_slots_bytes(), 0, static_cast<int>(layout.members));
}

std::byte* ProcessGroup::slot(int group_rank, uint64_t chunk) const {
    const int64_t position = topology.position[to_size(group_rank)];
    return slots_ +
           (position * static_cast<int64_t>(kSlots) + static_cast<int64_t>(chunk % kSlots)) * layout.slot_bytes;
}

size_t ProcessGroup::ring_index(StreamKind kind, int from, int to) const {
    const auto members = to_size(layout.members);
    const auto position = [&](int r) { return to_size(topology.position[to_size(r)]); };
    return (to_size(kind) * members + position(from)) * members + position(to);
}

RingCounters& ProcessGroup::ring_counters(StreamKind kind, int from, int to) const {
    std::byte* counters = block_ + layout.members * static_cast<int64_t>(sizeof(Member));
    return reinterpret_cast<RingCounters*>(counters)[ring_index(kind, from, to)];
}

std::span<std::byte> ProcessGroup::ring(StreamKind kind, int from, int to) const {
    std::byte* rings = block_ + layout.counter_bytes();
    const auto index = static_cast<int64_t>(ring_index(kind, from, to));
    return {rings + index * layout.ring_bytes, to_size(layout.ring_bytes)};
}

bool ProcessGroup::all_local(std::atomic<uint64_t> Member::*counter, uint64_t reached) const {
    const auto* members = reinterpret_cast<const Member*>(block_);
    return std::all_of(members, members + layout.members,
                       [&](const Member& m) { return (m.*counter).load(std::memory_order_seq_cst) >= reached; });
}

bool ProcessGroup::can_begin(uint64_t sequence) const {
    return sequence <= kInFlight || all_local(&Member::finished, sequence - kInFlight);
}

std::string ProcessGroup::name_of(int group_rank) const {
    const int rank = world_rank(group_rank);
    std::string text = concat("rank ", group_rank, " of the group");
    if (rank != group_rank) text += concat(" (rank ", rank, " of all)");
    if (topology.hosts() > 1) text += concat(" on host ", wire.topology().host_names[to_size(rank)]);
    return text;
}

}  // namespace tutti::comm::processes
