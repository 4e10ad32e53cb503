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
#include "tutti/ops/packed_weights.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

using MakeBatches = std::function<std::unique_ptr<Batches>(ops::Context& ctx, const Share& share)>;

struct EngineOptions {
    LocalRank local;
    std::string offload_dir;  // when [offload] names none, of a rank on the CPU
};

struct Engine {
    // `run` and what make_batches captures must outlive it. Collective over all ranks of the world.
    Engine(const spec::RunSpec& run, comm::World& world, const EngineOptions& options, const MakeBatches& make_batches);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const spec::RunSpec& run;
    std::unique_ptr<Device> device;
    std::unique_ptr<Device> home;  // of what is offloaded; null when nothing is
    ops::Context ctx;
    parallel::Groups groups;
    models::Model model;
    parallel::DataParallel data_parallel;
    optim::Optimizer optimizer;
    std::unique_ptr<Batches> batches;
    ops::Sum losses;                       // of the step that runs
    ops::PackedWeights packed_weights;     // of the step that runs
    std::optional<MicrobatchGraph> graph;  // with train.cuda_graphs
    Tracer* trace = nullptr;               // where the step notes what it does when; nullptr: nowhere
};

// As [comm] says; `flight_directory` "": no flight records.
comm::WorldOptions world_options(const spec::RunSpec& run, const std::string& flight_directory);
// As train.packed_weights says.
ops::Packing packing_of(const spec::RunSpec& run);
// What a rank of `run` computes on. UsageError when it is not there, or lacks what the run asks of it.
std::unique_ptr<Device> device_of(const spec::RunSpec& run, const LocalRank& local);

// The training batches of a run; `data` null: the noise of the mlp family.
MakeBatches training_batches(const spec::RunSpec& run, const data::DataSet* data);

}  // namespace tutti::engine
