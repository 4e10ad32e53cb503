#include "tutti/comm/threads/shared_group.h"

#include <cstring>
#include <numeric>

#include "tutti/comm/tree_reduce.h"

namespace tutti::comm::threads {

namespace {

const std::byte* bytes_of(const Tensor& x) { return x.view().as<const std::byte>(); }
std::byte* mutable_bytes_of(const Tensor& x) { return x.view().as<std::byte>(); }

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class GroupOperation final : public Operation {
  public:
    GroupOperation(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number), group_(std::move(shared)), rank_(rank) {
        Member& self = member(rank_);
        self.operations.add(sequence(), collective());
        self.posted = sequence();
        group_->notifier->notify();
    }

    bool advance() override {
        Member& self = member(rank_);
        if (!share_done_) {
            if (self.done != sequence() - 1 || !all(&Member::posted)) return false;
            // Also when ranks disagree the share counts as done: every rank sees the disagreement, and none must wait.
            share_done_ = true;
            for (const Member& m : group_->members) all_.push_back(&m.operations.at(sequence()));
            try {
                check_agreement();
                do_share();
            } catch (...) {
                failure_ = std::current_exception();
            }
            self.done = sequence();
            group_->notifier->notify();
        }
        if (!all(&Member::done)) return false;
        self.operations.forget(sequence());
        if (failure_) std::rethrow_exception(failure_);
        return true;
    }

    // Those who have not begun; where all have, those who have not finished.
    std::string waits_for() const override {
        const bool begun = all(&Member::posted);
        std::string text;
        for (int r = 0; r < size(); ++r) {
            const uint64_t reached = begun ? member(r).done : member(r).posted;
            if (reached >= sequence()) continue;
            text += concat(text.empty() ? "" : ", ", "rank ", r, " of the group, which has ",
                           begun ? "finished" : "begun", " only operation ", reached);
        }
        return text.empty() ? "nobody" : text;
    }

  private:
    int size() const { return static_cast<int>(group_->members.size()); }
    Member& member(int r) const { return group_->members[static_cast<size_t>(r)]; }
    const Collective& of(int r) const { return *all_[static_cast<size_t>(r)]; }
    bool all(std::atomic<uint64_t> Member::*counter) const {
        for (const Member& m : group_->members)
            if ((m.*counter) < sequence()) return false;
        return true;
    }

    void check_agreement() const {
        const Summary first = of(0).summary();
        for (int r = 0; r < size(); ++r) {
            const Collective& other = of(r);
            check_agree(group_->name, sequence(), 0, first, r, other.summary());
            if (first.kind != Kind::all_to_all) continue;
            const auto here = static_cast<size_t>(rank_), there = static_cast<size_t>(r);
            check(other.send_counts[here] == collective().receive_counts[there], "all_to_all, operation ", sequence(),
                  " of group ", group_->name, ": rank ", r, " sends ", other.send_counts[here], " elements to rank ",
                  rank_, ", which expects ", collective().receive_counts[there]);
        }
    }

    // This rank's part of the work: all_reduce: reduces part r into everybody's output; the others write their own
    // output only, reading what they need from everybody's input.
    void do_share() const {
        const Collective& c = collective();
        switch (c.kind) {
            case Kind::all_reduce:
                return reduce_part(c.input.numel() * rank_ / size(), c.input.numel() * (rank_ + 1) / size(), true);
            case Kind::reduce_scatter:
                return reduce_part(c.output.numel() * rank_, c.output.numel() * (rank_ + 1), false);
            case Kind::all_gather:
                for (int r = 0; r < size(); ++r)
                    copy(bytes_of(of(r).input), c.input.bytes(), mutable_bytes_of(c.output) + r * c.input.bytes());
                return;
            case Kind::broadcast: return copy(bytes_of(of(c.peer).input), c.input.bytes(), mutable_bytes_of(c.output));
            case Kind::all_to_all: return exchange();
            case Kind::barrier: return;
            case Kind::send:
            case Kind::receive: break;
        }
        throw Error("a message is not an operation of a group");
    }

    void reduce_part(int64_t begin, int64_t end, bool into_all) const {
        const Collective& c = collective();
        std::vector<const void*> inputs;
        std::vector<void*> outputs;
        for (int r = 0; r < size(); ++r) {
            inputs.push_back(bytes_of(of(r).input));
            if (into_all) outputs.push_back(mutable_bytes_of(of(r).output));
        }
        // reduce_scatter: the output holds this part only; its element `begin` is its first.
        if (!into_all) outputs.push_back(mutable_bytes_of(c.output) - begin * size_of(c.output.dtype()));
        tree_reduce(c.reduce, c.input.dtype(), inputs, c.output.dtype(), outputs, begin, end);
    }

    void exchange() const {
        const Collective& c = collective();
        const int64_t element = size_of(c.input.dtype());
        std::byte* to = mutable_bytes_of(c.output);
        for (int r = 0; r < size(); ++r) {
            const Collective& other = of(r);
            const auto here = other.send_counts.begin() + rank_;
            const int64_t before = std::accumulate(other.send_counts.begin(), here, int64_t{0});
            copy(bytes_of(other.input) + before * element, *here * element, to);
            to += *here * element;
        }
    }

    std::shared_ptr<SharedGroup> group_;
    int rank_;
    std::vector<const Collective*> all_;  // of all ranks, once they have begun
    bool share_done_ = false;
    std::exception_ptr failure_;
};

class Send final : public Operation {
  public:
    Send(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number),
          group_(std::move(shared)),
          box_(group_->mailbox(rank, collective().peer)) {
        box_.messages.add(sequence(), collective());
        box_.sent = sequence();
        group_->notifier->notify();
    }
    bool advance() override { return box_.taken >= sequence(); }
    std::string waits_for() const override { return concat("rank ", collective().peer, " of the group to receive it"); }

  private:
    std::shared_ptr<SharedGroup> group_;
    Mailbox& box_;
};

class Receive final : public Operation {
  public:
    Receive(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number),
          group_(std::move(shared)),
          box_(group_->mailbox(collective().peer, rank)) {}
    bool advance() override {
        if (box_.taken != sequence() - 1 || box_.sent < sequence()) return false;
        const Collective& message = box_.messages.at(sequence());
        const bool fits = message.input.numel() == collective().output.numel() &&
                          message.input.dtype() == collective().output.dtype();
        const std::string sent = fits ? "" : message.summary().text();
        if (fits) copy(bytes_of(message.input), message.input.bytes(), mutable_bytes_of(collective().output));
        box_.messages.forget(sequence());
        box_.taken = sequence();
        group_->notifier->notify();
        check(fits, "message ", sequence(), " of group ", group_->name, ": ", collective().summary().text(),
              " does not fit what came: ", sent);
        return true;
    }
    std::string waits_for() const override { return concat("rank ", collective().peer, " of the group to send it"); }

  private:
    std::shared_ptr<SharedGroup> group_;
    Mailbox& box_;
};

}  // namespace

std::shared_ptr<Operation> start(const std::shared_ptr<SharedGroup>& group, int rank, Collective collective,
                                 uint64_t sequence) {
    if (collective.kind == Kind::send) return std::make_shared<Send>(group, rank, std::move(collective), sequence);
    if (collective.kind == Kind::receive)
        return std::make_shared<Receive>(group, rank, std::move(collective), sequence);
    return std::make_shared<GroupOperation>(group, rank, std::move(collective), sequence);
}

}  // namespace tutti::comm::threads
