// planner/probe.h: what one layer of each kind, the embedding and the head cost on a rank: read from a rehearsal of the
// real engine on a model of the same sizes with few layers. Nothing here is a formula of a layer: bytes are those that
// the allocator counted, seconds those of the rehearsed kernels and operations.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/planner/cache.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/simulate/timeline.h"

namespace tutti::planner {

// A part of a pass over a unit, and what follows.
struct Piece {
    enum class Then { ends, gradients_are_complete, copy_begins, copy_is_awaited };
    double seconds = 0, idle = 0;  // of kernels, then of a wait for an operation inside the pass
    double launches = 0;           // seconds of the host for these kernels
    double launched = 0;       // from the begin of the first launch to the kernels' end, where each waits for its own
    double new_gradients = 0;  // seconds more, or less, where the unit's gradients are new
    Then then = Then::ends;
    size_t state = 0;  // whose gradients are complete: in UnitProbe::states
    double bytes = 0;  // of a copy between the device and the host that begins; when gradients are complete: see below
    double peak = 0;   // bytes from when gradients are complete until others are, or the pass ends
    size_t after = 0;  // of an awaited copy: how many have begun since

    void prepend(const Piece& before);  // which nothing follows; the idle seconds of both are then at the end
};

// A pass of a microbatch over a unit, with the operations of tensor, context and expert parallelism inside. Bytes are
// above what it begins with.
struct UnitPass {
    std::vector<Piece> pieces;  // in order
    double peak = 0;            // until gradients are complete
    double most() const;        // the highest peak
    double seconds() const;     // without waits for copies; gradients are not new
};

// One unit: a layer, the embedding, the head with the loss. Bytes of a microbatch on the device.
struct UnitProbe {
    UnitPass forward, recompute;
    UnitPass input, weight;                // I, W, behind a recompute; where no backward is split I is B
    UnitPass backward;                     // B, likewise
    double kept = 0, kept_for_weight = 0;  // from F until the end of B or I; from I until W
    std::vector<double> leaving;           // bytes of its copies to the host, which the next unit's forward begins
    std::vector<double> returning;         // of those from the host with which its backward begins
    struct State {
        size_t sum = 0;         // in LayerProbe::sums
        bool is_early = false;  // the forward completes its gradients
    };
    std::vector<State> states;  // of its parameters

    double seconds() const { return forward.seconds() + recompute.seconds() + input.seconds() + weight.seconds(); }
    double offloaded() const;  // bytes
};

// Parameters that are gathered together, and whose gradients are summed together.
struct SummedTogether {
    double values = 0;        // in the rank's part
    mesh::Axes partial = {};  // axes over which gradients are partial sums
    int of_layers = 1;        // ranks among these that are not data-parallel
    bool is_shared = false;   // by the embedding and the head

    bool of_experts() const { return partial.contains(mesh::Axis::edp); }
    bool operator==(const SummedTogether&) const = default;
};

struct LayerProbe {
    UnitProbe embedding, head;
    std::vector<UnitProbe> kinds;
    std::vector<size_t> kind_of_layer;    // of the whole model, in `kinds`
    double hidden = 0;                    // bytes of an activation between layers
    double beside = 0;                    // bytes beside state and activations: workspace, tables of angles, a batch
    std::vector<SummedTogether> sums;     // different ones
    size_t groups_that_sum = 0;           // that have memory for it in `beside`
    double update = 0;                    // seconds of the update and the norm, of a value
    double exchanges = 0, exchanged = 0;  // small sums of a step over all ranks, of losses, counts, the norm; bytes
};

// Rehearses probes and keeps them. Safe to share between threads.
class Probes {
  public:
    // `prices`: of kernels and operations on the cluster.
    Probes(rehearsal::Target target, simulate::TimelinePrices prices);
    // Of the layers of `run`, whose pipeline, ZeRO, replication and offloaded state do not matter.
    const LayerProbe& of(const spec::RunSpec& run) { return known(run).exact; }
    // The same with fewer pieces, for estimates: those between waits for operations are one. New gradients save
    // nothing, so that a pass takes no less than its seconds().
    const LayerProbe& rough_of(const spec::RunSpec& run) { return known(run).rough; }
    size_t rehearsed() const;
    double launch() const { return prices_.launch; }

  private:
    struct Known {
        LayerProbe exact, rough;
    };
    struct Key {  // what the layers of a run depend on; both: whole and split backwards
        int64_t tp, cp, ulysses, ep, etp, micro_batch;
        std::string cp_method, recompute;
        bool sequence_parallel, offloads, splits, both;
        auto operator<=>(const Key&) const = default;
    };
    const Known& known(const spec::RunSpec& run);
    const Known& known(const spec::RunSpec& run, bool splits, bool both);
    LayerProbe probe(const spec::RunSpec& run, bool splits) const;

    rehearsal::Target target_;
    simulate::TimelinePrices prices_;
    Cache<Key, Known> known_;
};

// Groups of a rank that add in comm::kReductionBytes each: gradients that are partial sums, and values inside layers.
// `ends_are_shared`: the rank's embedding or head has its matrix with another stage of the pipeline.
size_t groups_that_sum(const spec::RunSpec& run, const mesh::Mesh& mesh, std::span<const SummedTogether> sums,
                       bool ends_are_shared);

// Whether all weight gradients of a schedule have actions of their own; some of DualPipeV have.
bool splits_backward(std::string_view schedule);

}  // namespace tutti::planner
