// nn/collectives.h: the collectives of tensor and context parallelism as differentiable functions, in conjugate pairs:
// what one does forward the other does backward. Names as in Megatron-LM (core/tensor_parallel/mappings.py).
//
// Convention: a value that is equal on all ranks has its whole gradient on every rank; the gradient of a divided value
// is divided in the same way. So an input that all ranks read, each for its own outputs, needs an all_reduce in the
// backward; a sum over ranks needs none.
//
// Rows: x (B, T, C) has B T of them; rank r of P has nn::rows_of(x, r, P), (B, T / P, C).
#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"

namespace tutti::nn {

// (B, T / P, C) of each of P ranks, gathered to (B, T, C).
Tensor gather_rows(ops::Context& ctx, const Tensor& part, comm::Communicator& ranks);

// f and g of Shoeybi et al. 2019, figure 3.
Var copy_to_region(Tape& tape, const Var& x, comm::Communicator& ranks);  // forward x, backward all_reduce
Var reduce_from_region(Tape& tape, Var x, comm::Communicator& ranks);     // forward all_reduce, backward dy

// g and its conjugate of Korthikanti et al. 2022, figure 5, over rows.
Var gather_from_sequence(Tape& tape, const Var& x, comm::Communicator& ranks);        // all_gather, reduce_scatter
Var reduce_scatter_to_sequence(Tape& tape, const Var& x, comm::Communicator& ranks);  // reduce_scatter, all_gather

// The same where gather() makes the whole dy.
Var reduce_scatter_to_sequence(Tape& tape, const Var& x, comm::Communicator& ranks,
                               std::function<Tensor(const Tensor& dy)> gather);

// The whole of codes with one scale, equal on all ranks, of which each rank has rows: (B, T / P, C) to (B, T, C).
ops::Operand all_gather_codes(ops::Context& ctx, ops::Operand part, comm::Communicator& ranks);

// The all_to_all around attention of Jacobs et al. 2023 (DeepSpeed-Ulysses). sp2hp takes the T tokens of this rank with
// all heads, in sections of heads[i] heads, x (B, T, sum of heads, D), and returns the tokens of all P ranks with an
// equal part of each section's heads, (B, T P, sum of heads / P, D). hp2sp is its inverse for one section. A section of
// H < P heads is copied: P / H ranks get the same head, and its gradient is summed over them. UsageError when neither H
// nor P divides the other.
Var all_to_all_sp2hp(Tape& tape, const Var& x, comm::Communicator& ranks, const std::vector<int64_t>& heads);
Var all_to_all_hp2sp(Tape& tape, const Var& x, comm::Communicator& ranks);

}  // namespace tutti::nn
