// comm/processes/staged_operation.h: the collectives over processes. A tensor passes through shared memory in chunks:
// each rank copies its values into its slot, reduces one part of the chunk from the slots of all ranks, and copies the
// other parts out; three chunks are in flight at a time, one in each stage. Between hosts, every host adds its values
// of a part along the tree, the part's owner finishes the tree, and the result is sent back, all by messages of the
// wire that no call waits for. all_gather and broadcast use the second half alone.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/processes/group.h"
#include "tutti/comm/processes/group_shape.h"
#include "tutti/comm/processes/stream.h"

namespace tutti::comm::processes {

struct Transfer {
    Wire::Request request;
    int peer;  // of the group
    bool in;
};

// A chunk between hosts and its transfers in flight.
struct Step {
    Chunk chunk;
    std::vector<Part> parts;
    int phase = 0;  // 0: not begun, 1: parts are sent to their owners, 2: results are sent back, 3: done
    std::vector<Transfer> transfers;
    // Partial sums, by part and subtree of the tree, including those received from other hosts.
    std::vector<std::vector<std::vector<std::byte>>> sums;
};

class StagedOperation final : public Operation, public std::enable_shared_from_this<StagedOperation> {
  public:
    StagedOperation(std::shared_ptr<Group> group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(std::move(group)),
          element_(collective().input.defined() ? size_of(collective().input.dtype()) : 1),
          cutting_(group_->shape, collective(), group_->layout.slot_bytes / element_) {
        if (cutting_.chunks() > 0) group_->take_slots();
        Member& self = group_->self();
        self.announcements[sequence() % kInFlight] = Announcement::of(collective(), group_->key, sequence());
        self.begun = sequence();
        group_->host.notify();
    }

    bool advance() override {
        Member& self = group_->self();
        if (!announced_) announce();
        // Also while this rank waits for others of its host alone: a wire moves its messages when it is asked about
        // one, and an announcement may wait for its connection.
        group_->wire.all_done(announcements_out_);
        if (self.finished != sequence() - 1) return false;
        try {
            check(group_->broken.empty(), group_->broken);
            if (!work()) return false;
        } catch (const std::exception& e) {
            // The other ranks see the same error, or the failing rank tells them; none of them may wait for this rank.
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
    bool begin_step(Step& step);
    void scatter(Step& step);
    void send_partial_sums(Step& step);
    void finish_sums(Step& step);
    void share_results(Step& step);

    // --- roles of ranks ---
    bool reduces() const { return collective().kind == Kind::all_reduce || collective().kind == Kind::reduce_scatter; }
    bool between_hosts() const { return group_->shape.hosts() > 1; }
    int me() const { return group_->rank(); }
    int own_host() const { return group_->shape.host; }
    int root_host() const { return group_->shape.host_of[to_size(collective().peer)]; }
    // The rank of this host that works on a part.
    int holder(const Part& p) const {
        return p.host == own_host() ? p.owner : group_->shape.handler(own_host(), p.rail);
    }
    // The rank of this host in whose slot a finished part lies.
    int source(const Part& p) const {
        return collective().kind == Kind::broadcast && root_host() == own_host() ? collective().peer : holder(p);
    }
    std::byte* in_slot(int rank, const Step& step, const Part& p) const {
        return group_->slot(rank, step.chunk.number) + p.begin * element_;
    }
    const std::byte* input(const Part& p) const {
        return collective().input.view().as<const std::byte>() + p.full_begin * element_;
    }
    std::byte* output(const Part& p) const {
        return collective().output.view().as<std::byte>() + p.full_begin * element_;
    }
    void send(Step& step, const void* data, int64_t bytes, int to, Use use) const {
        if (bytes > 0)
            step.transfers.push_back(
                {group_->wire.send(data, bytes, group_->world_rank(to), group_->tag(use, to)), to, false});
    }
    void receive(Step& step, void* data, int64_t bytes, int from, Use use) const {
        if (bytes > 0)
            step.transfers.push_back(
                {group_->wire.receive(data, bytes, group_->world_rank(from), group_->tag(use, from)), from, true});
    }
    bool arrived(Step& step) const {
        std::erase_if(step.transfers, [&](const Transfer& t) { return group_->wire.done(t.request); });
        return step.transfers.empty();
    }
    // Ranks of this host inside the operation that do not wait.
    std::vector<int> standing_still() const;
    std::span<const Transfer> awaited() const {
        return steps_.empty() ? std::span<const Transfer>() : steps_.front().transfers;
    }
    template <class Visit>
    void for_other_hosts(const Visit& visit) const {
        for (int host = 0; host < group_->shape.hosts(); ++host)
            if (host != own_host()) visit(host);
    }

    struct RemoteAnnouncement {  // of another host
        int from;
        Announcement announcement;
        Wire::Request request;
    };

    const std::shared_ptr<Group> group_;
    const int64_t element_;  // bytes
    const Cutting cutting_;
    Announcement own_announcement_;
    std::vector<Wire::Request> announcements_out_;
    std::deque<RemoteAnnouncement> announcements_in_;
    std::unique_ptr<Exchange> exchange_;
    bool announced_ = false, listening_ = false, agreed_ = false;
    uint64_t first_ = 0;                    // number of the first chunk
    uint64_t in_ = 0, done_ = 0, out_ = 0;  // chunks through each stage
    std::deque<Step> steps_;
};

}  // namespace tutti::comm::processes
