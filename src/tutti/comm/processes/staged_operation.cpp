#include "tutti/comm/processes/staged_operation.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/to_size.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::processes {

namespace {

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, to_size(bytes));
}

}  // namespace

// --- agreement -------------------------------------------------------------------------------------------------------

// Announces this rank's operation to the handlers of its rails on other hosts, before it is the operation's turn.
void StagedOperation::announce() {
    announced_ = true;
    if (!between_hosts()) return;
    own_announcement_ = Announcement::of(collective(), group_->key, sequence());
    const GroupTopology& topology = group_->topology;
    for (int rail = 0; rail < topology.rails; ++rail) {
        if (topology.handler(own_host(), rail) != own_rank()) continue;
        for_other_hosts([&](int host) {
            const int to = topology.handler(host, rail);
            announcements_out_.push_back(group_->wire.send(&own_announcement_, sizeof own_announcement_,
                                                           group_->world_rank(to), group_->tag(Use::announcement, to)));
        });
    }
}

// True once all ranks that this rank exchanges data with have begun the operation, on this host and on others.
bool StagedOperation::receive_announcements() {
    const GroupTopology& topology = group_->topology;
    if (!listening_) {
        listening_ = true;
        for (int rail = 0; rail < topology.rails; ++rail) {
            if (topology.handler(own_host(), rail) != own_rank()) continue;
            for_other_hosts([&](int host) {
                const int from = topology.handler(host, rail);
                RemoteAnnouncement& remote = announcements_in_.emplace_back(RemoteAnnouncement{from, {}, -1});
                remote.request = group_->wire.receive(&remote.announcement, sizeof remote.announcement,
                                                      group_->world_rank(from), group_->tag(Use::announcement, from));
            });
        }
    }
    bool all = true;
    for (RemoteAnnouncement& remote : announcements_in_) {
        if (remote.request >= 0 && group_->wire.done(remote.request)) remote.request = -1;
        all = all && remote.request < 0;
    }
    if (!all || !group_->all_local(&Member::begun, sequence())) return false;
    if (group_->self().begun_everywhere < sequence()) {
        check_agreement();
        group_->self().begun_everywhere = sequence();
        group_->host.notify();
    }
    // A rank may receive data of other hosts only after their announcements. A barrier ends when all have arrived.
    return group_->all_local(&Member::begun_everywhere, sequence());
}

void StagedOperation::check_agreement() const {
    const auto compare = [&](int rank, const Announcement& a) {
        check(a.group == group_->key && a.sequence == sequence(), "group ", group_->name, ", operation ", sequence(),
              ": received a message of another group or operation from ", group_->name_of(rank),
              "; both ranks must make the groups that they share in the same order");
        check_agree(group_->name, sequence(), own_rank(), collective().summary(), rank, a.summary());
    };
    for (const int rank : group_->topology.locals())
        compare(rank, group_->member(rank).announcements[sequence() % kInFlight]);
    for (const RemoteAnnouncement& remote : announcements_in_) compare(remote.from, remote.announcement);
}

// --- stages ----------------------------------------------------------------------------------------------------------

bool StagedOperation::work() {
    if (!agreed_) {
        first_ = group_->chunks_so_far;
        // Before the other ranks agree, since this rank writes its own slots.
        if (copied_in_ == 0 && copy_in()) group_->host.notify();
        if (!receive_announcements()) return false;
        agreed_ = true;
    }
    if (collective().kind == Kind::all_to_all) {
        if (!all_to_all_) all_to_all_ = std::make_unique<AllToAll>(*group_, collective(), sequence());
        return all_to_all_->advance() && announcements_out_.empty();
    }
    for (bool moved = true; moved;) {
        moved = copy_out();
        moved = reduce() || moved;
        moved = copy_in() || moved;
        if (moved) group_->host.notify();
    }
    if (copied_out_ < chunking_.chunks() || !announcements_out_.empty()) return false;
    group_->chunks_so_far = first_ + chunking_.chunks();
    return true;
}

bool StagedOperation::copy_in() {
    bool any = false;
    for (; copied_in_ < chunking_.chunks(); ++copied_in_, any = true) {
        const Chunk chunk = chunking_.chunk(copied_in_, first_);
        // The slot is free once all ranks have copied its previous chunk out.
        if (chunk.number >= kSlots && !group_->all_local(&Member::copied_out, chunk.number - kSlots + 1)) break;
        for (const ChunkPart& p : chunking_.parts(chunk)) {
            const int64_t bytes = p.count * element_;
            if (reduces() && holder(p) != own_rank()) copy(input(p), bytes, in_slot(own_rank(), chunk, p));
            if (collective().kind == Kind::broadcast && own_rank() == collective().peer)
                copy(input(p), bytes, in_slot(own_rank(), chunk, p));
            if (collective().kind == Kind::all_gather && p.owner == own_rank()) {
                const std::byte* own = collective().input.view().as<const std::byte>() + chunk.begin * element_;
                copy(own, bytes, in_slot(own_rank(), chunk, p));
                copy(own, bytes, output(p));
            }
        }
        group_->self().copied_in = chunk.number + 1;
    }
    return any;
}

// Chunks pass each phase in order, so messages with one tag between two ranks are in order too.
bool StagedOperation::reduce() {
    bool any = false;
    const uint64_t begun = reduced_ + reducing_.size();
    if (begun < copied_in_) reducing_.push_back({.chunk = chunking_.chunk(begun, first_)});
    int allowed = 3;
    for (ChunkInFlight& active : reducing_) {
        while (active.phase < allowed && (active.phase == 0 ? begin_chunk(active) : transfers_done(active))) {
            ++active.phase;
            any = true;
            if (active.phase == 2) {
                if (reduces()) finish_sums(active);
                send_results(active);
            }
        }
        allowed = active.phase;
    }
    while (!reducing_.empty() && reducing_.front().phase == 3) {
        group_->self().reduced = reducing_.front().chunk.number + 1;
        ++reduced_;
        reducing_.pop_front();
    }
    return any;
}

bool StagedOperation::copy_out() {
    bool any = false;
    for (; copied_out_ < reduced_; ++copied_out_, any = true) {
        const Chunk chunk = chunking_.chunk(copied_out_, first_);
        if (collective().kind != Kind::reduce_scatter) {
            if (!group_->all_local(&Member::reduced, chunk.number + 1)) break;
            for (const ChunkPart& p : chunking_.parts(chunk)) {
                const bool has_result =
                    collective().kind == Kind::broadcast ? own_rank() == collective().peer : p.owner == own_rank();
                if (!has_result) copy(in_slot(source(p), chunk, p), p.count * element_, output(p));
            }
        }
        group_->self().copied_out = chunk.number + 1;
    }
    return any;
}

std::shared_ptr<Operation> start_staged(const std::shared_ptr<ProcessGroup>& group, Collective collective,
                                        uint64_t sequence) {
    return std::make_shared<StagedOperation>(group, std::move(collective), sequence);
}

// --- a chunk between hosts -------------------------------------------------------------------------------------------

bool StagedOperation::begin_chunk(ChunkInFlight& active) {
    if (!group_->all_local(&Member::copied_in, active.chunk.number + 1)) return false;
    active.parts = chunking_.parts(active.chunk);
    if (reduces()) send_partial_sums(active);
    if (collective().kind == Kind::broadcast && between_hosts()) scatter(active);
    return true;
}

// Computes this host's sums of its subtrees, and sends those of parts that other ranks own to the owners. For parts
// that this rank owns, posts receives for the sums of other hosts.
void StagedOperation::send_partial_sums(ChunkInFlight& active) {
    const DType dtype = collective().input.dtype(), wide = sum_type(dtype);
    const std::vector<Subtree>& forest = group_->topology.forest;
    active.sums.resize(active.parts.size());
    for (size_t i = 0; i < active.parts.size(); ++i) {
        const ChunkPart& p = active.parts[i];
        if (!between_hosts() || holder(p) != own_rank()) continue;
        for (const Subtree& tree : forest) {
            auto& sum = active.sums[i].emplace_back();
            if (tree.host != own_host() && p.owner != own_rank()) continue;
            sum.resize(to_size(p.count * size_of(wide)));
            if (tree.host != own_host()) {
                receive(active, sum.data(), static_cast<int64_t>(sum.size()),
                        group_->topology.handler(tree.host, p.rail), Use::part);
                continue;
            }
            std::vector<const void*> inputs;
            for (int r = tree.first; r < tree.first + tree.count; ++r)
                inputs.push_back(r == own_rank() ? input(p) : in_slot(r, active.chunk, p));
            void* out = sum.data();
            tree_reduce(collective().reduce, dtype, inputs, wide, {&out, 1}, 0, p.count);
            if (p.owner != own_rank()) send(active, sum.data(), static_cast<int64_t>(sum.size()), p.owner, Use::part);
        }
    }
}

void StagedOperation::finish_sums(ChunkInFlight& active) {
    const Collective& c = collective();
    for (size_t i = 0; i < active.parts.size(); ++i) {
        const ChunkPart& p = active.parts[i];
        if (p.owner != own_rank()) continue;
        std::vector<void*> outputs;
        if (c.kind == Kind::all_reduce) outputs = {output(p), in_slot(own_rank(), active.chunk, p)};
        if (c.kind == Kind::reduce_scatter)
            outputs = {c.output.view().as<std::byte>() + active.chunk.begin * size_of(c.output.dtype())};
        std::vector<const void*> inputs;
        std::vector<int> ranks;
        if (between_hosts()) {
            for (size_t t = 0; t < active.sums[i].size(); ++t) {
                inputs.push_back(active.sums[i][t].data());
                ranks.push_back(group_->topology.forest[t].count);
            }
        } else {
            for (int r = 0; r < group_->topology.ranks(); ++r)
                inputs.push_back(r == own_rank() ? input(p) : in_slot(r, active.chunk, p));
        }
        const DType from = between_hosts() ? sum_type(c.input.dtype()) : c.input.dtype();
        tree_reduce(c.reduce, from, inputs, c.output.dtype(), outputs, 0, p.count, ranks);
    }
}

// A broadcast sends each part from the root's host to its owner, once; send_results() forwards the part from there.
void StagedOperation::scatter(ChunkInFlight& active) {
    for (const ChunkPart& p : active.parts) {
        const int64_t bytes = p.count * element_;
        if (p.host == root_host()) continue;
        const int from = group_->topology.handler(root_host(), p.rail);
        if (from == own_rank()) send(active, in_slot(collective().peer, active.chunk, p), bytes, p.owner, Use::part);
        if (p.owner == own_rank()) receive(active, in_slot(own_rank(), active.chunk, p), bytes, from, Use::part);
    }
}

// Owners send the results of their parts to every host that lacks them.
void StagedOperation::send_results(ChunkInFlight& active) {
    if (!between_hosts() || collective().kind == Kind::reduce_scatter) return;
    const bool broadcast = collective().kind == Kind::broadcast;
    for (const ChunkPart& p : active.parts) {
        const int64_t bytes = p.count * element_;
        if (p.owner == own_rank())
            for_other_hosts([&](int host) {
                if (!broadcast || host != root_host())
                    send(active, in_slot(source(p), active.chunk, p), bytes, group_->topology.handler(host, p.rail),
                         Use::result);
            });
        if (p.host != own_host() && holder(p) == own_rank() && !(broadcast && own_host() == root_host()))
            receive(active, in_slot(own_rank(), active.chunk, p), bytes, p.owner, Use::result);
    }
}

// --- for error messages ----------------------------------------------------------------------------------------------

std::vector<int> StagedOperation::hanging_ranks() const {
    std::vector<int> still;
    for (const int rank : group_->topology.locals())
        if (rank != own_rank() && group_->member(rank).finished < sequence() &&
            !group_->host.is_waiting(group_->world_rank(rank)))
            still.push_back(rank);
    return still;
}

// Ranks of a host see which rank of that host hangs or has not begun. A rank that is alone on its host can be named
// only by the ranks that miss its data or its announcement. Any other rank of another host may itself wait for a rank
// there.
bool StagedOperation::waits_on_waiters() const {
    if (group_->self().finished < sequence() - 1 || all_to_all_) return false;
    const auto is_alone = [&](int rank) {
        const auto host = to_size(group_->topology.host_of[to_size(rank)]);
        return group_->topology.members[host].size() == 1;
    };
    for (const RemoteAnnouncement& remote : announcements_in_)
        if (remote.request >= 0 && is_alone(remote.from)) return false;
    for (const int rank : group_->topology.locals())
        if (group_->member(rank).begun < sequence()) return false;
    if (!hanging_ranks().empty()) return false;
    for (const Transfer& t : awaited())
        if (is_alone(t.peer)) return false;
    return true;
}

std::string StagedOperation::waits_for() const {
    std::string text;
    const auto add = [&](int rank, const std::string& why) {
        text += concat(text.empty() ? "" : ", ", group_->name_of(rank), why,
                       group_->host.last_operation(group_->world_rank(rank)));
    };
    if (group_->self().finished < sequence() - 1)
        return concat("operation ", group_->self().finished + 1, " of the group, which must end first");
    for (const int rank : group_->topology.locals()) {
        const uint64_t begun = group_->member(rank).begun;
        if (begun < sequence()) add(rank, concat(", which has begun only operation ", begun));
    }
    for (const RemoteAnnouncement& remote : announcements_in_)
        if (remote.request >= 0) add(remote.from, ", which has not announced this operation");
    if (!text.empty()) return text;
    for (const int rank : hanging_ranks()) {
        const Member& m = group_->member(rank);
        add(rank, concat(", which hangs in this operation (", m.copied_in - std::min(m.copied_in.load(), first_),
                         " chunks begun, ", m.copied_out - std::min(m.copied_out.load(), first_), " ended)"));
    }
    for (const Transfer& t : awaited())
        add(t.peer, t.is_receive ? ", whose data has not arrived" : ", which has not taken this rank's data");
    if (all_to_all_) text += concat(text.empty() ? "" : ", ", all_to_all_->waits_for());
    return text.empty() ? "ranks of this host, which are waiting themselves" : text;
}

}  // namespace tutti::comm::processes
