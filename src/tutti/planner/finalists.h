// planner/finalists.h: the best layouts of a search that run and fit. A rehearsal of the engine, one rank of each
// position of the pipeline, says the time of a step and the memory of a rank; the next layout replaces one that does
// not fit.
#pragma once

#include <string>
#include <vector>

#include "tutti/planner/search.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

struct RehearsedRun {
    spec::RunSpec run;  // validated
    simulate::RehearsedStep step;

    double seconds() const { return step.seconds; }
    int64_t bytes() const { return step.shown.memory.peak(); }
    bool fits() const { return step.shown.fits; }
};
// On the cluster of the request. `spans`: with its timeline.
RehearsedRun rehearsed(const Request& request, const rehearsal::Target& target, const spec::RunSpec& run,
                       bool spans = false);

struct Finalist : RehearsedRun {
    Candidate candidate;  // as priced
};

struct Dropped {
    Candidate candidate;
    std::string reason;
};

struct Finalists {
    // Fastest first. Layouts that differ in ZeRO, HSDP and offload alone count as one; so do layouts whose ranks have
    // as many tokens of a microbatch, in more or fewer sequences.
    std::vector<Finalist> chosen;
    std::vector<Dropped> dropped;  // faster by their price than the last of the chosen
    double seconds = 0;            // of the rehearsals
};

// The machine to rehearse for. Devices that this system has no kernels for are rehearsed with those of another vendor.
rehearsal::Target target_of(const Request& request);

// The fastest `count` layouts that validate() accepts and that fit, after at most 60 rehearsals: those first in order
// of price, and where they take longer than their prices those that may be faster by more than 1 %. A layout that did
// not fit stands for those that differ from it in context parallelism, micro batch and HSDP alone. If none fits,
// layouts of the front, which need successively less memory.
Finalists choose(const Request& request, const SearchResult& found, size_t count, const rehearsal::Target& target);

}  // namespace tutti::planner
