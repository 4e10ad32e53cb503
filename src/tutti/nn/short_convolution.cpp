// nn/short_convolution.cpp: the gated short convolution of LFM2 (functions.h), over sequences that ranks may divide.
#include <algorithm>

#include "tutti/nn/collectives.h"
#include "tutti/nn/recording.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

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
    Tensors to_next(const Tensors& states, const Shape& shape) const { return exchange(states, shape, true); }
    // The same from each run to the run before it.
    Tensors to_previous(const Tensors& states, const Shape& shape) const { return exchange(states, shape, false); }

  private:
    // Runs ascend on every rank, so both sides begin with the same one of two messages between the same ranks.
    Tensors exchange(const Tensors& states, const Shape& shape, bool forward) const {
        Tensors received(count());
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

// The convolution of this rank's part of each sequence, run by run. Holds p and the states of the tokens before each
// run.
class Convolution {
  public:
    // Receives the states.
    Convolution(ops::Context& ctx, const Tensor& p, Affine taps, const Batch& batch)
        : ctx_(ctx), p_(p), taps_(taps), positions_(batch.positions), runs_(ctx, batch.context, p.dim(1)) {
        before_.resize(runs_.count());
        if (!exchanges()) return;
        check<UsageError>(runs_.shortest() >= K() - 1, "a short convolution of ", K(), " taps over context-parallel ",
                          "ranks: a rank has ", runs_.shortest(), " tokens in a row; required: at least ", K() - 1,
                          "; raise train.seq_len or lower parallel.cp");
        Tensors states;
        for (size_t i = 0; i < runs_.count(); ++i)
            states.push_back(ops::short_convolution_state(ctx, runs_.tokens(p, i), K(), {}));
        before_ = runs_.to_next(states, state_shape());
    }

    // Copies the taps: forward() may then run again when the weights of the unit are freed.
    void copy_taps() {
        const auto copy = [this](const Tensor& x) { return ops::cast(ctx_, x, x.dtype()); };
        w_ = copy(taps_.weight.value);
        if (taps_.bias) bias_ = copy(taps_.bias->value);
    }

    Tensor forward() const {
        const Tensor z = ops::empty(ctx_, {p_.dim(0), p_.dim(1), p_.dim(2) / 3}, p_.dtype());
        for (size_t i = 0; i < runs_.count(); ++i) ops::short_convolution(ctx_, run(i), runs_.tokens(z, i));
        return z;
    }
    // Returns dp. The gradients of the states are sent to the runs that the states came from.
    Tensor backward_input(const Tensor& dz) const {
        Tensors found(runs_.count()), after(runs_.count());
        for (size_t i = 0; i < runs_.count(); ++i)
            if (before_[i].defined())
                found[i] = ops::short_convolution_backward_before(ctx_, run(i), runs_.tokens(dz, i));
        if (exchanges()) after = runs_.to_previous(found, state_shape());
        const Tensor dp = ops::empty(ctx_, p_.shape(), p_.dtype());
        for (size_t i = 0; i < runs_.count(); ++i)
            ops::short_convolution_backward_input(ctx_, run(i), runs_.tokens(dz, i), after[i], runs_.tokens(dp, i));
        return dp;
    }
    void backward_weight(const Tensor& dz) const {
        const Tensor dw = gradient_to_add_to(ctx_, taps_.weight);
        const Tensor dbias = taps_.bias ? gradient_to_add_to(ctx_, *taps_.bias) : Tensor();
        for (size_t i = 0; i < runs_.count(); ++i)
            ops::short_convolution_backward_weight(ctx_, run(i), runs_.tokens(dz, i), dw, dbias);
    }

  private:
    int64_t K() const { return taps_.weight.shape[2]; }
    bool exchanges() const { return !runs_.alone() && K() > 1; }
    Shape state_shape() const { return {p_.dim(0), K() - 1, p_.dim(2) / 3}; }
    ops::ShortConvolution run(size_t i) const {
        return {.p = runs_.tokens(p_, i),
                .w = w_.defined() ? w_ : taps_.weight.value,
                .bias = bias_.defined() || !taps_.bias ? bias_ : taps_.bias->value,
                .positions = runs_.tokens(positions_, i),
                .before = before_[i]};
    }

    ops::Context& ctx_;
    Tensor p_;
    Affine taps_;
    Tensor w_, bias_;  // copies of the taps; undefined: none
    Tensor positions_;
    SequenceRuns runs_;
    Tensors before_;  // by run
};

// One sequence at a time, since each has its own state.
Tensor of_caches(ops::Context& ctx, const Tensor& p, Affine taps, const Batch& batch, int64_t layer) {
    check(static_cast<int64_t>(batch.caches.size()) == p.dim(0), "short convolution: ", batch.caches.size(),
          " caches for ", p.dim(0), " sequences");
    const Tensor z = ops::empty(ctx, {p.dim(0), p.dim(1), p.dim(2) / 3}, p.dtype());
    const int64_t K = taps.weight.shape[2];
    for (int64_t b = 0; b < p.dim(0); ++b) {
        Tensor& state = batch.caches[static_cast<size_t>(b)]->convolutions.at(static_cast<size_t>(layer));
        const Tensor row = p.narrow(0, b, 1);
        ops::short_convolution(ctx,
                               {.p = row,
                                .w = taps.weight.value,
                                .bias = taps.bias ? taps.bias->value : Tensor(),
                                .positions = batch.positions.narrow(0, b, 1),
                                .before = state},
                               z.narrow(0, b, 1));
        if (K > 1) state = ops::short_convolution_state(ctx, row, K, state);
    }
    return z;
}

}  // namespace

Var short_convolution(Tape& tape, const Var& p, Affine taps, const Batch& batch, int64_t layer) {
    if (!batch.caches.empty()) return {of_caches(tape.context(), p.value, taps, batch, layer), -1};
    const auto convolution = std::make_shared<Convolution>(tape.context(), p.value, taps, batch);
    if (tape.selective() && tape.copies_weights()) convolution->copy_taps();
    const Var z = tape.record(
        "short_convolution", {p}, convolution->forward(),
        [convolution](const Tensor& dz, Tensors&) { return Tensors{convolution->backward_input(dz)}; },
        [convolution](const Tensor& dz) { convolution->backward_weight(dz); }, parameters_of(taps));
    return recomputable(tape, z, [convolution] { return convolution->forward(); });
}

}  // namespace tutti::nn
