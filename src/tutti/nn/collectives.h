// nn/collectives.h: the collectives of tensor and context parallelism as differentiable functions, in conjugate pairs:
// what one does forward the other does backward. Names as in Megatron-LM (core/tensor_parallel/mappings.py).
//
// Convention: a value that every rank has alike has one gradient, whole on every rank; of a value of which each rank
// has a part, a rank has the part's gradient. So an input that all ranks read, each for outputs of its own, needs a sum
// in the backward, and a sum of the ranks' outputs none.
//
// Rows: x (B, T, C) has B T of them; rank r of P has nn::rows_of(x, r, P), (B, T / P, C).
#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"

namespace tutti::nn {

// f and g of Shoeybi et al. 2019, figure 3.
Var copy_to_region(Tape& tape, const Var& x, comm::Communicator& ranks);  // forward x, backward all_reduce
Var reduce_from_region(Tape& tape, Var x, comm::Communicator& ranks);     // forward all_reduce, backward dy

// Columns of x (..., C): of a value that every rank has alike, (..., C / P) of each rank, and back.
Var scatter_to_region(Tape& tape, const Var& x, comm::Communicator& ranks);   // split, all_gather
Var gather_from_region(Tape& tape, const Var& x, comm::Communicator& ranks);  // all_gather, split

// g and its conjugate of Korthikanti et al. 2022, figure 5, over rows.
Var gather_from_sequence(Tape& tape, const Var& x, comm::Communicator& ranks);        // all_gather, reduce_scatter
Var reduce_scatter_to_sequence(Tape& tape, const Var& x, comm::Communicator& ranks);  // reduce_scatter, all_gather

// The exchange of Jacobs et al. 2023 (DeepSpeed-Ulysses) around attention, an all_to_all in both directions: sp2hp
// turns x, T tokens of this rank and all heads, in sections of so many `heads` (B, T, sum of heads, D), into the tokens
// of all ranks and an equal part of the heads of each section, (B, T P, sum of heads / P, D); hp2sp is its inverse, of
// one section. Fewer than P heads of a section: P / H ranks have the same one, and the gradient sums over them.
// UsageError when neither H nor P divides the other.
Var all_to_all_sp2hp(Tape& tape, const Var& x, comm::Communicator& ranks, const std::vector<int64_t>& heads);
Var all_to_all_hp2sp(Tape& tape, const Var& x, comm::Communicator& ranks);

}  // namespace tutti::nn
