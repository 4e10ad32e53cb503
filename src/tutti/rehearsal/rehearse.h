// rehearsal/rehearse.h: a training step of one rank without its memory, data, other ranks or machine. The real Engine
// is built and the real train_step runs, on a device that only counts (device/meta/), with kernels that compute nothing
// (kernels/meta/), in a world without peers (comm/meta/). Memory by purpose, FLOPs, communication and the program of
// the rank are therefore those of a run.
//
// Two assumptions replace values of a real step: with data.documents = "respected" attention is counted over whole
// sequences, and every loss is finite.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/engine/factories.h"
#include "tutti/models/flops.h"
#include "tutti/parallel/groups.h"
#include "tutti/rehearsal/program.h"
#include "tutti/rehearsal/target.h"

namespace tutti::rehearsal {

// Where gradients are complete, and their sum begins: inside a pass. Bytes of the device in use.
struct Completion {
    size_t state = 0;   // in Parts::states
    size_t action = 0;  // the first one behind it in Program::actions, which has no sums of gradients
    int64_t bytes = 0;  // then
    int64_t peak = 0;   // until the next one, or the end of the pass
};
// One pass over one unit, without the hooks of parallelism around it. Bytes of the device in use.
struct UnitPass {
    size_t place = 0;                      // in Program::places: "forward of h.3"
    int64_t begin = 0, peak = 0, end = 0;  // peak: until the first completion
    std::vector<Completion> completions;
};
// Parameters that are gathered together, and whose gradients are summed together.
struct SummedTogether {
    std::vector<std::string> units;  // that have them; several share a matrix
    mesh::Axes partial;              // axes over which their gradients are partial sums
    int64_t values = 0;              // in this rank's part, before they are sharded over data-parallel ranks
};

// What a step is made of: for prices of other steps with the same layers.
struct Parts {
    std::vector<UnitPass> passes;        // of the last microbatch, whose gradients are summed
    size_t last = 0;                     // where that begins in Program::actions
    std::vector<std::string> units;      // of the rank, in the order of the forward
    std::vector<SummedTogether> states;  // likewise
};

// Bytes of a rank during its first step.
struct MemoryPlan {
    MemoryByPurpose at_peak;  // of each purpose at the peak of the sum
    MemoryByPurpose peaks;    // each purpose's own peak; their sum is more than the peak of the sum
    std::string peak_place;   // "backward of h.11"
    int64_t offloaded = 0;    // peak of the offload device; not in the other peaks
    int64_t reserved = 0;     // taken from the system: the peak and the gaps between its blocks
    int64_t arena = 0;        // of these: what a GPU takes at once (Allocator::open_arena)
    int64_t saved = 0;        // state that this rank writes into a checkpoint

    int64_t peak() const { return at_peak.total(); }
};

struct Rehearsal {
    std::string machine;  // of the target
    int ranks = 1, rank = 0;
    MemoryPlan memory;                                  // of the first step
    int64_t memory_capacity = 0;                        // of the machine; 0: not known
    bool fits = true;                                   // in memory_capacity, block by block
    std::vector<parallel::GroupTraffic> communication;  // of the step, groups of one rank left out
    std::string pipeline;                               // in words, with its predicted bubble; "": no pipeline
    std::string assumed;                                // of products of codes (engine::assumed_products)
    std::vector<std::string> optimizer;                 // lines: its groups of parameters, its share of the step
    double bubble = 0;                                  // predicted: share of the schedule's time
    models::ModelCounts counts;                         // of the whole model
    double flops = 0;                                   // of this rank's kernels in the step, recompute included
    // Before the step: bytes of the device, and of the device that it offloads to.
    int64_t built = 0, built_offloaded = 0;
    // Ranks that differ from this one in other coordinates than cp and pp run the same step: no experts, whose tokens
    // are not always even, and no update of whole matrices, which ranks share out.
    bool like_others = false;
    // The program of the step. More than three microbatches are the first, one that stands for all between, and the
    // last.
    Program program;
};

// Rank `rank` of a validated run of `ranks`. UsageError when the target lacks a feature that the run needs, Error where
// the step itself would fail ("rope has no cuda kernel"). Independent of other rehearsals; may run on any thread.
// `other`: of another rank of this run, which has the same pipeline in words.
Rehearsal rehearse(const spec::RunSpec& run, const Target& target, int ranks, int rank,
                   const engine::Factories& factories = {}, const Rehearsal* other = nullptr);

// Whether that rank fits the device of the target, block by block.
bool fits(const spec::RunSpec& run, const Target& target, int ranks, int rank);

// The same for two microbatches, with its parts; without a pipeline, ZeRO 0.
struct PartsRehearsal {
    Rehearsal whole;  // its memory is not counted
    Parts parts;
};
PartsRehearsal rehearse_parts(const spec::RunSpec& run, const Target& target, int ranks, int rank);

// UsageError where the target's kernels multiply no codes of the run's recipe, in any layout.
void check_recipe(const spec::RunSpec& run, const Target& target);

// Bytes that the rank sends over links in a step, in the group of these axes.
int64_t sent_in(const Rehearsal& rehearsal, mesh::Axes axes);

// The axes along which ranks wait for one another at any time, not in collectives of like ranks alone: those of the
// pipeline, and of context parallelism where a state passes through the tokens (nn/sequence_runs.h).
mesh::Axes chained_axes(const spec::ModelSpec& model);

// The first rank with the fullest experts of given loads; 0 where loads are even.
int with_fullest_experts(const spec::RunSpec& run, const Target& target, int ranks);

// The ranks that stand for a run in every forecast: those of a chain (chained_axes()), and along each other axis of the
// mesh up to 3 ranks that differ from the fullest of the chain along that axis alone.
struct RankRehearsals {
    std::vector<Rehearsal> all;        // the chain in its order, then the others, ascending
    size_t chain = 0;                  // how many are the chain
    size_t fullest = 0;                // in `all`: the rank with the most memory
    bool fit = true;                   // all of them
    int64_t offloaded = 0, saved = 0;  // the most that one of them offloads, and saves
};
// The chain of `through`, or of with_fullest_experts(). On all cores.
// `all` false: of the others those alone that may need more than the fullest of the chain. A rank that runs the same
// step needs no more than that if it has no more before the step. `must_fit`: OutOfMemory if one does not fit, without
// a rehearsal of what it needs.
RankRehearsals rehearse_ranks(const spec::RunSpec& run, const Target& target, int ranks, bool all,
                              std::optional<int> through = std::nullopt, bool must_fit = false);

struct LayoutRehearsal {
    Rehearsal shown;                   // of the requested rank, or of the rank with the most memory
    std::vector<int> rehearsed;        // ranks, ascending
    std::string difference;            // where two of them would call different operations; "": all agree
    int64_t offloaded = 0, saved = 0;  // the most that one of them offloads, and saves
};

// Compares the programs of rehearse_ranks(). With `rank` they are its chain and its neighbours, and it is shown.
LayoutRehearsal rehearse_layout(const spec::RunSpec& run, const Target& target, int ranks, std::optional<int> rank);

}  // namespace tutti::rehearsal
