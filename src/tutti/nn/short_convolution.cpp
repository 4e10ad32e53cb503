// nn/short_convolution.cpp: short convolutions (functions.h), over sequences that ranks may divide.
#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/nn/recording.h"
#include "tutti/nn/sequence_runs.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

// The convolution of this rank's part of each sequence, run by run. Holds p and the states of the tokens before each
// run.
class Convolution {
  public:
    // Receives the states.
    Convolution(ops::Context& ctx, const Tensor& p, Affine taps, const Batch& batch, bool gates)
        : ctx_(ctx),
          p_(p),
          gates_(gates),
          taps_(taps),
          positions_(batch.positions),
          runs_(ctx, batch.context, p.dim(1)) {
        before_.resize(runs_.count());
        if (!exchanges()) return;
        check<UsageError>(runs_.shortest() >= K() - 1, "a short convolution of ", K(), " taps over context-parallel ",
                          "ranks: a rank has ", runs_.shortest(), " tokens in a row; required: at least ", K() - 1,
                          "; raise train.seq_len or lower parallel.cp");
        Tensors states;
        for (size_t i = 0; i < runs_.count(); ++i)
            states.push_back(ops::short_convolution_state(ctx, runs_.tokens(p, i), K(), {}, gates_));
        before_ = runs_.to_next(states, state_shape());
    }

    // Copies the taps: forward() may then run again when the weights of the unit are freed.
    void copy_taps() {
        const auto copy = [this](const Tensor& x) { return ops::cast(ctx_, x, x.dtype()); };
        w_ = copy(taps_.weight.value);
        if (taps_.bias) bias_ = copy(taps_.bias->value);
    }

    Tensor forward() const {
        const Tensor z = ops::empty(ctx_, {p_.dim(0), p_.dim(1), channels()}, p_.dtype());
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
    int64_t channels() const { return p_.dim(2) / (gates_ ? 3 : 1); }
    Shape state_shape() const { return {p_.dim(0), K() - 1, channels()}; }
    ops::ShortConvolution run(size_t i) const {
        return {.p = runs_.tokens(p_, i),
                .gates = gates_,
                .w = w_.defined() ? w_ : taps_.weight.value,
                .bias = bias_.defined() || !taps_.bias ? bias_ : taps_.bias->value,
                .positions = runs_.tokens(positions_, i),
                .before = before_[i]};
    }

    ops::Context& ctx_;
    Tensor p_;
    bool gates_;
    Affine taps_;
    Tensor w_, bias_;  // copies of the taps; undefined: none
    Tensor positions_;
    SequenceRuns runs_;
    Tensors before_;  // by run
};

// One sequence at a time, since each has its own state.
Tensor of_caches(ops::Context& ctx, const Tensor& p, Affine taps, const Batch& batch, const ConvolutionPlace& place) {
    check(static_cast<int64_t>(batch.caches.size()) == p.dim(0), "short convolution: ", batch.caches.size(),
          " caches for ", p.dim(0), " sequences");
    const Tensor z = ops::empty(ctx, {p.dim(0), p.dim(1), p.dim(2) / (place.gates ? 3 : 1)}, p.dtype());
    const int64_t K = taps.weight.shape[2];
    for (int64_t b = 0; b < p.dim(0); ++b) {
        std::vector<Tensor>& states = batch.caches[to_size(b)]->convolutions.at(to_size(place.layer));
        states.resize(std::max(states.size(), place.index + 1));
        Tensor& state = states[place.index];
        const Tensor row = p.narrow(0, b, 1);
        ops::short_convolution(ctx,
                               {.p = row,
                                .gates = place.gates,
                                .w = taps.weight.value,
                                .bias = taps.bias ? taps.bias->value : Tensor(),
                                .positions = batch.positions.narrow(0, b, 1),
                                .before = state},
                               z.narrow(0, b, 1));
        if (K > 1) state = ops::short_convolution_state(ctx, row, K, state, place.gates);
    }
    return z;
}

}  // namespace

Var short_convolution(Tape& tape, const Var& p, Affine taps, const Batch& batch, const ConvolutionPlace& place) {
    if (!batch.caches.empty()) return {of_caches(tape.context(), p.value, taps, batch, place), -1};
    const auto convolution = std::make_shared<Convolution>(tape.context(), p.value, taps, batch, place.gates);
    if (tape.selective() && tape.copies_weights()) convolution->copy_taps();
    const Var z = tape.record(
        "short_convolution", {p}, convolution->forward(),
        [convolution](const Tensor& dz, Tensors&) { return Tensors{convolution->backward_input(dz)}; },
        [convolution](const Tensor& dz) { convolution->backward_weight(dz); }, parameters_of(taps));
    return recomputable(tape, z, [convolution] { return convolution->forward(); });
}

}  // namespace tutti::nn
