#include "tutti/engine/engine.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "tutti/base/to_size.h"
#include "tutti/engine/algorithms.h"
#include "tutti/kernels/backends.h"
#include "tutti/parallel/apply.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/recipe.h"

namespace tutti::engine {

namespace {

std::unique_ptr<Device> offload_device_of(const spec::RunSpec& run, Device& device, const std::string& directory) {
    const spec::OffloadSpec& o = run.offload;
    if (!o.optimizer && !o.params && !o.activations) return nullptr;
    return device.make_offload_device(o.dir.empty() ? directory : o.dir);
}

// The machine's device; throws when it lacks what the run needs.
std::unique_ptr<Device> checked(const spec::RunSpec& run, Machine& machine) {
    check<UsageError>(!run.train.cuda_graphs || machine.device->records(),
                      "[train] cuda_graphs = true: needs a GPU; this rank is on ", machine.device->name());
    check<UsageError>(run.train.packed_weights != "always" || machine.kernels.gemm_packed_b != nullptr,
                      "[train] packed_weights = \"always\": only the CPU packs weights, and this rank is on ",
                      machine.device->name(), "; set auto");
    return std::move(machine.device);
}

// Multiprocessors for a message: at most half of the 132 of an H100 for the channels of all chunks of a rank, two to
// each neighbour. Schedules with two chunks a rank need no virtual_stages.
int message_ctas(const spec::RunSpec& run) {
    constexpr int64_t kMost = 4, kAll = 64;  // 4 carry some 80 GB/s
    const int64_t channels = 4 * std::max<int64_t>(run.parallel.virtual_stages, 2);
    return static_cast<int>(std::clamp<int64_t>(kAll / channels, 1, kMost));
}

// Null: communication passes through the host's memory.
std::unique_ptr<comm::World> gpu_world(const spec::RunSpec& run, comm::World& world, Device& device) {
    if (!communicates_on_devices(run, world, device)) return nullptr;
    return kernels::backend_of(device)->world(world, device,
                                              {.order = comm::sum_order_of(run.comm.order),
                                               .max_ctas = static_cast<int>(run.comm.max_ctas),
                                               .message_ctas = message_ctas(run),
                                               .timeout_s = run.comm.timeout_s});
}

// Communication runs beside products where gradients are reduced while the backward computes, where weights are
// gathered ahead, and where a product goes through the links in pieces. Whether an operation is in flight when a
// product starts depends on timing, and the bits of the product would too: so the layout alone decides, with NCCL or
// without.
ProductChoices product_choices(const spec::RunSpec& run, const mesh::Mesh& mesh, kernels::GemmTuning* tuning) {
    if (!run.comm.spare_multiprocessors) return {.tuning = tuning};
    const auto spared = static_cast<int>(run.comm.max_ctas);
    const bool in_pieces = run.parallel.tp > 1 && run.parallel.tp_overlap > 1;
    const bool reduces = mesh.size(mesh::kDp | mesh::kCp) > 1;
    const bool gathers = reduces && run.parallel.zero == 3;
    return {.tuning = tuning,
            .spared_by_forward = gathers || in_pieces ? spared : 0,
            .spared_by_gradients = reduces || in_pieces ? spared : 0};
}

ops::Packing packing_of(const spec::RunSpec& run) {
    if (run.train.packed_weights == "never") return ops::Packing::never;
    return run.train.packed_weights == "always" ? ops::Packing::always : ops::Packing::where_it_pays;
}

std::unique_ptr<parallel::DataParallel> make_data_parallel(const spec::RunSpec& run, ops::Context& ctx,
                                                           const std::vector<std::vector<autograd::Unit*>>& units,
                                                           parallel::Groups& groups, int64_t grain,
                                                           Device* offload_device) {
    const parallel::DataParallelOptions options{.zero = static_cast<parallel::Zero>(run.parallel.zero),
                                                .compute = spec::compute_dtype(run),
                                                .gradients = spec::gradient_dtype(run),
                                                .reduce = spec::reduce_dtype(run),
                                                .seed = static_cast<uint64_t>(run.train.seed),
                                                .reduce_each_microbatch = run.parallel.accumulate != "full",
                                                .reductions = static_cast<int>(run.parallel.reductions),
                                                .keep_gradients = run.train.cuda_graphs,
                                                .grain = grain,
                                                .masters = run.precision.master != "none",
                                                .masters_device = run.offload.optimizer ? offload_device : nullptr,
                                                .weights_device = run.offload.params ? offload_device : nullptr};
    return std::make_unique<parallel::DataParallel>(ctx, units, groups, options);
}

// Parameters begin at multiples of so many values in flat buffers. Weights of a recipe may have buffers of their own
// (precision.gather): where parameters begin with a block of the sums of squares, the norm does not show which.
int64_t grain_of(const spec::RunSpec& run, const optim::Rules& rules, const models::Model& model) {
    return std::lcm(rules.grain(model.parameters()), spec::recipe_of(run.precision) ? parallel::kShardGrain : 1);
}

optim::Rules checked_rules(const spec::RunSpec& run, models::Model& model, const Factories& factories) {
    optim::Rules rules(run.optimizer, factories.update_rule);
    rules.check_groups(model.parameters());
    check<UsageError>(!rules.need_whole_matrices() || run.parallel.strategy != "parameter_server",
                      "[parallel] strategy = \"parameter_server\": the update rule divides whole matrices among ranks, "
                      "and the server updates alone; set another strategy");
    return rules;
}

// The model, with this rank's part and the product rule set in each parameter.
models::Model applied(models::Model model, const spec::RunSpec& run, parallel::Groups& groups, int rank,
                      const Factories& factories) {
    autograd::TensorParallel tp;
    if (run.parallel.tp > 1) tp = {&groups.over(mesh::kTp), run.parallel.sequence_parallel, run.parallel.tp_overlap};
    parallel::apply(model.parameters(), groups.mesh(), rank, tp, parallel::expert_parallel_of(groups));
    factories.products(model, run, groups);
    if (run.parallel.strategy == "parameter_server") leave_gradients_to_server(model);
    return model;
}

// The rank's part of the pipeline, with Parameter::pipeline_ranks set.
pipeline::Pipeline placed(const spec::RunSpec& run, models::Model& model, parallel::Groups& groups) {
    const int64_t microbatches = run.train.global_batch / (run.train.micro_batch * groups.mesh().size(mesh::kDp));
    pipeline::Pipeline p = pipeline::make_pipeline(run, model, microbatches, groups.coordinate(mesh::Axis::pp));
    pipeline::share_between_stages(p, model);
    return p;
}

std::vector<std::vector<autograd::Unit*>> units_of(models::Model& model, const pipeline::Pipeline& pipeline) {
    std::vector<std::vector<autograd::Unit*>> runs;
    for (const pipeline::ModelChunk& chunk : pipeline.chunks()) runs.push_back(model.units(chunk.span));
    return runs;
}

pipeline::PassOptions pass_options(const spec::RunSpec& run, const pipeline::Pipeline& pipeline,
                                   Device* offload_device) {
    const spec::Recompute recompute = spec::recompute_of(run.recompute.policy, run.model.layers);
    return {.compute = spec::compute_dtype(run),
            .segment = recompute.segment,
            .selective = recompute.selective,
            .copies_weights = run.parallel.zero == 3 && pipeline.delays_weight_gradients(),
            .offload_device = run.offload.activations ? offload_device : nullptr};
}

// The memory of sums over ranks in a step, besides those of gradients.
void reserve_reductions(Engine& s) {
    const auto reserve = [&](comm::Communicator* ranks, DType type) {
        if (ranks != nullptr) ranks->reserve_reductions(s.ctx.device, type, type);
    };
    const bool gathers = s.run.parallel.cp_method == "all_gather";
    if (s.run.parallel.tp > 1) reserve(&s.groups.over(mesh::kTp), spec::compute_dtype(s.run));
    if (gathers) reserve(context_of(s.groups, gathers).ring, DType::f32);
    if (s.scales) reserve(&s.groups.world(), DType::i32);
    if (s.routing) reserve(&s.groups.world(), DType::i64);
    for (comm::Communicator* ranks : {s.routers.microbatch, s.routers.step}) reserve(ranks, DType::f32);
    for (comm::Communicator* ranks : ranks_of_scales(s.run, s.groups)) reserve(ranks, DType::i32);
}

// The share of a step, whose targets are counted over the ranks.
BatchShard counted_share(parallel::Groups& groups) {
    BatchShard share = share_of(groups);
    share.sum = [&dp = groups.over(mesh::kDp)](int64_t count) {
        return static_cast<int64_t>(dp.sum(static_cast<double>(count)));
    };
    return share;
}

}  // namespace

bool communicates_on_devices(const spec::RunSpec& run, comm::World& world, const Device& device) {
    const kernels::Backend* backend = kernels::backend_of(device);
    if (backend == nullptr || backend->world == nullptr || world.size() == 1 || run.comm.gpu == "host") return false;
    const std::vector<std::string> gpus = comm::device_identities(*world.everyone("GPUs"), device);
    for (size_t r = 0; r < gpus.size(); ++r) {
        const auto before = to_size(std::find(gpus.begin(), gpus.end(), gpus[r]) - gpus.begin());
        if (before == r) continue;
        check<UsageError>(run.comm.gpu == "auto", "[comm] gpu = \"", run.comm.gpu, "\": ranks ", before, " and ", r,
                          " share ", gpus[r],
                          ", which the library refuses; give each rank a GPU of its own, or set gpu = \"host\"");
        return false;
    }
    return true;
}

Machine machine_of(const spec::RunSpec& run, const LocalRank& local, const std::string& offload_dir) {
    auto device = make_device(run.train.device, static_cast<int>(run.train.threads), local);
    const kernels::KernelTable& kernels = kernels::table_for(*device, spec::compute_type_of(run));
    std::unique_ptr<kernels::GemmTuning> tuning;
    if (const std::string& file = run.train.gemm_tuning; !file.empty()) {
        check<UsageError>(kernels.gemm_tuning != nullptr, "[train] gemm_tuning = \"", file,
                          "\": cuBLASLt must make the products, and this rank is on ", device->name(), " with the ",
                          kernels.name, " kernels; leave gemm_tuning out");
        tuning = std::make_unique<kernels::GemmTuning>(kernels::read_gemm_tuning(file, kernels.gemm_tuning()));
    }
    kernels::AttentionChoice attention =
        kernels::attention_choice(*device, run.train.attention, run.train.attention_tuning);
    return {std::move(device), kernels, offload_dir, std::move(tuning), std::move(attention)};
}

Engine::Engine(const spec::RunSpec& run_, comm::World& world, Machine machine, const MakeBatches& make_batches,
               const Factories& factories)
    : run(run_),
      algorithm(algorithm_of(run)),
      tuning(std::move(machine.tuning)),
      attention(std::move(machine.attention)),
      device(checked(run, machine)),
      offload_device(offload_device_of(run, *device, machine.offload_dir)),
      ctx{*device, machine.kernels, nullptr, packing_of(run)},
      gpus(gpu_world(run, world, *device)),
      groups(gpus ? *gpus : world, parallel::make_mesh(run, world.size())),
      model(applied(factories.model(ctx, run.model, run.train.seq_len), run, groups, world.rank(), factories)),
      scales(delayed_scales_of(model)),
      lost(lost_values_of(model)),
      pipeline(placed(run, model, groups)),
      rules(checked_rules(run, model, factories)),
      data_parallel(make_data_parallel(run, ctx, units_of(model, pipeline), groups, grain_of(run, rules, model),
                                       offload_device.get())),
      executor(ctx, model, groups, pipeline, pass_options(run, pipeline, offload_device.get())),
      optimizer(ctx, data_parallel->parameter_shards(), rules, run.offload.optimizer ? offload_device.get() : nullptr,
                data_parallel->gather_whole(rules), static_cast<uint64_t>(run.train.seed), spec::compute_dtype(run)),
      batches(make_batches(ctx, counted_share(groups))),
      loss_scale(first_loss_scale(run)),
      losses(ctx) {
    device->choose_products(product_choices(run, groups.mesh(), tuning.get()));
    device->choose_attention(&attention);
    check_products(run, ctx);
    if (scales) scales->allocate(ctx);
    if (lost) lost->allocate(ctx);
    if (run.train.cuda_graphs) graph.emplace(ctx);
    for (int64_t k = 0; k < run.model.mtp_depth; ++k) later_losses.emplace_back(ctx);
    if (run.model.moe.experts > 0) {
        routing.emplace(ctx, spec::layers_with_routers(run.model), run.model.moe,
                        run.train.global_batch * run.train.seq_len);
        routers = routing_of(groups, run.model.moe.aux_loss == "global");
    }
    reserve_reductions(*this);
}

void Engine::set_batches(const MakeBatches& make_batches) { batches = make_batches(ctx, counted_share(groups)); }

BatchShard share_of(parallel::Groups& groups) {
    return {.rank = groups.coordinate(mesh::kDp),
            .ranks = groups.mesh().size(mesh::kDp),
            .part = {groups.coordinate(mesh::kCp), groups.mesh().size(mesh::kCp),
                     groups.mesh().size(mesh::Axis::cp_ulysses)}};
}

nn::ContextParallel context_of(parallel::Groups& groups, bool gather) {
    const auto over = [&](mesh::Axes axes) { return groups.mesh().size(axes) > 1 ? &groups.over(axes) : nullptr; };
    comm::Communicator *ulysses = over(mesh::Axis::cp_ulysses), *ring = over(mesh::Axis::cp_ring);
    return {ulysses, ring, ulysses && ring ? over(mesh::kCp) : ulysses ? ulysses : ring, gather};
}

nn::RoutingContext routing_of(parallel::Groups& groups, bool step) {
    const auto over = [&](mesh::Axes axes) { return groups.mesh().size(axes) > 1 ? &groups.over(axes) : nullptr; };
    const mesh::Axes tokens{mesh::kTp, mesh::kCp};
    return {.microbatch = over(tokens), .step = step ? over({tokens, mesh::kDp}) : nullptr};
}

std::vector<int32_t> from_last_stage(Engine& engine, const std::vector<int32_t>& values) {
    const int last = engine.pipeline.schedule.placement.rank_of(0, engine.pipeline.stages() - 1);
    const Tensor x = Tensor::from_host<int32_t>(*engine.device, {static_cast<int64_t>(values.size())}, values,
                                                Purpose::communication);
    engine.groups.over(mesh::Axis::pp).broadcast(x, last).wait();
    return x.to_host<int32_t>();
}

comm::WorldOptions world_options(const spec::RunSpec& run, const std::string& flight_directory) {
    return {.timeout_s = run.comm.timeout_s,
            .progress_thread = run.comm.progress_thread,
            .flight_directory = flight_directory,
            .backend = comm::process_backend_of(run.comm.backend),
            .watched = run.comm.gpu != "host" && kernels::gpus_for(run.train.device) > 0,
            .secret = run.comm.secret};
}

MakeBatches training_batches(const spec::RunSpec& run, const data::DataSet* data) {
    return [&run, data](ops::Context& ctx, const BatchShard& share) {
        if (!data) return noise_batches(ctx, run, share);
        const data::Sampler sampler(data->train, run.train.seq_len, static_cast<uint64_t>(run.train.seed));
        return token_batches(ctx.device, sampler, run.train.micro_batch, run.train.global_batch, share,
                             run.model.mtp_depth, std::numeric_limits<int64_t>::max(), run.place.sample_shift);
    };
}

}  // namespace tutti::engine
