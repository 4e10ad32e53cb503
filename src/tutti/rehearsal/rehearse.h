// rehearsal/rehearse.h: a training step of one rank without memory, data, other ranks or the machine it is for. The
// real Engine is built and the real train_step runs, on a device that only counts (device/meta/), with kernels that
// compute nothing (kernels/meta/), in a world without peers (comm/meta/). What is found is what runs, by construction:
// memory by purpose, FLOPs, communication, and the program of the rank.
//
// Two things of a real step are values and stand in as assumptions: with data.documents = "respected" attention is
// counted as over whole sequences, and every loss is finite.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/parallel/groups.h"
#include "tutti/plan/memory.h"
#include "tutti/rehearsal/program.h"
#include "tutti/rehearsal/target.h"

namespace tutti::rehearsal {

struct Rehearsal {
    std::string machine;  // of the target
    int ranks = 1, rank = 0;
    plan::MemoryPlan memory;                            // of the first step
    int64_t memory_capacity = 0;                        // of the machine; 0: not known
    bool fits = true;                                   // in it, block by block
    std::vector<parallel::GroupTraffic> communication;  // of the step, groups of one rank left out
    std::string pipeline;                               // in words, with its predicted bubble; "": there is none
    double bubble = 0;                                  // predicted: share of the schedule's time
    double flops = 0;                                   // of this rank's kernels in the step, recompute included
    // Of the step. Of more than three microbatches the first, one that stands for all between, and the last.
    Program program;
};

// Rank `rank` of a run of `ranks`, validated. UsageError when the target lacks what the run asks of it, Error where the
// step itself would fail ("rope has no cuda kernel"). Independent of all other rehearsals; may run on any thread.
Rehearsal rehearse(const spec::RunSpec& run, const Target& target, int ranks, int rank);

// Bytes that the rank sends over links in a step, in the group of these axes.
int64_t sent_in(const Rehearsal& rehearsal, mesh::Axes axes);

// Several ranks of one run.
struct LayoutRehearsal {
    Rehearsal shown;             // the asked rank, or the one with the most memory
    std::vector<int> rehearsed;  // ranks, rising
    std::string difference;      // where two of them would call different operations; "": all agree
};

// The ranks that are compared: rank 0 and those that differ from it along one axis of the mesh; of an axis of more than
// 8 the first, the last and 6 between. With `rank`, that one and its neighbours along each axis likewise.
LayoutRehearsal rehearse_layout(const spec::RunSpec& run, const Target& target, int ranks, std::optional<int> rank);

}  // namespace tutti::rehearsal
