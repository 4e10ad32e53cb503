// nn/sequence_runs.h: the runs of consecutive tokens that a rank has of each sequence, and messages to the ranks that
// have the tokens before and after them: what a layer of few neighbouring tokens needs of context parallelism.
#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/context.h"

namespace tutti::nn {

class SequenceRuns {
  public:
    // `tokens`: of a sequence, on this rank.
    SequenceRuns(ops::Context& ctx, const ContextParallel& context, int64_t tokens);

    size_t count() const { return own_.size(); }
    bool alone() const { return ranks_ == nullptr; }  // one run, the whole sequence
    int64_t shortest() const;                         // tokens of the shortest run of this rank
    // The tokens of run i, of x (B, T, ...) of all that this rank has; shares memory.
    Tensor tokens(const Tensor& x, size_t i) const;

    // Sends what run i has for the run after it, f32 of this shape, to the rank that has that run, and returns by run
    // what came from the ones before: undefined for the first run of a sequence. What the last run has goes nowhere.
    std::vector<Tensor> to_next(const std::vector<Tensor>& states, const Shape& shape) const;
    // The same the other way round.
    std::vector<Tensor> to_previous(const std::vector<Tensor>& states, const Shape& shape) const;

  private:
    int before(size_t i) const;  // the rank that has the token before run i, or the one after it; -1: there is none
    int after(size_t i) const;
    int owner_of(int64_t token) const;

    ops::Context& ctx_;
    comm::Communicator* ranks_;
    SequencePart part_;
    int64_t T_;  // of whole sequences
    std::vector<TokenRun> own_;
};

}  // namespace tutti::nn
