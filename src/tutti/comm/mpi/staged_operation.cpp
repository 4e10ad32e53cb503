// comm/mpi/staged_operation.cpp: the collectives over processes. A tensor passes through shared memory in chunks: each
// rank copies its own into its slot, each reduces one part of the chunk from everybody's slots, each copies the others'
// parts out; three chunks are under way at a time, one in each stage. Between hosts, the reduction of a part is: every
// host adds what it has along the tree, the part's owner finishes the tree, and the result goes back, all through MPI
// messages that are waited for by nobody. all_gather and broadcast are the second half of the same.
#include <algorithm>
#include <cstring>
#include <deque>

#include "tutti/base/error.h"
#include "tutti/comm/mpi/exchange.h"
#include "tutti/comm/mpi/group.h"
#include "tutti/comm/mpi/parts.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::mpi {

namespace {

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

struct Transfer {
    Wire::Request request;
    int peer;  // of the group
    bool in;
};

// A chunk between hosts: what is under way for it.
struct Step {
    Chunk chunk;
    std::vector<Part> parts;
    int phase = 0;  // 0: not begun, 1: parts travel to their owners, 2: results travel back, 3: done
    std::vector<Transfer> transfers;
    // Partial sums, by part and subtree of the tree; those of other hosts arrive here.
    std::vector<std::vector<std::vector<std::byte>>> sums;
};

class StagedOperation final : public Operation, public std::enable_shared_from_this<StagedOperation> {
  public:
    StagedOperation(std::shared_ptr<Group> group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(std::move(group)),
          element_(collective().input.defined() ? size_of(collective().input.dtype()) : 1),
          cutting_(group_->shape, collective(), group_->layout.slot_bytes / element_) {
        Member& self = group_->self();
        self.announcements[sequence() % kInFlight] = Announcement::of(collective(), group_->key, sequence());
        self.begun = sequence();
        group_->host.ring();
    }

    bool advance() override {
        Member& self = group_->self();
        if (!announced_) announce();
        if (self.finished != sequence() - 1) return false;
        try {
            check(group_->broken.empty(), group_->broken);
            if (!work()) return false;
        } catch (const std::exception& e) {
            // The others see the same, or are told by the rank that fails; none of them must wait for this one.
            if (group_->broken.empty()) group_->broken = e.what();
            group_->wire.keep(shared_from_this());
            self.heard = sequence();
            finish();
            throw;
        }
        finish();
        return true;
    }

    std::string waits_for() const override;
    bool at_second_hand() const override;

  private:
    bool work();
    void announce();
    bool hear();
    void check_agreement() const;
    void finish() {
        group_->self().finished = sequence();
        group_->host.ring();
    }

    bool copy_in();
    bool reduce();
    bool copy_out();
    bool begin_step(Step& step);
    void scatter(Step& step);
    void send_partial_sums(Step& step);
    void finish_sums(Step& step);
    void share_results(Step& step);

    // --- who does what ---
    bool reduces() const { return collective().kind == Kind::all_reduce || collective().kind == Kind::reduce_scatter; }
    bool between_hosts() const { return group_->shape.hosts() > 1; }
    int me() const { return group_->rank(); }
    int own_host() const { return group_->shape.host; }
    int root_host() const { return group_->shape.host_of[static_cast<size_t>(collective().peer)]; }
    // The rank of this host that works on a part.
    int holder(const Part& p) const {
        return p.host == own_host() ? p.owner : group_->shape.handler(own_host(), p.lane);
    }
    // The rank of this host in whose slot a finished part lies.
    int source(const Part& p) const {
        return collective().kind == Kind::broadcast && root_host() == own_host() ? collective().peer : holder(p);
    }
    std::byte* in_slot(int rank, const Step& step, const Part& p) const {
        return group_->slot(rank, step.chunk.number) + p.begin * element_;
    }
    const std::byte* input(const Part& p) const {
        return collective().input.view().as<const std::byte>() + p.home * element_;
    }
    std::byte* output(const Part& p) const { return collective().output.view().as<std::byte>() + p.home * element_; }
    void send(Step& step, const void* data, int64_t bytes, int to, Use use) const {
        if (bytes > 0)
            step.transfers.push_back(
                {group_->wire.send(data, bytes, group_->world_rank(to), group_->tag(use)), to, false});
    }
    void receive(Step& step, void* data, int64_t bytes, int from, Use use) const {
        if (bytes > 0)
            step.transfers.push_back(
                {group_->wire.receive(data, bytes, group_->world_rank(from), group_->tag(use)), from, true});
    }
    bool arrived(Step& step) const {
        std::erase_if(step.transfers, [&](const Transfer& t) { return group_->wire.done(t.request); });
        return step.transfers.empty();
    }
    // Of this host, in the middle of the operation, not waiting itself.
    std::vector<int> standing_still() const;
    std::span<const Transfer> awaited() const {
        return steps_.empty() ? std::span<const Transfer>() : steps_.front().transfers;
    }
    template <class Visit>
    void for_other_hosts(const Visit& visit) const {
        for (int host = 0; host < group_->shape.hosts(); ++host)
            if (host != own_host()) visit(host);
    }

    struct Word {  // from another host
        int from;
        Announcement announcement;
        Wire::Request request;
    };

    const std::shared_ptr<Group> group_;
    const int64_t element_;  // bytes
    const Cutting cutting_;
    Announcement own_word_;
    std::vector<Wire::Request> words_out_;
    std::deque<Word> words_in_;
    std::vector<int> unheard_;  // ranks of other hosts
    std::unique_ptr<Exchange> exchange_;
    bool announced_ = false, listening_ = false, agreed_ = false;
    uint64_t first_ = 0;                    // number of the first chunk
    uint64_t in_ = 0, done_ = 0, out_ = 0;  // chunks through each stage
    std::deque<Step> steps_;
};

// --- agreement -------------------------------------------------------------------------------------------------------

// Tells the lanes of other hosts what this rank is about to do; small messages, sent ahead of the operation's turn.
void StagedOperation::announce() {
    announced_ = true;
    if (!between_hosts()) return;
    own_word_ = Announcement::of(collective(), group_->key, sequence());
    const GroupShape& shape = group_->shape;
    for (int lane = 0; lane < shape.lanes; ++lane) {
        if (shape.handler(own_host(), lane) != me()) continue;
        for_other_hosts([&](int host) {
            words_out_.push_back(group_->wire.send(&own_word_, sizeof own_word_,
                                                   group_->world_rank(shape.handler(host, lane)),
                                                   group_->tag(Use::announcement)));
        });
    }
}

// True once all ranks that this one talks to have begun the operation, on this host and on others.
bool StagedOperation::hear() {
    const GroupShape& shape = group_->shape;
    if (!listening_) {
        listening_ = true;
        for (int lane = 0; lane < shape.lanes; ++lane) {
            if (shape.handler(own_host(), lane) != me()) continue;
            for_other_hosts([&](int host) {
                const int from = shape.handler(host, lane);
                Word& word = words_in_.emplace_back(Word{from, {}, -1});
                word.request = group_->wire.receive(&word.announcement, sizeof word.announcement,
                                                    group_->world_rank(from), group_->tag(Use::announcement));
            });
        }
    }
    bool all = true;
    for (Word& word : words_in_) {
        if (word.request >= 0 && group_->wire.done(word.request)) word.request = -1;
        all = all && word.request < 0;
    }
    if (!all || !group_->all_local(&Member::begun, sequence())) return false;
    if (group_->self().heard < sequence()) {
        check_agreement();
        group_->self().heard = sequence();
        group_->host.ring();
    }
    // Data of other hosts may come only to ranks that know what it is; and a barrier is through when all are heard of.
    return group_->all_local(&Member::heard, sequence());
}

void StagedOperation::check_agreement() const {
    const auto compare = [&](int rank, const Announcement& a) {
        check(a.group == group_->key && a.sequence == sequence(), "group ", group_->name, ", operation ", sequence(),
              ": a message of another group or operation came from ", group_->who(rank),
              "; two groups share a tag: give one another name");
        check_agree(group_->name, sequence(), me(), collective().summary(), rank, a.summary());
    };
    for (const int rank : group_->shape.locals())
        compare(rank, group_->member(rank).announcements[sequence() % kInFlight]);
    for (const Word& word : words_in_) compare(word.from, word.announcement);
}

// --- stages ----------------------------------------------------------------------------------------------------------

bool StagedOperation::work() {
    if (!agreed_) {
        first_ = group_->chunks_so_far;
        // What goes into the own slots needs nobody's agreement.
        if (in_ == 0 && copy_in()) group_->host.ring();
        if (!hear()) return false;
        agreed_ = true;
    }
    if (collective().kind == Kind::all_to_all) {
        if (!exchange_) exchange_ = std::make_unique<Exchange>(*group_, collective(), sequence());
        return exchange_->advance() && group_->wire.all_done(words_out_);
    }
    for (bool moved = true; moved;) {
        moved = copy_out();
        moved = reduce() || moved;
        moved = copy_in() || moved;
        if (moved) group_->host.ring();
    }
    if (out_ < cutting_.chunks() || !group_->wire.all_done(words_out_)) return false;
    group_->chunks_so_far = first_ + cutting_.chunks();
    return true;
}

bool StagedOperation::copy_in() {
    bool any = false;
    for (; in_ < cutting_.chunks(); ++in_, any = true) {
        const Chunk chunk = cutting_.chunk(in_, first_);
        // The slot is free once everybody is through with the chunk that had it.
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

// Who stands still is seen by the ranks of its host; a rank that is alone there is seen by those that miss its data.
bool StagedOperation::at_second_hand() const {
    if (group_->self().finished < sequence() - 1 || exchange_) return false;
    for (const Word& word : words_in_)
        if (word.request >= 0) return false;
    for (const int rank : group_->shape.locals())
        if (group_->member(rank).begun < sequence()) return false;
    if (!standing_still().empty()) return false;
    for (const Transfer& t : awaited()) {
        const auto host = static_cast<size_t>(group_->shape.host_of[static_cast<size_t>(t.peer)]);
        if (group_->shape.members[host].size() == 1) return false;
    }
    return true;
}

std::string StagedOperation::waits_for() const {
    std::string text;
    const auto add = [&](int rank, const std::string& why) {
        text +=
            concat(text.empty() ? "" : ", ", group_->who(rank), why, group_->host.last_words(group_->world_rank(rank)));
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

}  // namespace

std::shared_ptr<Operation> start_staged(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence) {
    return std::make_shared<StagedOperation>(group, std::move(collective), sequence);
}

}  // namespace tutti::comm::mpi
