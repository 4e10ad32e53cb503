#include "tutti/train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/run.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/algorithms.h"
#include "tutti/engine/step.h"
#include "tutti/kernels/backends.h"
#include "tutti/ops/ops.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/spec/learning_rate.h"
#include "tutti/spec/recipe.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/start_checks.h"
#include "tutti/train/trainer.h"

namespace tutti::train {

namespace {

using autograd::Parameter;

// What a model makes of rounding is measured by so many samples, of which the largest counts; by more where a layout is
// less than twice as far, since of n samples of one distribution the next one is the largest with 1 in n + 1. A bound
// above kMostMagnified would hide a sum that one of two ranks leaves out, which differs by a third at least.
constexpr int kSamples = 8, kSamplesWhenNear = 40;
constexpr double kMostMagnified = 0.25;

// A relative rounding error of bf16, or of f16 and TF32, which have three more bits.
double rounding_of(const spec::RunSpec& run) {
    return spec::compute_type_of(run) == ComputeType::bf16 ? 0x1p-9 : 0x1p-12;
}

bool rounds_gradients(const spec::RunSpec& run) {
    return run.precision.gradients != "f32" || run.precision.reduce == "bf16";
}

// Tensor, context and expert parallelism add inside a block; under all others a block computes the bits of one rank.
bool sums_in_blocks(const spec::ParallelSpec& p) { return p.tp > 1 || p.cp > 1 || p.ep > 1 || p.etp > 1; }

// One parameter's values from the pieces of this rank, zeros elsewhere. `which` of a piece's tensors.
template <class Which>
void copy_pieces(engine::Engine& engine, const Parameter& parameter, Which which, float* to) {
    for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards()) {
        if (!piece.owned || piece.parameter->name != parameter.name) continue;
        const std::vector<float> values = std::invoke(which, piece).to_floats();
        for (const auto& [block, begin] : piece.blocks())
            mesh::for_each_run(block, mesh::whole_block(parameter.shape), block,
                               [&](int64_t into, int64_t from, int64_t n) {
                                   std::copy_n(values.begin() + begin + from, n, to + into);
                               });
    }
}

// visit(parameter, values) for each of these parameters in turn, its values from the pieces of all ranks, whichever of
// them hold any. Small parameters are summed together, which takes one message. The bits are added as integers: nothing
// is rounded. Collective over the ranks of the engine.
template <class Which, class Visit>
void for_whole(engine::Engine& engine, std::span<Parameter* const> parameters, Which which, Visit visit) {
    constexpr int64_t kTogether = 1 << 20;  // values
    while (!parameters.empty()) {
        size_t count = 0;
        int64_t size = 0;
        while (count < parameters.size() && (count == 0 || size + parameters[count]->shape.numel() <= kTogether))
            size += parameters[count++]->shape.numel();
        std::vector<float> values(to_size(size));
        float* next = values.data();
        for (const Parameter* p : parameters.first(count)) {
            copy_pieces(engine, *p, which, next);
            next += p->shape.numel();
        }
        const std::span bits(reinterpret_cast<const int32_t*>(values.data()), values.size());
        const Tensor sum = Tensor::from_host<int32_t>(*engine.device, {size}, bits, Purpose::communication);
        engine.groups.world().all_reduce(sum).wait();
        engine.device->copy_out(values.data(), sum.view().data, sum.bytes());
        const float* from = values.data();
        for (const Parameter* p : parameters.first(count)) {
            visit(*p, std::vector<float>(from, from + p->shape.numel()));
            from += p->shape.numel();
        }
        parameters = parameters.subspan(count);
    }
}

void set_values(engine::Engine& engine, const Tensor& x, const std::vector<float>& values) {
    ops::cast_into(engine.ctx, Tensor::from_host<float>(*engine.device, x.shape(), values, Purpose::workspace), x);
}

// The reverse of for_whole(): sets the gradient of an engine of one rank.
void set_gradient(engine::Engine& engine, const std::string& name, const std::vector<float>& values) {
    for (const optim::ParameterShard& piece : engine.optimizer.parameter_shards()) {
        if (piece.parameter->name != name) continue;
        const Tensor gradient = piece.gradient();
        std::vector<float> part = gradient.to_floats();
        for (const auto& [block, begin] : piece.blocks())
            mesh::for_each_run(
                block, mesh::whole_block(piece.parameter->shape), block, [&](int64_t from, int64_t to, int64_t n) {
                    std::memcpy(part.data() + begin + to, values.data() + from, to_size(n) * sizeof(float));
                });
        set_values(engine, gradient, part);
    }
}

// Root mean squares of a tensor on one rank, and of the difference from it.
struct Difference {
    bool equal = true;
    double size = 0, difference = 0;
};

Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
    double square = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        size += std::pow(static_cast<double>(b[i]), 2);
    }
    const auto n = static_cast<double>(std::max<size_t>(a.size(), 1));
    return {std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0, std::sqrt(size / n), std::sqrt(square / n)};
}

double relative(double difference, double scale) { return difference == 0 ? 0 : scale > 0 ? difference / scale : 1; }

// Keeps the largest difference, of which NaN is one, and where it was.
void keep_largest(double found, const std::string& where, double& largest, std::string& name) {
    if (!name.empty() && found <= largest) return;
    largest = found;
    name = where;
}

using Gradients = std::map<std::string, std::vector<float>>;  // by the name of the parameter

// The gradients that the engine has summed. Collective over its ranks.
Gradients gradients_of(engine::Engine& engine) {
    Gradients all;
    std::vector<Parameter*> trained;
    std::ranges::copy_if(engine.model.parameters(), std::back_inserter(trained),
                         [](const Parameter* p) { return !p->frozen(); });
    for_whole(engine, trained, &optim::ParameterShard::gradient,
              [&](const Parameter& p, std::vector<float> values) { all[p.name] = std::move(values); });
    return all;
}

// The largest difference of two layouts' gradients, relative as VerifiedStep says, and its parameter.
std::pair<double, std::string> largest_difference(const models::Model& model, const Gradients& ours,
                                                  const Gradients& theirs, bool& equal) {
    std::pair<double, std::string> largest{0, ""};
    for (const auto& module : model.modules()) {
        double scales[] = {0, 0};  // of vectors, of matrices
        std::vector<std::pair<const Parameter*, Difference>> all;
        for (const Parameter* p : module->unit.parameters) {
            if (p->frozen()) continue;
            all.emplace_back(p, difference(ours.at(p->name), theirs.at(p->name)));
            double& scale = scales[p->shape.rank() > 1 ? 1 : 0];
            if (p->training == autograd::Training::updated) scale = std::max(scale, all.back().second.size);
        }
        for (const auto& [p, d] : all) {
            equal = equal && d.equal;
            const double scale = std::max(d.size, scales[p->shape.rank() > 1 ? 1 : 0]);
            keep_largest(relative(d.difference, scale), p->name, largest.first, largest.second);
        }
    }
    return largest;
}

// By how much a weight is moved, so that the results of its products move as far as two layouts' may differ. In f32 the
// K terms of a sum are added in another order, which differs by about sqrt(K) roundings of 2^-24. Below, a rank rounds
// its part of a sum to the compute type: one unit in the last place moves the values of that type to their neighbours,
// also those that have no masters.
double step_of_weights(const spec::RunSpec& run) {
    const spec::ModelSpec& m = run.model;
    if (spec::recipe_of(run.precision)) return 0x1p-8;  // as bf16: codes of f32 are coarser
    if (spec::compute_type_of(run) == ComputeType::f32)
        return 0x1p-24 * std::sqrt(static_cast<double>(std::max({m.width, m.ffn, m.heads * m.head_dim})));
    return 2 * rounding_of(run);
}

RandomKey key_of_sample(const engine::Engine& engine, int64_t step, int sample) {
    return random_key(static_cast<uint64_t>(engine.run.train.seed), concat("verify.", sample),
                      static_cast<uint64_t>(step));
}

// Passes of a step without its update, with S times `factor` as the loss scale S: with another one every value of the
// backward rounds otherwise. The gradients are those of S. Collective over the ranks of the engine.
Gradients gradients_at(engine::Engine& engine, int64_t step, double factor, engine::StepResult& result) {
    engine::StepTrace trace(nullptr, *engine.device, false, *engine.data_parallel);
    const double scale = std::exchange(engine.loss_scale.value, engine.loss_scale.value * factor);
    engine::add_gradients(engine, step, trace);
    engine::measure(engine, step, trace, result);
    Gradients gradients = gradients_of(engine);
    if (factor != 1)
        for (auto& [name, values] : gradients)
            for (float& g : values) g = static_cast<float>(static_cast<double>(g) * scale / engine.loss_scale.value);
    engine.loss_scale.value = scale;
    return gradients;
}

// Between S / 2 and S.
double factor_of_scale(float uniform) { return 1 - 0.5 * static_cast<double>(uniform); }

// How far the gradients of a layout move by their own rounding, with other loss scales: ranks round parts of a sum
// before they add them, and where the parts nearly cancel, that is much of the sum, and no sample of one rank shows it.
// 0 where the gradients are within `bound` of one rank's. `one` and `theirs` are of rank 0. Collective.
double rounding_of_parts(engine::Engine& many, const engine::Engine* one, const Gradients& theirs, int64_t step,
                         double bound) {
    engine::StepResult result;
    bool equal = true;
    const Gradients ours = gradients_at(many, step, 1, result);
    const bool beyond = one && !(largest_difference(one->model, ours, theirs, equal).first <= bound);
    if (many.groups.world().max(beyond ? 1 : 0) == 0) return 0;
    double most = 0;
    for (int sample = 0; sample < kSamples; ++sample) {
        const float u = uniform(key_of_sample(many, step, sample), 0);
        const Gradients moved = gradients_at(many, step, factor_of_scale(u), result);
        if (one) most = std::max(most, largest_difference(one->model, moved, ours, equal).first);
    }
    return most;
}

// How far loss and gradients of a step on one rank move when each weight is moved, up or down at random, and the loss
// scale is another one: a model may magnify rounding by itself, or send a token to another expert; gradients may be
// rounded in each sum, or be subnormal. Leaves weights and loss scale as they were.
double magnified_rounding(engine::Engine& one, int64_t step, int sample, const VerifiedStep& v,
                          const Gradients& theirs) {
    const double rounding = step_of_weights(one.run);
    const RandomKey key = key_of_sample(one, step, sample);
    std::vector<std::vector<float>> before;
    uint64_t next = 0;
    const auto set_weights = [&](const std::function<std::vector<float>(size_t, const Tensor&)>& values_of) {
        one.data_parallel->load_masters([&] {
            size_t i = 0;
            for (const optim::ParameterShard& p : one.optimizer.parameter_shards()) {
                set_values(one, p.master, values_of(i++, p.master));
            }
        });
    };
    set_weights([&](size_t, const Tensor& master) {
        before.push_back(master.to_floats());
        std::vector<float> values = before.back();
        for (float& w : values)
            w = static_cast<float>(static_cast<double>(w) * (1 + (uniform(key, next++) < 0.5f ? rounding : -rounding)));
        return values;
    });
    engine::StepResult moved;
    const Gradients gradients = gradients_at(one, step, factor_of_scale(uniform(key, next++)), moved);
    set_weights([&](size_t i, const Tensor&) { return before[i]; });
    bool equal = true;
    return std::max(largest_difference(one.model, gradients, theirs, equal).first,
                    relative(std::abs(moved.loss - v.one_rank_loss), std::abs(v.one_rank_loss)));
}

// What both runs learnt of the magnitudes of a step differs by its rounding: one rank takes over the layout's scales.
void take_over_scales(const engine::Engine& many, engine::Engine& one) {
    if (!one.scales) return;
    const auto from = many.scales->state(), to = one.scales->state();
    for (size_t i = 0; i < from.size(); ++i)  // both on the host
        std::memcpy(to[i].values.view().data, from[i].values.view().data, to_size(to[i].values.bytes()));
}

void compare_weights(engine::Engine& many, engine::Engine* one, double lr, VerifiedStep& v, bool& equal) {
    const auto master = &optim::ParameterShard::master;
    for_whole(many, many.model.parameters(), master, [&](const Parameter& p, const std::vector<float>& ours) {
        if (!one) return;
        std::vector<float> theirs(ours.size());
        copy_pieces(*one, one->model.parameter(p.name), master, theirs.data());
        const Difference d = difference(ours, theirs);
        equal = equal && d.equal;
        keep_largest(relative(d.difference, std::max(d.size, lr)), p.name, v.weight_difference, v.weight);
    });
}

void check_finite(const engine::StepResult& result, int64_t step, const char* where) {
    check(!result.skipped || result.overflowed, "step ", step, where, " is not finite, first in ", result.culprit,
          ": there is nothing to compare; try a lower optimizer.lr");
}

// `one` is on rank 0 only.
void compare(engine::Engine& many, engine::Engine* one, int64_t steps, Console& console, VerifyOutcome& outcome) {
    int64_t compared = 0;
    const int64_t before = many.run.place.first - 1;  // steps before the stage
    const bool adds = sums_in_blocks(many.run.parallel), rounds = rounds_gradients(many.run);
    for (int64_t step = before + 1; step <= before + steps; ++step) {
        engine::StepResult alone{.lr = spec::learning_rate(many.run, step)};
        const Gradients theirs = one ? gradients_at(*one, step, 1, alone) : Gradients{};
        const double own = adds && rounds ? rounding_of_parts(many, one, theirs, step, verify_bound(many.run)) : 0;
        const engine::StepResult result = engine::train_step(many, step);
        check_finite(result, step, "");
        many.data_parallel->wait_for_weights();
        VerifiedStep v{
            .step = step, .bound = verify_bound(many.run), .weight_bound = update_bound(many.run), .loss = result.loss};
        const Gradients gradients = gradients_of(many);
        if (one) {
            v.one_rank_loss = alone.loss;
            const bool no_loss = std::isnan(v.loss) && std::isnan(v.one_rank_loss);  // a step without targets
            v.loss_difference = no_loss ? 0 : relative(std::abs(v.loss - v.one_rank_loss), std::abs(v.one_rank_loss));
            outcome.equal = outcome.equal && (no_loss || v.loss == v.one_rank_loss);
            if (!result.overflowed)
                std::tie(v.gradient_difference, v.gradient) =
                    largest_difference(one->model, gradients, theirs, outcome.equal);
            const auto allow = [&v](double moved) {
                v.rounding = std::max(v.rounding, moved);
                v.bound = std::max(v.bound, std::min(v.rounding, kMostMagnified));
            };
            const auto samples = [&] {
                const bool near = std::max(v.loss_difference, v.gradient_difference) < 2 * v.rounding;
                return !(adds || rounds) || v.within() || v.undecided() ? 0 : near ? kSamplesWhenNear : kSamples;
            };
            if (!v.within()) allow(own);
            for (int sample = 0; sample < samples(); ++sample) allow(magnified_rounding(*one, step, sample, v, theirs));
            for (const auto& [name, values] : gradients) set_gradient(*one, name, values);
            alone.grad_norm = engine::gradient_norm(*one);
            if (engine::may_update(*one, alone)) {
                engine::StepTrace trace(nullptr, *one->device, false, *one->data_parallel);
                engine::update(*one, trace, alone);
                take_over_scales(many, *one);
                one->data_parallel->all_gather_weights();
            }
            check_finite(alone, step, " on one rank");
        }
        compare_weights(many, one, result.lr, v, outcome.equal);
        console.text(
            fmt::format("step {}: loss {:.6g}, on one rank {:.6g}; largest differences: loss {:.2g},\n"
                        "        gradient {:.2g} in {},\n        weight {:.2g} in {}",
                        step, v.loss, v.one_rank_loss, v.loss_difference, v.gradient_difference, v.gradient,
                        v.weight_difference, v.weight));
        if (result.overflowed)
            console.text(
                fmt::format("step {}: {} overflows at loss scale {:g}: no gradient is compared, no weight updated",
                            step, result.culprit, result.loss_scale));
        compared += result.overflowed ? 0 : 1;
        outcome.steps.push_back(v);
    }
    check(compared > 0 || steps == 0, "gradients overflowed in all ", steps,
          " steps: there is nothing to compare; give more --steps, or a lower precision.loss_scale_initial");
}

}  // namespace

VerifiedStep VerifyOutcome::worst() const {
    VerifiedStep w;
    for (const VerifiedStep& s : steps) {
        w.bound = std::max(w.bound, s.bound);
        w.rounding = std::max(w.rounding, s.rounding);
        w.weight_bound = std::max(w.weight_bound, s.weight_bound);
        w.loss_difference = std::max(w.loss_difference, s.loss_difference);
        if (s.gradient_difference >= w.gradient_difference) w.gradient = s.gradient;
        if (s.weight_difference >= w.weight_difference) w.weight = s.weight;
        w.gradient_difference = std::max(w.gradient_difference, s.gradient_difference);
        w.weight_difference = std::max(w.weight_difference, s.weight_difference);
    }
    return w;
}

bool VerifiedStep::within() const {
    return loss_difference <= bound && gradient_difference <= bound && weight_difference <= weight_bound;
}

bool VerifiedStep::undecided() const {
    return !within() && loss_difference <= rounding && gradient_difference <= rounding &&
           weight_difference <= weight_bound;
}

bool VerifyOutcome::within() const {
    return std::all_of(steps.begin(), steps.end(), [](const VerifiedStep& s) { return s.within(); });
}

bool VerifyOutcome::undecided() const {
    return !within() &&
           std::all_of(steps.begin(), steps.end(), [](const VerifiedStep& s) { return s.within() || s.undecided(); });
}

double verify_bound(const spec::RunSpec& run) {
    if (rounds_gradients(run)) {
        spec::RunSpec wide = run;
        wide.precision.gradients = wide.precision.reduce = "f32";
        const double contributions =
            static_cast<double>(run.train.global_batch) / static_cast<double>(run.train.micro_batch);
        return verify_bound(wide) + 0x1p-7 * std::sqrt((contributions + 4) / 6);
    }
    // A value that rounding moves over the border of a code moves by 6 %, which is 4 times as much in root mean squares
    // as the roundings of bf16 that moved it.
    if (spec::recipe_of(run.precision)) {
        spec::RunSpec plain = run;
        plain.precision.recipe = "none";
        plain.precision.compute = "bf16";
        const double bound = verify_bound(plain);
        return bound > 1e-5 ? 5 * bound : bound;
    }
    const ComputeType compute_type = spec::compute_type_of(run);
    if (!sums_in_blocks(run.parallel) || compute_type == ComputeType::f32) return 1e-5;
    return std::sqrt(20.0 * static_cast<double>(run.model.layers)) * rounding_of(run);
}

double update_bound(const spec::RunSpec& run) { return rounds_gradients(run) ? verify_bound(run) : 1e-6; }

std::string reason_beyond_bound(const spec::RunSpec& run, const VerifyOutcome& outcome) {
    if (outcome.undecided())
        return fmt::format(
            "rounding alone moves loss or gradients of this run by {:.2g} on one rank, and a sum that a rank leaves "
            "out need not move them further; {}",
            outcome.worst().rounding,
            spec::compute_type_of(run) == ComputeType::f32 && !spec::recipe_of(run.precision)
                ? "try smaller weights, such as a lower model.init_std"
                : "--set precision.compute=f32 --set precision.recipe=none shows whether the layout is right");
    if (spec::recipe_of(run.precision) && run.precision.scale_over == "rank")
        return "[precision] scale_over = \"rank\" takes the scales of a rank's parts, so that the layout changes them; "
               "set scale_over = \"tensor\"";
    if (spec::recipe_of(run.precision) && run.parallel.tp > run.model.kv_heads)
        return concat("[parallel] tp = ", run.parallel.tp, " is more than [model] kv_heads = ", run.model.kv_heads,
                      ": ranks that share a head quantize their parts of its gradient, so that the layout changes the "
                      "codes; set tp = ",
                      run.model.kv_heads);
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
    one.precision.gather = "none";
    if (run.parallel.zero == 3) one.train.packed_weights = "never";  // as there: another product, other roundings
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
    Console console(options.launch.rank == 0 ? options.console : nullptr, options.terminal, 0);
    std::optional<data::DataSet> data;
    comm::before_ranks_meet(options.launch, engine::world_options(options.run, ""), [&] {
        check_device(options.run.train.device);
        data = open_data(options.run, console, false);
    });
    const engine::MakeBatches batches = engine::training_batches(options.run, data ? &*data : nullptr);
    spec::RunSpec alone = one_rank_of(options.run);
    VerifyOutcome outcome;
    comm::run(options.launch, options.ranks, engine::world_options(options.run, ""), [&](comm::World& world) {
        const LocalRank local = comm::local_rank(options.launch, world);
        const std::string offload_dir = std::filesystem::temp_directory_path().string();
        auto machine = engine::machine_of(options.run, local, offload_dir);
        if (!options.force)
            check_least_memory(*world.everyone("least memory"), options.run, options.factories, *machine.device);
        rehearsal::Target target = rehearsal::target_of(machine);
        target.through_host = !engine::communicates_on_devices(options.run, world, *machine.device);
        const auto rehearsed = rehearsal::rehearse(options.run, target, world.size(), world.rank(), options.factories);
        std::vector<MemoryNeed> needs = needs_of(rehearsed.memory, *machine.device);
        rehearsal::MemoryPlan of_one;
        if (world.rank() == 0) {
            of_one = rehearsal::rehearse(alone, target, 1, 0, options.factories).memory;
            std::ranges::copy(needs_of(of_one, *machine.device), std::back_inserter(needs));
        }
        check_memory(*world.everyone("memory"), needs, options.force, [&](const std::string& message) {
            if (world.rank() == 0) console.warn(message);
        });
        machine.device->memory().open_arena(rehearsed.memory.arena);
        engine::Engine many(options.run, world, std::move(machine), batches, options.factories);
        if (!options.run.model.hf.empty()) load_stored_weights(many);
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
            auto machine_of_one = engine::machine_of(alone, {}, offload_dir);
            machine_of_one.device->memory().open_arena(of_one.arena);
            engine::Engine one(alone, one_rank, std::move(machine_of_one), batches, options.factories);
            if (!alone.model.hf.empty()) load_stored_weights(one);
            compare(many, &one, options.steps, console, outcome);
        });
        outcome.differs = !outcome.within();
        world.everyone("verdict")->max(outcome.differs ? 1 : 0);
    });
    return outcome;
}

}  // namespace tutti::train
