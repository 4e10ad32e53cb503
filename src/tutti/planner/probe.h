// planner/probe.h: what one layer of each kind, the embedding and the head cost on a rank: read from a rehearsal of the
// real engine on a model of the same sizes with few layers. Nothing here is a formula of a layer: bytes are those that
// the allocator counted, seconds those of the rehearsed kernels and operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tutti/planner/cache.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/simulate/timeline.h"

namespace tutti::planner {

// A part of a pass over a unit, and what follows.
struct Piece {
    enum class Then { ends, experts_are_complete, copy_begins, copy_is_awaited };
    double seconds = 0, idle = 0;  // of kernels, then of a wait for an operation inside the pass
    double new_gradients = 0;      // seconds more, or less, where the unit's gradients are new
    Then then = Then::ends;        // experts: their gradients, which are reduced then
    double bytes = 0;              // of a copy between the device and the host that begins
    size_t after = 0;              // of an awaited copy: how many have begun since
};

// A pass of a microbatch over a unit, with the operations of tensor, context and expert parallelism inside.
struct UnitPass {
    std::vector<Piece> pieces;  // in order
    // Bytes above what the units before it keep, a W's above what it begins with: until gradients of experts are
    // complete, then, and from then on.
    double peak = 0, at_experts = 0, peak_behind = 0;
    double most() const { return std::max(peak, peak_behind); }
    double seconds() const;  // without waits for copies; gradients are not new
};

// One unit: a layer, the embedding, the head with the loss. Bytes of a microbatch on the device.
struct UnitProbe {
    UnitPass forward, input, weight;       // F, I, W; where no backward is split I is B, recompute included
    UnitPass backward;                     // B
    double kept = 0, kept_for_weight = 0;  // from F until the end of B or I; from I until W
    std::vector<double> leaving;           // bytes of its copies to the host, which the next unit's forward begins
    double dense = 0, experts = 0;         // values of parameters in the rank's part

    double seconds() const { return forward.seconds() + input.seconds() + weight.seconds(); }
    double offloaded() const;  // bytes
};

struct LayerProbe {
    UnitProbe embedding, head;
    std::vector<UnitProbe> kinds;
    std::vector<size_t> kind_of_layer;  // of the whole model, in `kinds`
    double hidden = 0;                  // bytes of an activation between layers
    double beside = 0;                  // bytes beside state and activations: workspace, tables of angles, a batch
    std::vector<mesh::Axes> partial;    // axes over which gradients are partial sums
    size_t sums = 0;                    // groups that have memory for sums in `beside`
    double update = 0;                  // seconds of the update and the norm, of a value
};

// Rehearses probes and keeps them. Safe to share between threads.
class Probes {
  public:
    // `prices`: of kernels and operations on the cluster. `ranks`: of the whole run.
    Probes(rehearsal::Target target, simulate::TimelinePrices prices, int ranks);
    // Of the layers of `run`, whose pipeline, ZeRO, replication and offloaded state do not matter.
    const LayerProbe& of(const spec::RunSpec& run) { return known(run).exact; }
    // The same with fewer pieces, for estimates: those between waits for operations are one. New gradients save
    // nothing, so that a pass takes no less than its seconds().
    const LayerProbe& rough_of(const spec::RunSpec& run) { return known(run).rough; }
    size_t rehearsed() const;

  private:
    struct Known {
        LayerProbe exact, rough;
    };
    const Known& known(const spec::RunSpec& run);
    const Known& known(const spec::RunSpec& run, bool splits, bool both);
    LayerProbe probe(const spec::RunSpec& run, bool splits) const;

    rehearsal::Target target_;
    simulate::TimelinePrices prices_;
    int ranks_;
    Cache<std::vector<int64_t>, Known> known_;
};

// Groups of a rank that add in comm::kReductionBytes each: gradients that are partial sums over `partial`, and values
// inside layers. `ends_are_shared`: the rank's embedding or head has its matrix with another stage of the pipeline.
size_t groups_that_sum(const spec::RunSpec& run, const mesh::Mesh& mesh, std::span<const mesh::Axes> partial,
                       bool ends_are_shared);

// Whether all weight gradients of a schedule have actions of their own; some of DualPipeV have.
bool splits_backward(std::string_view schedule);

}  // namespace tutti::planner
