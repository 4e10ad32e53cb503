// planner/price_pipeline.cpp: the price of a layout with a pipeline: all of its ranks walk through their schedule.
#include <algorithm>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/pipeline/executor.h"
#include "tutti/planner/price_walk.h"

namespace tutti::planner {

// All ranks of the pipeline, each with its actions in order, as they wait for one another's messages.
class Pricer::Pipeline {
  public:
    Pipeline(const Pricer& pricer, const Layout& l, double limit) : l_(l), limit_(limit) {
        const schedule::Placement& placement = l.schedule->placement;
        messages_.assign(2 * to_size(placement.stages), std::vector<Message>(to_size(int64_t(l.microbatches))));
        place_.resize(to_size(placement.stages));
        ranks_.reserve(l.ranks.size());  // a walk points into itself
        for (const Position& at : l.ranks) {
            for (size_t i = 0; i < at.numbers.size(); ++i) place_[to_size(at.numbers[i])] = i;
            Rank& rank = ranks_.emplace_back(Rank{Walk(pricer, l, at.stages, l.microbatches, Walk::From::update)});
            for (const Stage* stage : at.stages)
                rank.passes +=
                    l.microbatches * (stage->f.least + std::min(stage->b.least, stage->i.least + stage->w.least));
        }
        channels_.resize(messages_.size());
        // One rank of each position stands for all.
        const int apart = pricer.request_.gpus / static_cast<int>(l.run->parallel.pp);
        for (int s = 1; s < placement.stages; ++s) {
            const std::vector<int> ends = {apart * placement.rank_of(0, s - 1), apart * placement.rank_of(0, s)};
            if (ends[0] == ends[1]) continue;
            const double seconds = pricer.prices_.operation(
                {.kind = comm::Kind::send, .bytes = static_cast<int64_t>(l.probe->hidden)}, ends);
            channels_[channel(s, false)] = channels_[channel(s, true)] = {seconds, 0, true};
        }
    }

    // Whether all ranks end within the limit. A rank still has to run those of its passes that it has not run.
    bool run() {
        constexpr double kRounding = 1 + 1e-9;
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t r = 0; r < ranks_.size(); ++r) {
                moved = advance(r) || moved;
                const Rank& rank = ranks_[r];
                const double left = std::max(0.0, rank.passes - rank.walk.passed());
                if (rank.walk.now() + left > kRounding * limit_) return false;
            }
        }
        for (Rank& rank : ranks_) {
            check(rank.next == l_.schedule->programs[to_size(&rank - ranks_.data())].size(),
                  "a price waits for a message that no rank sends");
            for (const Rank::Sent& sent : rank.sent) rank.walk.wait_until(sent.message->arrives);
            rank.walk.finish_gradients();
        }
        return true;
    }
    const Walk& of(size_t rank) const { return ranks_[rank].walk; }

  private:
    static constexpr double kNever = -1;
    struct Message {
        double sent = kNever, wanted = kNever, arrives = kNever;
    };
    struct Channel {
        double seconds = 0, free = 0;
        bool exists = false;
    };
    struct Rank {
        Walk walk;
        double passes = 0;  // seconds of all
        size_t next = 0;
        struct Sent {
            const Message* message;
            size_t channel;
        };
        std::vector<Sent> sent = {};  // whose memory is held, oldest first
    };

    static size_t channel(int to, bool is_gradient) { return 2 * to_size(to) + (is_gradient ? 1 : 0); }
    // The gradient of a stage's output comes from the stage behind it.
    size_t into(const schedule::Action& part) const {
        return part.op == schedule::Op::forward ? channel(part.stage, false) : channel(part.stage + 1, true);
    }
    Message& message(size_t channel, const schedule::Action& a) { return messages_[channel][to_size(a.microbatch)]; }
    void complete(Message& m, Channel& c) const {
        if (m.sent == kNever || m.wanted == kNever) return;
        c.free = m.arrives = std::max({m.sent, m.wanted, c.free}) + c.seconds;
    }

    bool advance(size_t r) {
        Rank& rank = ranks_[r];
        const schedule::Program& program = l_.schedule->programs[r];
        const size_t before = rank.next;
        while (rank.next < program.size() && act(rank, program[rank.next])) ++rank.next;
        return rank.next > before;
    }

    // Whether the backward of the forward comes next, so that nothing of its last unit is offloaded between.
    bool turns_round(const Rank& rank) const {
        if (!l_.run->offload.activations) return false;
        const schedule::Program& program = l_.schedule->programs[to_size(&rank - ranks_.data())];
        const auto at = program.begin() + static_cast<std::ptrdiff_t>(rank.next);
        const auto next = std::find_if(at + 1, program.end(), [](const auto& a) { return schedule::is_compute(a.op); });
        return next != program.end() && next->op != schedule::Op::forward && next->op != schedule::Op::overlap &&
               next->work() == at->work();
    }

    // False where it waits for another rank.
    bool act(Rank& rank, const schedule::Action& action) {
        using schedule::Op;
        if (schedule::is_send(action.op)) return send(rank, action);
        if (schedule::is_message(action.op)) {
            const size_t c =
                action.op == Op::receive_activation ? channel(action.stage, false) : channel(action.stage + 1, true);
            Message& m = message(c, action);
            m.wanted = rank.walk.now();
            complete(m, channels_[c]);
            rank.walk.hold(l_.probe->hidden);
            return true;
        }
        const schedule::Parts parts(action);
        for (const schedule::Action& part : parts) {
            if (part.op == Op::backward_weight) continue;
            const size_t c = into(part);
            if (c >= channels_.size() || !channels_[c].exists) continue;
            const double arrives = message(c, part).arrives;
            if (arrives == kNever) return false;
            rank.walk.wait_until(arrives);
        }
        const size_t place = place_[to_size(action.stage)];
        switch (action.op) {
            case Op::forward: rank.walk.forward(place, turns_round(rank)); break;
            case Op::backward: rank.walk.backward(place); break;
            case Op::backward_input: rank.walk.backward(place, true); break;
            case Op::backward_weight: rank.walk.backward_weight(place); break;
            default: rank.walk.overlap(place, place_[to_size(action.backward.stage)]);
        }
        return true;
    }

    // As pipeline::Executor.
    bool send(Rank& rank, const schedule::Action& action) {
        const size_t c =
            action.op == schedule::Op::send_activation ? channel(action.stage + 1, false) : channel(action.stage, true);
        const bool is_full = std::ranges::count(rank.sent, c, &Rank::Sent::channel) == pipeline::kMessagesOfChannel;
        if (is_full || std::ssize(rank.sent) == pipeline::kMessagesOfRank) {
            const auto oldest = is_full ? std::ranges::find(rank.sent, c, &Rank::Sent::channel) : rank.sent.begin();
            const double arrives = oldest->message->arrives;
            if (arrives == kNever) return false;
            rank.walk.wait_until(arrives);
            rank.walk.hold(-l_.probe->hidden);
            rank.sent.erase(oldest);
        }
        Message& m = message(c, action);
        m.sent = rank.walk.now();
        complete(m, channels_[c]);
        rank.sent.push_back({&m, c});
        return true;
    }

    const Layout& l_;
    const double limit_;
    std::vector<std::vector<Message>> messages_;  // by channel, by microbatch
    std::vector<Channel> channels_;
    std::vector<size_t> place_;  // of a stage among those of its rank
    std::vector<Rank> ranks_;
};

std::optional<Price> Pricer::price(const spec::RunSpec& run, double limit) {
    try {
        if (run.parallel.pp > 1) return price_pipeline(run, limit);
        const Price price = estimate(run, probes_.of(run));
        return price.seconds > limit ? std::nullopt : std::optional(price);
    } catch (const SizeError&) {
        return std::nullopt;
    }
}

std::optional<Price> Pricer::price_pipeline(const spec::RunSpec& run, double limit) {
    const Layout l = layout_of(run);
    if (l.schedule == nullptr) return std::nullopt;
    double before = 0, ends = 0, updated = 0;
    for (const Position& at : l.ranks) {
        double busy = 0;
        for (const Stage* stage : at.stages) busy += stage->passes();
        if (before + l.microbatches * busy > limit) return std::nullopt;
        before += at.stages.front()->forward;  // the first microbatch reaches the next rank through this one
        updated = std::max(updated, update(l, at.stages));
    }
    Pipeline pipeline(*this, l, limit - updated);
    if (!pipeline.run()) return std::nullopt;
    Price fullest;
    for (size_t r = 0; r < l.ranks.size(); ++r) {
        const Walk& walk = pipeline.of(r);
        ends = std::max(ends, walk.now());  // the norm is of all ranks
        Price here = state_of(l, l.ranks[r].stages, false);
        here.bytes += walk.most() + l.probe->beside;
        here.offloaded += walk.waiting();
        if (here.bytes > fullest.bytes) fullest = here;
    }
    fullest.seconds = ends + sum_of_ends(l) + updated;
    if (fullest.seconds > limit) return std::nullopt;
    return fullest;
}

}  // namespace tutti::planner
