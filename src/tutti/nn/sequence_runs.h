// nn/sequence_runs.h: the runs of tokens that a rank has of sequences that ranks divide, and states that pass from run
// to run: of short convolutions and of the delta rule.
#pragma once

#include <algorithm>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"

namespace tutti::nn {

// The runs of consecutive tokens that a rank has of each sequence, and messages to the ranks that have the tokens
// before and after them.
class SequenceRuns {
  public:
    // `tokens`: of a sequence, on this rank.
    SequenceRuns(ops::Context& ctx, const ContextParallel& context, int64_t tokens)
        : ctx_(ctx), ranks_(context.all), T_(tokens * (context.all ? context.all->size() : 1)) {
        if (ranks_) part_ = {ranks_->rank(), ranks_->size(), context.ulysses ? context.ulysses->size() : 1};
        own_ = runs_of(part_, T_);
    }

    size_t count() const { return own_.size(); }
    bool alone() const { return ranks_ == nullptr; }  // one run, the whole sequence
    // Tokens of the shortest run of this rank.
    int64_t shortest() const {
        int64_t tokens = T_;
        for (const TokenRun& run : own_) tokens = std::min(tokens, run.tokens);
        return tokens;
    }
    // The tokens of run i, of x (B, T, ...) of all that this rank has; shares memory.
    Tensor tokens(const Tensor& x, size_t i) const {
        int64_t first = 0;
        for (size_t j = 0; j < i; ++j) first += own_[j].tokens;
        return x.narrow(1, first, own_[i].tokens);
    }

    // Sends states[i], f32 of this shape, from run i to the rank that has the run after it, and returns for each run
    // the state of the run before it: undefined for the first run of a sequence. The last run's state is not sent.
    std::vector<Tensor> to_next(const std::vector<Tensor>& states, const Shape& shape) const {
        return exchange(states, shape, true);
    }
    // The same from each run to the run before it.
    std::vector<Tensor> to_previous(const std::vector<Tensor>& states, const Shape& shape) const {
        return exchange(states, shape, false);
    }

    // Passes a state, f32 of this shape, from run to run through the sequence, or backwards: calls state = step(i,
    // state, wanted) for each run i of this rank, whose first state is undefined at the end where the sequence begins,
    // and whose result is sent on where it is `wanted`. A rank waits for the runs before its own.
    template <class Step>
    void relay(bool backwards, const Shape& shape, const Step& step) const {
        std::vector<comm::Work> messages;
        Tensor state;
        for (size_t k = 0; k < count(); ++k) {
            const size_t i = backwards ? count() - 1 - k : k;
            const int before = owner_of(own_[i].begin - 1), after = owner_of(own_[i].begin + own_[i].tokens);
            const int from = backwards ? after : before, to = backwards ? before : after;
            if (from < 0) state = {};
            if (from >= 0 && from != part_.rank) {
                state = ops::empty(ctx_, shape, DType::f32, Purpose::communication);
                ranks_->receive(state, from).wait();
            }
            state = step(i, state, to >= 0);
            if (to >= 0 && to != part_.rank) messages.push_back(ranks_->send(state, to));
        }
        comm::wait_all(messages);
    }

  private:
    // Runs ascend on every rank, so both sides begin with the same one of two messages between the same ranks.
    std::vector<Tensor> exchange(const std::vector<Tensor>& states, const Shape& shape, bool forward) const {
        std::vector<Tensor> received(count());
        std::vector<comm::Work> messages;
        for (size_t i = 0; i < count(); ++i) {
            const int before = owner_of(own_[i].begin - 1), after = owner_of(own_[i].begin + own_[i].tokens);
            const int to = forward ? after : before, from = forward ? before : after;
            if (to >= 0) messages.push_back(ranks_->send(states[i], to));
            if (from < 0) continue;
            received[i] = ops::empty(ctx_, shape, DType::f32, Purpose::communication);
            messages.push_back(ranks_->receive(received[i], from));
        }
        comm::wait_all(messages);
        return received;
    }
    // The rank that has the token; -1: the sequence has no such token.
    int owner_of(int64_t token) const {
        for (int rank = 0; rank < part_.ranks; ++rank)
            for (const TokenRun& run : runs_of({rank, part_.ranks, part_.ulysses}, T_))
                if (run.begin <= token && token < run.begin + run.tokens) return rank;
        return -1;
    }

    ops::Context& ctx_;
    comm::Communicator* ranks_;
    SequencePart part_;
    int64_t T_;  // of whole sequences
    std::vector<TokenRun> own_;
};

}  // namespace tutti::nn
