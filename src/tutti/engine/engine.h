// engine/engine.h: everything that one rank trains with, in the order of construction: device, groups, model, state,
// optimizer, batches. step.h runs its steps. An Engine prints nothing and writes no files.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tutti/base/trace.h"
#include "tutti/comm/world.h"
#include "tutti/data/data_set.h"
#include "tutti/engine/batches.h"
#include "tutti/engine/factories.h"
#include "tutti/engine/loss_scale.h"
#include "tutti/engine/microbatch_graph.h"
#include "tutti/kernels/attention_choice.h"
#include "tutti/kernels/gemm_tuning.h"
#include "tutti/models/model.h"
#include "tutti/nn/routing.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/pipeline/executor.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

using MakeBatches = std::function<std::unique_ptr<Batches>(ops::Context& ctx, const BatchShard& share)>;

// The device of a rank and its kernels. A rehearsal passes a meta device and kernels that compute nothing.
struct Machine {
    std::unique_ptr<Device> device;
    const kernels::KernelTable& kernels;                    // compute in the device's memory; must outlive the engine
    std::string offload_dir = {};                           // for a CPU, when [offload] names none
    std::unique_ptr<kernels::GemmTuning> tuning = nullptr;  // of matrix products; null: no algorithm was measured
    kernels::AttentionChoice attention = {};
};
// The machine that [train] and [precision] ask for. UsageError when the machine of this process lacks it.
Machine machine_of(const spec::RunSpec& run, const LocalRank& local, const std::string& offload_dir);
// Whether ranks communicate in the memory of their devices, as [comm] gpu says: not where two ranks share a device, for
// which it may not ask (UsageError). Collective.
bool communicates_on_devices(const spec::RunSpec& run, comm::World& world, const Device& device);

struct Engine;
struct StepResult;
// Makes step `step` (algorithms.h).
using Algorithm = StepResult (*)(Engine& engine, int64_t step);

struct Engine {
    // `run` and the captures of make_batches must outlive the engine. Collective over all ranks of the world.
    // UsageError when the machine lacks a feature that the run needs.
    Engine(const spec::RunSpec& run, comm::World& world, Machine machine, const MakeBatches& make_batches,
           const Factories& factories = {});
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Steps read other batches from now on. `run` may meanwhile have another learning rate.
    void set_batches(const MakeBatches& make_batches);

    const spec::RunSpec& run;
    Algorithm algorithm;
    std::unique_ptr<kernels::GemmTuning> tuning;  // the device's products refer to it
    kernels::AttentionChoice attention;           // likewise its attention
    std::unique_ptr<Device> device;
    std::unique_ptr<Device> offload_device;  // holds offloaded memory; null without offload
    ops::Context ctx;
    std::unique_ptr<comm::World> gpus;  // of ranks that communicate from GPU to GPU; null without such ranks
    parallel::Groups groups;
    models::Model model;
    std::shared_ptr<nn::DelayedScales> scales;  // of 8-bit tensors, from earlier steps; null: the recipe has none
    std::shared_ptr<nn::LostValues> lost;       // by casts to 8 bits; null: no product has any
    pipeline::Pipeline pipeline;
    optim::Rules rules;  // of updates
    std::unique_ptr<parallel::DataParallel> data_parallel;
    pipeline::Executor executor;
    optim::Optimizer optimizer;
    std::unique_ptr<Batches> batches;
    LossScale loss_scale;                      // of the current step
    ops::Sum losses;                           // of the current step
    std::vector<ops::Sum> later_losses;        // likewise, by depth of multi-token prediction
    std::optional<nn::RoutingRecord> routing;  // of the current step, for a model with experts
    nn::RoutingContext routers;                // for a model with experts
    std::optional<MicrobatchGraph> graph;      // with train.cuda_graphs
    Tracer* trace = nullptr;                   // records the timeline of the step; nullptr: no trace
};

// The part of the global batch for this rank's coordinates along dp and cp.
BatchShard share_of(parallel::Groups& groups);
// The ranks that divide each sequence with this one; `gather`: these ranks gather keys; else a ring.
nn::ContextParallel context_of(parallel::Groups& groups, bool gather);
// The ranks that route the tokens of a microbatch with this one, with `step` also those of a step. The first call is
// collective.
nn::RoutingContext routing_of(parallel::Groups& groups, bool step);
// The values of the rank with the last pipeline stage, on all ranks along pp.
std::vector<int32_t> from_last_stage(Engine& engine, const std::vector<int32_t>& values);
// The options of [comm]; `flight_directory` "": no flight records.
comm::WorldOptions world_options(const spec::RunSpec& run, const std::string& flight_directory);
// The training batches of a run; `data` null: the noise of the mlp family.
MakeBatches training_batches(const spec::RunSpec& run, const data::DataSet* data);

}  // namespace tutti::engine
