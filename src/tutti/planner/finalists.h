// planner/finalists.h: the best layouts of a search, each rehearsed: the engine itself says whether the layout runs and
// how much memory a rank needs. What does not fit makes room for the next one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/purpose.h"
#include "tutti/planner/search.h"
#include "tutti/rehearsal/target.h"
#include "tutti/simulate/prediction.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

struct Rehearsed {
    int64_t peak = 0;        // bytes, of the rehearsed rank that needs most
    MemoryByPurpose memory;  // at the peak
    std::string place;       // of the peak
    int rank = 0;
    int64_t capacity = 0;  // of the device
    bool fits = true;      // in it, block by block
};

struct Finalist {
    Candidate candidate;
    spec::RunSpec run;  // validated
    simulate::Prediction prediction;
    std::optional<Rehearsed> rehearsed;  // nothing where the machine cannot be rehearsed

    double bytes() const { return rehearsed ? double(rehearsed->peak) : candidate.bytes; }
};

struct Dropped {
    Candidate candidate;
    std::string reason;
};

struct Finalists {
    std::vector<Finalist> chosen;  // rising by time; of layouts that differ in ZeRO, HSDP and offload only one
    std::vector<Dropped> dropped;  // that were faster than the last of the chosen, and why they are not among them
    double seconds = 0;            // of rehearsing
};

// The machine of a cluster as rehearsals know it: nothing where the vendor's GPUs have no kernels here.
std::optional<rehearsal::Target> target_of(const Request& request);

// Ranks of the first, the second and the last position of the pipeline: one of them has the most memory of all. The
// step has as many microbatches as its peak needs, not more.
Rehearsed rehearse_run(const spec::RunSpec& run, const rehearsal::Target& target, int ranks);

// The fastest `count` that validate() accepts and that fit. `most` rehearsals at most.
Finalists choose(const Request& request, const std::vector<Candidate>& best, size_t count,
                 const std::optional<rehearsal::Target>& target, size_t most = 60);

}  // namespace tutti::planner
