// engine/engine.h: everything that one rank trains with, in the order in which it is built: device, groups, model,
// state, optimizer, batches. step.h steps it. An Engine prints nothing and writes no files: a run around it does.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tutti/base/trace.h"
#include "tutti/comm/world.h"
#include "tutti/data/data_set.h"
#include "tutti/engine/batches.h"
#include "tutti/engine/microbatch_graph.h"
#include "tutti/models/model.h"
#include "tutti/nn/routing.h"
#include "tutti/ops/packed_weights.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/pipeline/executor.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

using MakeBatches = std::function<std::unique_ptr<Batches>(ops::Context& ctx, const BatchShard& share)>;

// What a rank computes on. A rehearsal hands in a meta device with a silenced table.
struct Machine {
    std::unique_ptr<Device> device;
    const kernels::KernelTable& kernels;  // that compute in the device's memory; must outlive the engine
    std::string offload_dir = {};         // of a CPU, when [offload] names none
};
// As [train] and [precision] ask. UsageError when the machine that this process runs on lacks it.
Machine machine_of(const spec::RunSpec& run, const LocalRank& local, const std::string& offload_dir);

struct Engine {
    // `run` and what make_batches captures must outlive it. Collective over all ranks of the world. UsageError when the
    // machine lacks what the run asks of it.
    Engine(const spec::RunSpec& run, comm::World& world, Machine machine, const MakeBatches& make_batches);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const spec::RunSpec& run;
    std::unique_ptr<Device> device;
    std::unique_ptr<Device> offload_device;  // of what is offloaded; null when nothing is
    ops::Context ctx;
    std::unique_ptr<comm::World> gpus;  // of ranks that communicate from GPU to GPU; null where none do
    parallel::Groups groups;
    models::Model model;
    pipeline::Pipeline pipeline;
    parallel::DataParallel data_parallel;
    pipeline::Executor executor;
    optim::Optimizer optimizer;
    std::unique_ptr<Batches> batches;
    ops::Sum losses;                           // of the step that runs
    std::optional<nn::RoutingRecord> routing;  // likewise, of a model with experts
    nn::RoutingContext routers;                // of such a model
    ops::PackedWeights packed_weights;         // of the step that runs
    std::optional<MicrobatchGraph> graph;      // with train.cuda_graphs
    Tracer* trace = nullptr;                   // where the step notes what it does when; nullptr: nowhere
};

// What a rank works on: of its place along dp and cp.
BatchShard share_of(parallel::Groups& groups);
// The ranks that share out each sequence with this one; `gather`: they gather keys, in place of the ring.
nn::ContextParallel context_of(parallel::Groups& groups, bool gather);
// The ranks that route the tokens of a microbatch with this one; `step`: and those of a step. Collective at first.
nn::RoutingContext routing_of(parallel::Groups& groups, bool step);
// What the rank with the last pipeline stage has, on all ranks along pp.
std::vector<int32_t> from_last_stage(Engine& engine, const std::vector<int32_t>& values);
// As [comm] says; `flight_directory` "": no flight records.
comm::WorldOptions world_options(const spec::RunSpec& run, const std::string& flight_directory);
// The training batches of a run; `data` null: the noise of the mlp family.
MakeBatches training_batches(const spec::RunSpec& run, const data::DataSet* data);

}  // namespace tutti::engine
