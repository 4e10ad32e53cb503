#include "tutti/train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <type_traits>

#include "tutti/comm/run.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/algorithms.h"
#include "tutti/engine/step.h"
#include "tutti/kernels/backends.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/start_checks.h"

namespace tutti::train {

namespace {

using autograd::Parameter;

// One parameter's values from the pieces of all ranks, whichever of them hold any. The bits are added as integers,
// zeros elsewhere: nothing is rounded. Collective over the ranks of the engine.
template <class Which>
std::vector<float> whole(engine::Engine& engine, const Parameter& parameter, Which which) {
    const int64_t size = parameter.shape.numel();
    std::vector<int32_t> bits(static_cast<size_t>(size));
    for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards()) {
        if (!piece.owned || piece.parameter->name != parameter.name) continue;
        const std::vector<float> values = std::invoke(which, piece).to_floats();
        for (const auto& [block, begin] : piece.blocks())
            mesh::for_each_run(
                block, mesh::whole_block(parameter.shape), block, [&](int64_t to, int64_t from, int64_t n) {
                    std::memcpy(bits.data() + to, values.data() + begin + from, static_cast<size_t>(n) * sizeof(float));
                });
    }
    const Tensor sum = Tensor::from_host<int32_t>(*engine.device, {size}, bits, Purpose::communication);
    engine.groups.world().all_reduce(sum).wait();
    std::vector<float> values(static_cast<size_t>(size));
    engine.device->copy_out(values.data(), sum.view().data, sum.bytes());
    return values;
}

struct Difference {
    bool equal = true;
    double relative = 0;
};

// Elements to leave out of a comparison.
using Mask = std::vector<bool>;

// `mask` may be empty: none is left out.
Difference difference(const std::vector<float>& a, const std::vector<float>& b, const Mask& mask) {
    double square = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!mask.empty() && mask[i]) continue;
        square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        size += std::pow(static_cast<double>(b[i]), 2);
    }
    Difference d{.equal = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0};
    if (square > 0) d.relative = size > 0 ? std::sqrt(square / size) : 1;
    return d;
}

// Adds the elements whose gradients, of both layouts, are zero within rounding and not equal.
void add_noise(const std::vector<float>& a, const std::vector<float>& b, Mask& mask) {
    constexpr float kOfLargest = 0x1p-22f;  // four roundings of a sum in f32
    float largest = 0;
    for (const float g : b) largest = std::max(largest, std::abs(g));
    mask.resize(a.size());
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] && std::max(std::abs(a[i]), std::abs(b[i])) < kOfLargest * largest) mask[i] = true;
}

// `one` is on rank 0 only.
void compare(engine::Engine& many, engine::Engine* one, int64_t steps, Console& console, VerifyOutcome& outcome) {
    std::map<std::string, Mask> noise;  // by parameter, of all steps so far
    for (int64_t step = 1; step <= steps; ++step) {
        const engine::StepResult result = engine::train_step(many, step);
        const engine::StepResult alone = one ? engine::train_step(*one, step) : result;
        for (const engine::StepResult* r : {&result, &alone})
            check(!r->skipped, "step ", step, r == &alone ? " on one rank" : "", " is not finite, first in ",
                  r->culprit, ": there is nothing to compare; try a lower optimizer.lr");
        many.data_parallel->wait_for_weights();
        VerifiedStep v{
            .step = step, .bound = verify_bound(many.run, step), .loss = result.loss, .one_rank_loss = alone.loss};
        v.loss_difference = std::abs(result.loss - alone.loss) / std::abs(alone.loss);
        outcome.equal = outcome.equal && result.loss == alone.loss;
        const auto see = [&](const Parameter& p, auto which, double& largest, std::string& name) {
            const std::vector<float> ours = whole(many, p, which);
            if (!one) return;
            const std::vector<float> theirs = whole(*one, one->model.parameter(p.name), which);
            const bool weights = std::is_same_v<decltype(which), Tensor optim::ParameterShard::*>;
            Mask& mask = noise[p.name];
            if (!weights) add_noise(ours, theirs, mask);
            const Difference d = difference(ours, theirs, weights ? mask : Mask());
            if (weights) v.left_out += std::count(mask.begin(), mask.end(), true);
            outcome.equal = outcome.equal && d.equal;
            if (d.relative > largest || name.empty()) name = p.name;
            largest = std::max(largest, d.relative);
        };
        for (const Parameter* p : many.model.parameters()) {
            if (!p->frozen()) see(*p, &optim::ParameterShard::gradient, v.gradient_difference, v.gradient);
            see(*p, &optim::ParameterShard::master, v.weight_difference, v.weight);
        }
        console.text(fmt::format(
            "step {}: loss {:.6g}, on one rank {:.6g}; largest differences: loss {:.2g}, gradient {:.2g} ({}), weight "
            "{:.2g} ({}){}",
            step, v.loss, v.one_rank_loss, v.loss_difference, v.gradient_difference, v.gradient, v.weight_difference,
            v.weight,
            v.left_out > 0 ? fmt::format("; {} weights with gradients of rounding alone are left out", v.left_out)
                           : ""));
        outcome.steps.push_back(v);
    }
}

}  // namespace

VerifiedStep VerifyOutcome::worst() const {
    VerifiedStep w;
    for (const VerifiedStep& s : steps) {
        w.bound = std::max(w.bound, s.bound);
        w.loss_difference = std::max(w.loss_difference, s.loss_difference);
        if (s.gradient_difference >= w.gradient_difference) w.gradient = s.gradient;
        if (s.weight_difference >= w.weight_difference) w.weight = s.weight;
        w.gradient_difference = std::max(w.gradient_difference, s.gradient_difference);
        w.weight_difference = std::max(w.weight_difference, s.weight_difference);
    }
    return w;
}

bool VerifiedStep::within() const {
    return std::max({loss_difference, gradient_difference, weight_difference}) <= bound;
}

bool VerifyOutcome::within() const {
    return std::all_of(steps.begin(), steps.end(), [](const VerifiedStep& s) { return s.within(); });
}

double verify_bound(const spec::RunSpec& run, int64_t step) {
    if (run.precision.gradients != "f32" || run.precision.reduce == "bf16") {
        spec::RunSpec wide = run;
        wide.precision.gradients = wide.precision.reduce = "f32";
        const double contributions =
            static_cast<double>(run.train.global_batch) / static_cast<double>(run.train.micro_batch);
        return verify_bound(wide, step) + 0x1p-9 * std::sqrt(contributions + 4);
    }
    const ComputeType compute_type = spec::compute_type_of(run);
    const bool sums_in_blocks = run.parallel.tp > 1 || run.parallel.cp > 1;
    if ((step == 1 && !sums_in_blocks) || compute_type == ComputeType::f32) return 1e-5;
    return std::sqrt(20.0 * static_cast<double>(run.model.layers)) *
           (compute_type == ComputeType::tf32 ? 0x1p-12 : 0x1p-9);
}

std::string reason_beyond_bound(const spec::RunSpec& run) {
    const spec::MixtureSpec& moe = run.model.moe;
    if (moe.experts <= moe.top_k || spec::compute_type_of(run) == ComputeType::f32) return "";
    return concat(
        "in ", run.precision.compute,
        " rounding may send a token to another expert where scores nearly tie, which is more than this bound; "
        "--set precision.compute=f32 shows whether the layout is right");
}

spec::RunSpec one_rank_of(const spec::RunSpec& run) {
    spec::RunSpec one = run;
    one.parallel = {.dp_replicate = 1, .dp_shard = 1, .zero = 0};
    one.recompute = {};
    one.offload = {};
    return one;
}

VerifyOutcome verify(const VerifyOptions& options) {
    check<UsageError>(
        !engine::is_asynchronous(options.run),
        "[parallel] schedule = \"pipedream\": asynchronous updates are not those of one rank, so there is ",
        "nothing to compare; set another schedule");
    check<UsageError>(
        options.run.model.moe.aux_loss != "global",
        "[model] moe.aux_loss = \"global\": the loads of a step so far are those of the microbatches that ",
        "pass at once, and one rank has them one by one, so there is nothing to compare; set microbatch");
    check_device(options.run.train.device);
    Console console(options.launch.rank == 0 ? options.console : nullptr, options.terminal, 0);
    const auto data = open_data(options.run, console, false);
    const engine::MakeBatches batches = engine::training_batches(options.run, data ? &*data : nullptr);
    spec::RunSpec alone = one_rank_of(options.run);
    VerifyOutcome outcome;
    comm::run(options.launch, options.ranks, engine::world_options(options.run, ""), [&](comm::World& world) {
        const LocalRank local = comm::local_rank(options.launch, world);
        const std::string offload_dir = std::filesystem::temp_directory_path().string();
        auto machine = engine::machine_of(options.run, local, offload_dir);
        const rehearsal::Target target = rehearsal::target_of(machine);
        const auto rehearsed = rehearsal::rehearse(options.run, target, world.size(), world.rank(), options.factories);
        std::vector<MemoryNeed> needs = needs_of(rehearsed.memory, *machine.device);
        if (world.rank() == 0)
            for (const MemoryNeed& need :
                 needs_of(rehearsal::rehearse(alone, target, 1, 0, options.factories).memory, *machine.device))
                needs.push_back(need);
        check_memory(*world.everyone("memory"), needs, options.force, [&](const std::string& message) {
            if (world.rank() == 0) console.warn(message);
        });
        engine::Engine many(options.run, world, std::move(machine), batches, options.factories);
        if (world.rank() != 0) {
            VerifyOutcome nothing;
            Console quiet(nullptr, false, 0);
            compare(many, nullptr, options.steps, quiet, nothing);
            const bool differs = world.everyone("verdict")->max(0) > 0;
            if (options.launch.size > 1) outcome.differs = differs;
            return;
        }
        alone.train.threads = many.device->stream().threads;  // other threads, other sums
        comm::run_ranks(1, {}, [&](comm::World& one_rank) {
            engine::Engine one(alone, one_rank, engine::machine_of(alone, {}, offload_dir), batches, options.factories);
            compare(many, &one, options.steps, console, outcome);
        });
        outcome.differs = !outcome.within();
        world.everyone("verdict")->max(outcome.differs ? 1 : 0);
    });
    return outcome;
}

}  // namespace tutti::train
