// comm/processes/staged_operation.h: the collectives over processes. A tensor passes through shared memory in chunks.
// Each rank copies its values into its slot, reduces one part of the chunk from the slots of all ranks, and copies the
// other parts out. Three chunks are in flight at a time, one in each stage. Between hosts, each host sums its values of
// a part along the tree, the part's owner finishes the tree, and the result is sent back, all by non-blocking messages
// of the wire. all_gather and broadcast need only the way back.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/group_topology.h"
#include "tutti/comm/processes/process_group.h"
#include "tutti/comm/processes/stream.h"

namespace tutti::comm::processes {

struct Transfer {
    Wire::Request request;
    int peer;  // rank in the group
    bool is_receive;
};

// A chunk that is being reduced, and its transfers between hosts.
struct ChunkInFlight {
    Chunk chunk;
    std::vector<ChunkPart> parts;
    int phase = 0;  // 0: not begun, 1: parts are sent to their owners, 2: results are sent back, 3: done
    std::vector<Transfer> transfers;  // not complete
    // Partial sums by part and subtree, including those received from other hosts.
    std::vector<std::vector<std::vector<std::byte>>> sums;
};

class StagedOperation final : public Operation, public std::enable_shared_from_this<StagedOperation> {
  public:
    StagedOperation(std::shared_ptr<ProcessGroup> group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(std::move(group)),
          element_(collective().input.defined() ? size_of(collective().input.dtype()) : 1),
          chunking_(group_->topology, collective(), group_->layout.slot_bytes / element_) {
        if (chunking_.chunks() > 0) group_->allocate_slots();
        Member& self = group_->self();
        self.announcements[sequence() % kInFlight] = Announcement::of(collective(), group_->key, sequence());
        self.begun = sequence();
        group_->host.notify();
    }

    bool advance() override {
        Member& self = group_->self();
        if (!announced_) announce();
        // Even while this rank waits only for ranks of its host: a wire moves messages only when it is asked about one,
        // and an announcement may wait for its connection.
        group_->wire.all_done(announcements_out_);
        if (self.finished != sequence() - 1) return false;
        try {
            check(group_->broken.empty(), group_->broken);
            if (!work()) return false;
        } catch (const std::exception& e) {
            // The other ranks find the same error or are told by the failing rank, so none of them may wait for this
            // one.
            if (group_->broken.empty()) group_->broken = e.what();
            group_->wire.keep(shared_from_this());
            self.begun_everywhere = sequence();
            finish();
            throw;
        }
        finish();
        return true;
    }

    std::string waits_for() const override;
    bool waits_on_waiters() const override;

  private:
    bool work();
    void announce();
    bool receive_announcements();
    void check_agreement() const;
    void finish() {
        group_->self().finished = sequence();
        group_->host.notify();
    }

    bool copy_in();
    bool reduce();
    bool copy_out();
    bool begin_chunk(ChunkInFlight& chunk);
    void scatter(ChunkInFlight& chunk);
    void send_partial_sums(ChunkInFlight& chunk);
    void finish_sums(ChunkInFlight& chunk);
    void send_results(ChunkInFlight& chunk);

    // --- roles of ranks ---
    bool reduces() const { return is_reduction(collective().kind); }
    bool between_hosts() const { return group_->topology.hosts() > 1; }
    int own_rank() const { return group_->rank(); }
    int own_host() const { return group_->topology.host; }
    int root_host() const { return group_->topology.host_of[to_size(collective().peer)]; }
    // The rank of this host that reduces or receives a part.
    int holder(const ChunkPart& p) const {
        return p.host == own_host() ? p.owner : group_->topology.handler(own_host(), p.rail);
    }
    // The rank of this host whose slot holds the result of a part.
    int source(const ChunkPart& p) const {
        return collective().kind == Kind::broadcast && root_host() == own_host() ? collective().peer : holder(p);
    }
    std::byte* in_slot(int rank, const Chunk& chunk, const ChunkPart& p) const {
        return group_->slot(rank, chunk.number) + p.begin * element_;
    }
    const std::byte* input(const ChunkPart& p) const {
        return collective().input.view().as<const std::byte>() + p.full_begin * element_;
    }
    std::byte* output(const ChunkPart& p) const {
        return collective().output.view().as<std::byte>() + p.full_begin * element_;
    }
    void send(ChunkInFlight& chunk, const void* data, int64_t bytes, int to, Use use) const {
        if (bytes > 0)
            chunk.transfers.push_back(
                {group_->wire.send(data, bytes, group_->world_rank(to), group_->tag(use, to)), to, false});
    }
    void receive(ChunkInFlight& chunk, void* data, int64_t bytes, int from, Use use) const {
        if (bytes > 0)
            chunk.transfers.push_back(
                {group_->wire.receive(data, bytes, group_->world_rank(from), group_->tag(use, from)), from, true});
    }
    bool transfers_done(ChunkInFlight& chunk) const {
        std::erase_if(chunk.transfers, [&](const Transfer& t) { return group_->wire.done(t.request); });
        return chunk.transfers.empty();
    }
    // Ranks of this host that have begun the operation, have not finished it, and do not wait.
    std::vector<int> hanging_ranks() const;
    std::span<const Transfer> awaited() const {
        return reducing_.empty() ? std::span<const Transfer>() : reducing_.front().transfers;
    }
    template <class Visit>
    void for_other_hosts(const Visit& visit) const {
        for (int host = 0; host < group_->topology.hosts(); ++host)
            if (host != own_host()) visit(host);
    }

    struct RemoteAnnouncement {  // of a rank of another host
        int from;
        Announcement announcement;
        Wire::Request request;
    };

    const std::shared_ptr<ProcessGroup> group_;
    const int64_t element_;  // bytes
    const Chunking chunking_;
    Announcement own_announcement_;
    std::vector<Wire::Request> announcements_out_;
    std::deque<RemoteAnnouncement> announcements_in_;
    std::unique_ptr<AllToAll> all_to_all_;
    bool announced_ = false, listening_ = false, agreed_ = false;
    uint64_t first_ = 0;                                     // number of the first chunk
    uint64_t copied_in_ = 0, reduced_ = 0, copied_out_ = 0;  // chunks that have passed each stage
    std::deque<ChunkInFlight> reducing_;
};

}  // namespace tutti::comm::processes
