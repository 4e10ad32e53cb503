// engine/pipedream.h: asynchronous pipeline training with weight stashing (Harlap et al. 2018; Narayanan et al. 2019,
// PipeDream: Generalized Pipeline Parallelism for DNN Training). A mode for teaching: it fills the bubble by giving up
// equal weights.
//
// The stages run 1F1B. After each backward a stage updates its weights with the gradient of that microbatch alone. A
// backward uses the weights that the forward of its microbatch used on this stage; they are stashed, in as many
// versions as microbatches are in flight. Stages use different versions: on stage s of p, forward k follows max(0, k -
// (p-1-s)) updates, so gradients are stale by up to p - 1 updates, most on the first stage. The pipeline drains at the
// end of a step, where all stages have made equally many updates.
#pragma once

#include <map>

#include "tutti/engine/engine.h"

namespace tutti::engine {

inline bool is_asynchronous(const spec::RunSpec& run) { return run.parallel.schedule == "pipedream"; }

class PipeDream {
  public:
    // For one step. Announces the first microbatch to the engine's DataParallel.
    PipeDream(Engine& engine, double lr);
    PipeDream(const PipeDream&) = delete;
    PipeDream& operator=(const PipeDream&) = delete;

    // Around each pass of the program.
    void before(const schedule::Action& action);
    void after(const schedule::Action& action);

  private:
    // The weights of the rank, in the order of `parameters_`.
    using Version = std::vector<Tensor>;

    void exchange(Version& version);
    void update();

    Engine& engine_;
    double lr_;
    int64_t left_;  // updates of the step
    std::vector<autograd::Parameter*> parameters_;
    int64_t newest_ = 0;                  // version: updates so far in the step
    std::map<int, int64_t> seen_;         // by microbatch in flight: the version that its forward used
    std::map<int64_t, Version> stashed_;  // versions in use by a microbatch and no longer the newest
};

}  // namespace tutti::engine
