// comm/processes/staged_between_hosts.cpp: what a chunk does between hosts, and what a rank says that waits.
#include <algorithm>

#include "tutti/comm/processes/staged_operation.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::processes {

// --- a chunk between hosts -------------------------------------------------------------------------------------------

bool StagedOperation::begin_step(Step& step) {
    if (!group_->all_local(&Member::copied_in, step.chunk.number + 1)) return false;
    step.parts = cutting_.parts(step.chunk);
    if (reduces()) send_partial_sums(step);
    if (collective().kind == Kind::broadcast && between_hosts()) scatter(step);
    return true;
}

// This host's sums of its subtrees, for parts of other hosts sent to their owners; for own parts room for the others'.
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
            sum.resize(static_cast<size_t>(p.count * size_of(wide)));
            if (tree.host != own_host()) {
                receive(step, sum.data(), static_cast<int64_t>(sum.size()), group_->shape.handler(tree.host, p.lane),
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

// From the root's host to the owners of the parts on other hosts: each part crosses once, and its owner passes it on.
void StagedOperation::scatter(Step& step) {
    for (const Part& p : step.parts) {
        const int64_t bytes = p.count * element_;
        if (p.host == root_host()) continue;
        const int from = group_->shape.handler(root_host(), p.lane);
        if (from == me()) send(step, in_slot(collective().peer, step, p), bytes, p.owner, Use::part);
        if (p.owner == me()) receive(step, in_slot(me(), step, p), bytes, from, Use::part);
    }
}

// Owners give their parts to every host that has not got them.
void StagedOperation::share_results(Step& step) {
    if (!between_hosts() || collective().kind == Kind::reduce_scatter) return;
    const bool broadcast = collective().kind == Kind::broadcast;
    for (const Part& p : step.parts) {
        const int64_t bytes = p.count * element_;
        if (p.owner == me())
            for_other_hosts([&](int host) {
                if (!broadcast || host != root_host())
                    send(step, in_slot(source(p), step, p), bytes, group_->shape.handler(host, p.lane), Use::result);
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

// Who stands still, or has not begun, is seen by the ranks of its host; a rank that is alone there is seen by those
// that miss its data or its word. Another may be held up itself, by one that its host sees.
bool StagedOperation::waits_on_waiters() const {
    if (group_->self().finished < sequence() - 1 || exchange_) return false;
    const auto is_alone = [&](int rank) {
        const auto host = static_cast<size_t>(group_->shape.host_of[static_cast<size_t>(rank)]);
        return group_->shape.members[host].size() == 1;
    };
    for (const Word& word : words_in_)
        if (word.request >= 0 && is_alone(word.from)) return false;
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
    for (const Word& word : words_in_)
        if (word.request >= 0) add(word.from, ", which has not said that it began this operation");
    if (!text.empty()) return text;
    for (const int rank : standing_still()) {
        const Member& m = group_->member(rank);
        add(rank,
            concat(", which stands still in the middle of it (", m.copied_in - std::min(m.copied_in.load(), first_),
                   " chunks begun, ", m.copied_out - std::min(m.copied_out.load(), first_), " ended)"));
    }
    for (const Transfer& t : awaited())
        add(t.peer, t.in ? ", whose data has not come" : ", which has not taken this rank's data");
    if (exchange_) text += concat(text.empty() ? "" : ", ", exchange_->waits_for());
    return text.empty() ? "ranks of this host that wait themselves" : text;
}

}  // namespace tutti::comm::processes
