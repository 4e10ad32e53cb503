// engine/testing/rig.h: a rank that runs the passes of microbatches one by one in the order of a test, with
// DataParallel attached: the executor of pipeline schedules without a pipeline.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/engine/engine.h"
#include "tutti/kernels/meta/meta_table.h"
#include "tutti/models/model.h"
#include "tutti/parallel/apply.h"
#include "tutti/parallel/data_parallel.h"

namespace tutti::engine::testing {

// forward, backward, backward_input or backward_weight of a stage and a microbatch.
struct Action {
    autograd::PassKind kind;
    size_t stage;
    int64_t microbatch;
};

struct RigOptions {
    spec::ModelSpec model;
    mesh::Mesh mesh;
    parallel::DataParallelOptions data_parallel;
    size_t stages = 1;  // on this rank; each is a run of modules
    std::function<void(autograd::Parameter&)> alter = [](autograd::Parameter&) {};  // after parallel::apply()
    bool sequence_parallel = false;  // between the products of tensor parallelism
    int64_t pieces = 1;              // of products that communicate
    int64_t segment = 0;             // Model::run
    bool documents = false;          // two in each sequence
    bool gather_keys = false;        // along cp_ring, in place of the ring
    mesh::Axes samples = mesh::kDp;  // ranks along these see different samples
};

// All axes, in their order.
inline mesh::Mesh mesh_of(int tp_copy, int tp_part, int dp_shard, int dp_replicate, int cp = 1, int cp_ulysses = 1) {
    using mesh::Axis;
    return mesh::Mesh({{Axis::tp_copy, tp_copy},
                       {Axis::tp_part, tp_part},
                       {Axis::cp_ulysses, cp_ulysses},
                       {Axis::cp_ring, cp / cp_ulysses},
                       {Axis::dp_shard, dp_shard},
                       {Axis::dp_replicate, dp_replicate},
                       {Axis::pp, 1}});
}

class Rig {
  public:
    // `meta`: computes nothing, on a meta device that stands for this machine with one thread.
    Rig(comm::World& world, const RigOptions& options, bool meta = false)
        : rank_(world.rank()),
          samples_(options.samples),
          sequence_parallel_(options.sequence_parallel),
          segment_(options.segment),
          documents_(options.documents),
          gather_keys_(options.gather_keys),
          device_(meta ? make_meta_device({}) : make_cpu_device(1)),
          table_(meta ? kernels::meta_table(kernels::cpu_table(kernels::best_isa()))
                      : kernels::cpu_table(kernels::best_isa())),
          ctx{*device_, table_},
          groups(world, options.mesh),
          model(models::make_model(ctx, options.model, kTokens)),
          spans_(spans(options.stages)),
          data_parallel(ctx, runs(options), groups, options.data_parallel) {}

    static constexpr int64_t kTokens = 8;  // of a microbatch, one sequence

    // Microbatch number `microbatch` of this rank.
    nn::Batch batch(int64_t microbatch) {
        std::vector<int32_t> window(kTokens + 1);
        const int64_t sample = microbatch * groups.mesh().size(samples_) + groups.coordinate(samples_);
        for (size_t i = 0; i < window.size(); ++i)
            window[i] = static_cast<int32_t>(
                uniform_below(3, static_cast<uint64_t>(sample * 100) + i, static_cast<uint64_t>(model.spec().vocab)));
        const std::span<const int32_t> tokens(window);
        std::vector<int32_t> first_key(documents_ ? kTokens : 0);  // the last three tokens are a second document
        for (size_t i = kTokens - 3; i < first_key.size(); ++i) first_key[i] = kTokens - 3;
        nn::Batch batch = nn::make_batch(*device_, {tokens.first(kTokens), tokens.last(kTokens), first_key}, 1, sample,
                                         share_of(groups).part);
        batch.context = context_of(groups, gather_keys_);
        batch.grad_scale = 1.0f / 64;
        if (sequence_parallel_) {
            const comm::Communicator& tp = groups.over(mesh::kTp);
            batch.row_index = nn::rows_of(batch.row_index, tp.rank(), tp.size());
        }
        return batch;
    }

    void run(const Action& action) {
        Flight& f = flights_[{action.microbatch, action.stage}];
        const bool last = action.stage + 1 == spans_.size();
        using enum autograd::PassKind;
        if (action.kind == forward) {
            f.batch = batch(action.microbatch);
            f.tape.emplace(ctx, true, &data_parallel, nullptr, static_cast<int>(action.stage), action.microbatch);
            if (action.stage > 0)
                f.input = f.tape->input(flights_.at({action.microbatch, action.stage - 1}).output.value);
            f.output = model.run(*f.tape, f.input, f.batch, spans_[action.stage], segment_);
            if (last) losses.push_back(f.output.value);
        } else if (action.kind == backward_weight) {
            f.tape->backward_weight();
        } else {
            const Tensor seed = last ? f.output.value : std::move(f.gradient);
            if (action.kind == backward)
                f.tape->backward(f.output, seed);
            else
                f.tape->backward_input(f.output, seed);
            if (action.stage > 0)
                flights_.at({action.microbatch, action.stage - 1}).gradient = f.tape->take_gradient(f.input);
            f.input = f.output = {};
        }
        if (action.kind == backward || action.kind == backward_weight)
            flights_.erase({action.microbatch, action.stage});
    }

    // A step without an update: gradients summed over the ranks when it returns.
    void step(const std::vector<Action>& actions, int64_t microbatches) {
        data_parallel.begin_step(microbatches);
        for (const Action& action : actions) run(action);
        data_parallel.finish_gradients();
    }

    // The elements of each parameter that this rank owns, others NaN.
    std::map<std::string, std::vector<float>> owned(
        const std::function<Tensor(const optim::ParameterShard&)>& which) const {
        std::map<std::string, std::vector<float>> all;
        for (const optim::ParameterShard& piece : data_parallel.parameter_shards()) {
            const Shape& shape = piece.parameter->shape;
            auto& whole = all.try_emplace(piece.parameter->name, to_size(shape.numel()), NAN).first->second;
            if (!piece.owned) continue;
            const std::vector<float> values = which(piece).to_host<float>();
            for (const auto& held : piece.blocks())
                mesh::for_each_run(held.block, mesh::whole_block(shape), held.block,
                                   [&](int64_t to, int64_t from, int64_t n) {
                                       std::copy_n(values.begin() + held.begin + from, n, whole.begin() + to);
                                   });
        }
        return all;
    }

  private:
    struct Flight {
        nn::Batch batch;
        std::optional<autograd::Tape> tape;
        autograd::Var input, output;
        Tensor gradient;  // of the output
    };

    std::vector<models::Model::Span> spans(size_t stages) {
        const size_t n = model.modules().size();
        std::vector<models::Model::Span> all;
        for (size_t s = 0; s < stages; ++s) all.push_back({s * n / stages, (s + 1) * n / stages});
        return all;
    }
    std::vector<std::vector<autograd::Unit*>> runs(const RigOptions& options) {
        autograd::TensorParallel tp;
        if (options.mesh.size(mesh::kTp) > 1) tp = {&groups.over(mesh::kTp), options.sequence_parallel, options.pieces};
        parallel::apply(model.parameters(), options.mesh, rank_, tp);
        for (autograd::Parameter* p : model.parameters()) options.alter(*p);
        std::vector<std::vector<autograd::Unit*>> all;
        for (const auto& span : spans_) all.push_back(model.units(span));
        return all;
    }

    int rank_;
    mesh::Axes samples_;
    bool sequence_parallel_;
    int64_t segment_;
    bool documents_, gather_keys_;
    std::unique_ptr<Device> device_;
    kernels::KernelTable table_;

  public:
    ops::Context ctx;
    parallel::Groups groups;
    models::Model model;

  private:
    std::vector<models::Model::Span> spans_;

  public:
    parallel::DataParallel data_parallel;
    std::vector<Tensor> losses;  // of the forwards so far
    Allocator& memory() { return device_->memory(); }

  private:
    std::map<std::pair<int64_t, size_t>, Flight> flights_;
};

}  // namespace tutti::engine::testing
