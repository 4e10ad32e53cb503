#include "tutti/nn/sequence_runs.h"

#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::nn {

namespace {

int64_t end_of(const TokenRun& run) { return run.begin + run.tokens; }

}  // namespace

SequenceRuns::SequenceRuns(ops::Context& ctx, const ContextParallel& context, int64_t tokens)
    : ctx_(ctx), ranks_(context.all), T_(tokens * (context.all ? context.all->size() : 1)) {
    if (ranks_) part_ = {ranks_->rank(), ranks_->size(), context.ulysses ? context.ulysses->size() : 1};
    own_ = runs_of(part_, T_);
}

int64_t SequenceRuns::shortest() const {
    int64_t tokens = T_;
    for (const TokenRun& run : own_) tokens = std::min(tokens, run.tokens);
    return tokens;
}

Tensor SequenceRuns::tokens(const Tensor& x, size_t i) const {
    int64_t first = 0;
    for (size_t j = 0; j < i; ++j) first += own_[j].tokens;
    return x.narrow(1, first, own_[i].tokens);
}

int SequenceRuns::before(size_t i) const { return own_[i].begin == 0 ? -1 : owner_of(own_[i].begin - 1); }

int SequenceRuns::after(size_t i) const { return end_of(own_[i]) == T_ ? -1 : owner_of(end_of(own_[i])); }

int SequenceRuns::owner_of(int64_t token) const {
    for (int rank = 0; rank < part_.ranks; ++rank)
        for (const TokenRun& run : runs_of({rank, part_.ranks, part_.ulysses}, T_))
            if (run.begin <= token && token < end_of(run)) return rank;
    throw Error(concat("no rank has token ", token, " of ", T_));
}

// Runs are in rising order on every rank: of two messages between the same ranks both sides begin with the same one.
std::vector<Tensor> SequenceRuns::to_next(const std::vector<Tensor>& states, const Shape& shape) const {
    std::vector<Tensor> received(count());
    std::vector<comm::Work> messages;
    for (size_t i = 0; i < count(); ++i) {
        if (after(i) >= 0) messages.push_back(ranks_->send(states[i], after(i)));
        if (before(i) < 0) continue;
        received[i] = ops::empty(ctx_, shape, DType::f32, Purpose::communication);
        messages.push_back(ranks_->receive(received[i], before(i)));
    }
    comm::wait_all(messages);
    return received;
}

std::vector<Tensor> SequenceRuns::to_previous(const std::vector<Tensor>& states, const Shape& shape) const {
    std::vector<Tensor> received(count());
    std::vector<comm::Work> messages;
    for (size_t i = 0; i < count(); ++i) {
        if (before(i) >= 0) messages.push_back(ranks_->send(states[i], before(i)));
        if (after(i) < 0) continue;
        received[i] = ops::empty(ctx_, shape, DType::f32, Purpose::communication);
        messages.push_back(ranks_->receive(received[i], after(i)));
    }
    comm::wait_all(messages);
    return received;
}

}  // namespace tutti::nn
