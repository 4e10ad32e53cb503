#include "tutti/comm/processes/staged_operation.h"

#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::processes {

namespace {

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, to_size(bytes));
}

}  // namespace

// --- agreement -------------------------------------------------------------------------------------------------------

// Announces this rank's operation to the rails of other hosts by small messages, ahead of the operation's turn.
void StagedOperation::announce() {
    announced_ = true;
    if (!between_hosts()) return;
    own_announcement_ = Announcement::of(collective(), group_->key, sequence());
    const GroupShape& shape = group_->shape;
    for (int rail = 0; rail < shape.rails; ++rail) {
        if (shape.handler(own_host(), rail) != me()) continue;
        for_other_hosts([&](int host) {
            const int to = shape.handler(host, rail);
            announcements_out_.push_back(group_->wire.send(&own_announcement_, sizeof own_announcement_,
                                                           group_->world_rank(to), group_->tag(Use::announcement, to)));
        });
    }
}

// True once all ranks that this rank exchanges data with have begun the operation, on this host and on others.
bool StagedOperation::receive_announcements() {
    const GroupShape& shape = group_->shape;
    if (!listening_) {
        listening_ = true;
        for (int rail = 0; rail < shape.rails; ++rail) {
            if (shape.handler(own_host(), rail) != me()) continue;
            for_other_hosts([&](int host) {
                const int from = shape.handler(host, rail);
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
    // A rank may receive data of other hosts only after their announcements; a barrier ends when all announcements
    // came.
    return group_->all_local(&Member::begun_everywhere, sequence());
}

void StagedOperation::check_agreement() const {
    const auto compare = [&](int rank, const Announcement& a) {
        check(a.group == group_->key && a.sequence == sequence(), "group ", group_->name, ", operation ", sequence(),
              ": a message of another group or operation came from ", group_->who(rank),
              "; the two ranks must make the groups that they share in the same order");
        check_agree(group_->name, sequence(), me(), collective().summary(), rank, a.summary());
    };
    for (const int rank : group_->shape.locals())
        compare(rank, group_->member(rank).announcements[sequence() % kInFlight]);
    for (const RemoteAnnouncement& remote : announcements_in_) compare(remote.from, remote.announcement);
}

// --- stages ----------------------------------------------------------------------------------------------------------

bool StagedOperation::work() {
    if (!agreed_) {
        first_ = group_->chunks_so_far;
        // Writing to the own slots needs no agreement of other ranks.
        if (in_ == 0 && copy_in()) group_->host.notify();
        if (!receive_announcements()) return false;
        agreed_ = true;
    }
    if (collective().kind == Kind::all_to_all) {
        if (!exchange_) exchange_ = std::make_unique<Exchange>(*group_, collective(), sequence());
        return exchange_->advance() && announcements_out_.empty();
    }
    for (bool moved = true; moved;) {
        moved = copy_out();
        moved = reduce() || moved;
        moved = copy_in() || moved;
        if (moved) group_->host.notify();
    }
    if (out_ < cutting_.chunks() || !announcements_out_.empty()) return false;
    group_->chunks_so_far = first_ + cutting_.chunks();
    return true;
}

bool StagedOperation::copy_in() {
    bool any = false;
    for (; in_ < cutting_.chunks(); ++in_, any = true) {
        const Chunk chunk = cutting_.chunk(in_, first_);
        // The slot is free once all ranks are done with the slot's previous chunk.
        if (chunk.number >= kSlots && !group_->all_local(&Member::copied_out, chunk.number - kSlots + 1)) break;
        const Step step{.chunk = chunk};
        for (const Part& p : cutting_.parts(chunk)) {
            const int64_t bytes = p.count * element_;
            if (reduces() && holder(p) != me()) copy(input(p), bytes, in_slot(me(), step, p));
            if (collective().kind == Kind::broadcast && me() == collective().peer)
                copy(input(p), bytes, in_slot(me(), step, p));
            if (collective().kind == Kind::all_gather && p.owner == me()) {
                const std::byte* own = collective().input.view().as<const std::byte>() + chunk.begin * element_;
                copy(own, bytes, in_slot(me(), step, p));
                copy(own, bytes, output(p));
            }
        }
        group_->self().copied_in = chunk.number + 1;
    }
    return any;
}

// Chunks pass their phases in order, so that messages of one kind between two ranks do too.
bool StagedOperation::reduce() {
    bool any = false;
    const uint64_t begun = done_ + steps_.size();
    if (begun < in_) steps_.push_back({.chunk = cutting_.chunk(begun, first_)});
    int allowed = 3;
    for (Step& step : steps_) {
        while (step.phase < allowed && (step.phase == 0 ? begin_step(step) : arrived(step))) {
            ++step.phase;
            any = true;
            if (step.phase == 2) {
                if (reduces()) finish_sums(step);
                share_results(step);
            }
        }
        allowed = step.phase;
    }
    while (!steps_.empty() && steps_.front().phase == 3) {
        group_->self().reduced = steps_.front().chunk.number + 1;
        ++done_;
        steps_.pop_front();
    }
    return any;
}

bool StagedOperation::copy_out() {
    bool any = false;
    for (; out_ < done_; ++out_, any = true) {
        const Step step{.chunk = cutting_.chunk(out_, first_)};
        if (collective().kind != Kind::reduce_scatter) {
            if (!group_->all_local(&Member::reduced, step.chunk.number + 1)) break;
            for (const Part& p : cutting_.parts(step.chunk)) {
                const bool there = collective().kind == Kind::broadcast ? me() == collective().peer : p.owner == me();
                if (!there) copy(in_slot(source(p), step, p), p.count * element_, output(p));
            }
        }
        group_->self().copied_out = step.chunk.number + 1;
    }
    return any;
}

std::shared_ptr<Operation> start_staged(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence) {
    return std::make_shared<StagedOperation>(group, std::move(collective), sequence);
}

// --- a chunk between hosts -------------------------------------------------------------------------------------------

bool StagedOperation::begin_step(Step& step) {
    if (!group_->all_local(&Member::copied_in, step.chunk.number + 1)) return false;
    step.parts = cutting_.parts(step.chunk);
    if (reduces()) send_partial_sums(step);
    if (collective().kind == Kind::broadcast && between_hosts()) scatter(step);
    return true;
}

// Computes this host's sums of its subtrees: those for parts of other hosts are sent to the parts' owners; for own
// parts, posts receives for the sums of other hosts.
void StagedOperation::send_partial_sums(Step& step) {
    const DType dtype = collective().input.dtype(), wide = sum_type(dtype);
    const std::vector<Subtree>& forest = group_->shape.forest;
    step.sums.resize(step.parts.size());
    for (size_t i = 0; i < step.parts.size(); ++i) {
        const Part& p = step.parts[i];
        if (!between_hosts() || holder(p) != me()) continue;
        for (const Subtree& tree : forest) {
            auto& sum = step.sums[i].emplace_back();
            if (tree.host != own_host() && p.owner != me()) continue;
            sum.resize(to_size(p.count * size_of(wide)));
            if (tree.host != own_host()) {
                receive(step, sum.data(), static_cast<int64_t>(sum.size()), group_->shape.handler(tree.host, p.rail),
                        Use::part);
                continue;
            }
            std::vector<const void*> inputs;
            for (int r = tree.first; r < tree.first + tree.count; ++r)
                inputs.push_back(r == me() ? input(p) : in_slot(r, step, p));
            void* out = sum.data();
            tree_reduce(collective().reduce, dtype, inputs, wide, {&out, 1}, 0, p.count);
            if (p.owner != me()) send(step, sum.data(), static_cast<int64_t>(sum.size()), p.owner, Use::part);
        }
    }
}

void StagedOperation::finish_sums(Step& step) {
    const Collective& c = collective();
    for (size_t i = 0; i < step.parts.size(); ++i) {
        const Part& p = step.parts[i];
        if (p.owner != me()) continue;
        std::vector<void*> outputs;
        if (c.kind == Kind::all_reduce) outputs = {output(p), in_slot(me(), step, p)};
        if (c.kind == Kind::reduce_scatter)
            outputs = {c.output.view().as<std::byte>() + step.chunk.begin * size_of(c.output.dtype())};
        std::vector<const void*> inputs;
        std::vector<int> ranks;
        if (between_hosts()) {
            for (size_t t = 0; t < step.sums[i].size(); ++t) {
                inputs.push_back(step.sums[i][t].data());
                ranks.push_back(group_->shape.forest[t].count);
            }
        } else {
            for (int r = 0; r < group_->shape.ranks(); ++r)
                inputs.push_back(r == me() ? input(p) : in_slot(r, step, p));
        }
        const DType from = between_hosts() ? sum_type(c.input.dtype()) : c.input.dtype();
        tree_reduce(c.reduce, from, inputs, c.output.dtype(), outputs, 0, p.count, ranks);
    }
}

// From the root's host to the owners of the parts on other hosts: each part is sent once, and its owner forwards it.
void StagedOperation::scatter(Step& step) {
    for (const Part& p : step.parts) {
        const int64_t bytes = p.count * element_;
        if (p.host == root_host()) continue;
        const int from = group_->shape.handler(root_host(), p.rail);
        if (from == me()) send(step, in_slot(collective().peer, step, p), bytes, p.owner, Use::part);
        if (p.owner == me()) receive(step, in_slot(me(), step, p), bytes, from, Use::part);
    }
}

// Owners send their parts to every host that lacks them.
void StagedOperation::share_results(Step& step) {
    if (!between_hosts() || collective().kind == Kind::reduce_scatter) return;
    const bool broadcast = collective().kind == Kind::broadcast;
    for (const Part& p : step.parts) {
        const int64_t bytes = p.count * element_;
        if (p.owner == me())
            for_other_hosts([&](int host) {
                if (!broadcast || host != root_host())
                    send(step, in_slot(source(p), step, p), bytes, group_->shape.handler(host, p.rail), Use::result);
            });
        if (p.host != own_host() && holder(p) == me() && !(broadcast && own_host() == root_host()))
            receive(step, in_slot(me(), step, p), bytes, p.owner, Use::result);
    }
}

// --- for messages ----------------------------------------------------------------------------------------------------

std::vector<int> StagedOperation::standing_still() const {
    std::vector<int> still;
    for (const int rank : group_->shape.locals())
        if (rank != me() && group_->member(rank).finished < sequence() &&
            !group_->host.is_waiting(group_->world_rank(rank)))
            still.push_back(rank);
    return still;
}

// Ranks of a host see which rank of that host stands still or has not begun. A rank that is alone on its host is seen
// by the ranks that miss its data or its announcement. A rank of another host may itself wait for a rank of that host.
bool StagedOperation::waits_on_waiters() const {
    if (group_->self().finished < sequence() - 1 || exchange_) return false;
    const auto is_alone = [&](int rank) {
        const auto host = to_size(group_->shape.host_of[to_size(rank)]);
        return group_->shape.members[host].size() == 1;
    };
    for (const RemoteAnnouncement& remote : announcements_in_)
        if (remote.request >= 0 && is_alone(remote.from)) return false;
    for (const int rank : group_->shape.locals())
        if (group_->member(rank).begun < sequence()) return false;
    if (!standing_still().empty()) return false;
    for (const Transfer& t : awaited())
        if (is_alone(t.peer)) return false;
    return true;
}

std::string StagedOperation::waits_for() const {
    std::string text;
    const auto add = [&](int rank, const std::string& why) {
        text += concat(text.empty() ? "" : ", ", group_->who(rank), why,
                       group_->host.last_operation(group_->world_rank(rank)));
    };
    if (group_->self().finished < sequence() - 1)
        return concat("operation ", group_->self().finished + 1, " of the group, which must end first");
    for (const int rank : group_->shape.locals()) {
        const uint64_t begun = group_->member(rank).begun;
        if (begun < sequence()) add(rank, concat(", which has begun only operation ", begun));
    }
    for (const RemoteAnnouncement& remote : announcements_in_)
        if (remote.request >= 0) add(remote.from, ", which has not announced this operation");
    if (!text.empty()) return text;
    for (const int rank : standing_still()) {
        const Member& m = group_->member(rank);
        add(rank, concat(", which hangs in this operation (", m.copied_in - std::min(m.copied_in.load(), first_),
                         " chunks begun, ", m.copied_out - std::min(m.copied_out.load(), first_), " ended)"));
    }
    for (const Transfer& t : awaited())
        add(t.peer, t.in ? ", whose data has not arrived" : ", which has not taken this rank's data");
    if (exchange_) text += concat(text.empty() ? "" : ", ", exchange_->waits_for());
    return text.empty() ? "ranks of this host, which are waiting themselves" : text;
}

}  // namespace tutti::comm::processes
