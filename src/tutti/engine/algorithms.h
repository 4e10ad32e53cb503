// engine/algorithms.h: how a step trains: the synchronous step of step.cpp, and two older algorithms for teaching,
// which run on the same passes. A run names its algorithm by [parallel] schedule and strategy.
#pragma once

#include "tutti/engine/step.h"
#include "tutti/engine/tracing.h"

namespace tutti::engine {

StepResult synchronous_step(Engine& engine, int64_t step);

// Asynchronous pipeline training with weight stashing (Harlap et al. 2018; Narayanan et al. 2019, PipeDream:
// Generalized Pipeline Parallelism for DNN Training). It fills the bubble by giving up equal weights.
//
// The stages run 1F1B. After each backward a stage updates its weights with the gradient of that microbatch alone. A
// backward uses the weights that the forward of its microbatch used on this stage; they are stashed, in as many
// versions as microbatches are in flight. Stages use different versions: on stage s of p, forward k follows max(0, k -
// (p-1-s)) updates, so gradients are stale by up to p - 1 updates, most on the first stage. The pipeline drains at the
// end of a step, where all stages have made equally many updates.
StepResult pipedream_step(Engine& engine, int64_t step);
bool is_asynchronous(const spec::RunSpec& run);

// Training with a parameter server (Dean et al. 2012): all ranks push their gradients to rank 0, which alone updates
// and from which all pull the weights. Each worker moves 2P bytes, the server 2P for every worker, so parameter servers
// are not used in practice. For ZeRO-0 and data parallelism alone.
StepResult parameter_server_step(Engine& engine, int64_t step);
// Parameters whose gradients DataParallel leaves to the server. Call after parallel::apply().
void leave_gradients_to_server(models::Model& model);

Algorithm algorithm_of(const spec::RunSpec& run);

// --- parts of a step that the algorithms share ---

// Forwards and backwards of a step, of each chunk of this rank.
std::vector<int64_t> microbatches_of(const pipeline::Pipeline& pipeline);
// The microbatches of step `step` for this rank's layers.
pipeline::Executor::MakeBatch batches_of(Engine& engine, int64_t step);
// All passes of a step, with their messages; in recorded graphs where the run asks for those. `before` and `after` are
// called around each pass.
using AroundPass = std::function<void(const schedule::Action&)>;
void run_passes(Engine& engine, StepTrace& trace, const pipeline::Executor::MakeBatch& batch,
                const AroundPass& before = {}, const AroundPass& after = {});
// All passes of a synchronous step. Gradients are summed over the ranks on return, and Engine::losses are being sent.
void add_gradients(Engine& engine, int64_t step, StepTrace& trace);
// Starts sending the losses of the step to the host.
void send_losses(Engine& engine);
// The norm of the summed gradients, without the loss scale. Collective.
double gradient_norm(Engine& engine);
// Sets what the step is judged by: losses, gradient norm, routing. Engine::losses are being sent. Collective.
void measure(Engine& engine, int64_t step, StepTrace& trace, StepResult& result);
// Whether the step has targets, and finite loss and gradient; without the latter sets StepResult::skipped and the
// culprit. Sets the loss scale of the next step: the norm is the same on all ranks, and so is the verdict. Collective.
bool may_update(Engine& engine, StepResult& result);
// The update with the summed gradients that this rank holds.
void update(Engine& engine, StepTrace& trace, const StepResult& result);

}  // namespace tutti::engine
