#include "tutti/comm/processes/staged_operation.h"

#include <algorithm>

namespace tutti::comm::processes {

namespace {

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

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
        group_->host.notify();
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
        if (in_ == 0 && copy_in()) group_->host.notify();
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
        if (moved) group_->host.notify();
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

std::shared_ptr<Operation> start_staged(const std::shared_ptr<Group>& group, Collective collective, uint64_t sequence) {
    return std::make_shared<StagedOperation>(group, std::move(collective), sequence);
}

}  // namespace tutti::comm::processes
