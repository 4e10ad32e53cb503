// 11: a product rule of one's own, without a line under src/: the forward multiplies by weights of eight bits.
//   11_own_product_rule TEXT
// Weights of attention and MLP are rounded to multiples of a power of two, one for each row and 32 inputs, so that the
// largest of them needs eight bits. Backward and update know nothing of it (the straight-through estimator), and
// masters stay f32. A rank's part of a matrix holds whole groups, so every layout rounds alike. The program checks
// - a product, against sums in double of weights that are rounded here in another way, and the first loss of a run,
//   against a plain run of such weights;
// - memory on every rank of tp 2 x pp 2 x ZeRO-3, rehearsed and counted, to the byte;
// - that a run under this layout, stopped and resumed under another, ends where an uninterrupted run ends;
// - that `verify` calls the layout the same run as one rank.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/units.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/nn/product_rule.h"
#include "tutti/rehearsal/present.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"
#include "tutti/train/verify.h"

using namespace tutti;
using autograd::Role, ops::GemmRole, ops::Operand;

constexpr int kRanks = 8;
constexpr int64_t kGroup = 32;  // inputs of a row with one unit
const std::vector<std::string> kLayout = {"parallel.tp=2", "parallel.pp=2", "parallel.zero=3"};
constexpr const char* kConfig = R"(
    model.preset = "llama-tiny"
    optimizer.lr = 3e-3
    optimizer.warmup_steps = 2
    [train]
    steps = 12
    seq_len = 32
    global_batch = 16
    micro_batch = 2
    threads = 1
)";

// w (N, K) rounded, in the same type: the multiples of a unit below 128 units are numbers of bf16.
class EightBitWeights final : public nn::ProductRule {
  public:
    Operand weight(ops::Context& ctx, nn::Parameter& w, const nn::Use& use) const override {
        if (use.role != GemmRole::forward) return ProductRule::weight(ctx, w, use);
        return w.forms.kept(ctx, use.role, [&] { return Operand(rounded(ctx, w.value)); });
    }

  private:
    static Tensor rounded(ops::Context& ctx, const Tensor& w) {
        Tensor y = ops::empty(ctx, w.shape(), w.dtype(), Purpose::workspace);
        const kernels::Work work = kernels::work_of_call("round_weights", w.view(), y.view());
        ops::call_own(ctx, "round_weights", work, [from = w.view(), to = y.view()](const Stream&) {
            for (int64_t i = 0; i < from.numel(); i += kGroup) round_group(from.as<bf16>() + i, to.as<bf16>() + i);
        });
        return y;
    }
    static void round_group(const bf16* from, bf16* to) {
        float largest = 0;
        for (int64_t i = 0; i < kGroup; ++i) largest = std::max(largest, std::abs(static_cast<float>(from[i])));
        int exponent = 0;
        std::frexp(largest, &exponent);  // largest < 2^exponent
        const float unit = std::ldexp(1.0f, exponent - 7);
        for (int64_t i = 0; i < kGroup; ++i)
            to[i] = bf16(std::clamp(std::nearbyint(static_cast<float>(from[i]) / unit), -127.0f, 127.0f) * unit);
    }
};

// Every matrix of attention and MLP has the rule.
void choose(models::Model& model) {
    const auto rule = std::make_shared<EightBitWeights>();
    for (nn::Parameter* p : model.parameters()) {
        const bool of_block = p->role == Role::column || p->role == Role::key_value || p->role == Role::row;
        if (!of_block || p->shape.rank() != 2) continue;
        check<UsageError>(p->part().shape[1] % kGroup == 0, p->name, ": a rank has ", p->part().shape[1],
                          " inputs; required: a multiple of ", kGroup);
        p->rule = rule;
    }
}

engine::Factories factories() {
    engine::Factories all;
    all.products = [](models::Model& model, const spec::RunSpec&, parallel::Groups&) { choose(model); };
    return all;
}

spec::RunSpec run_of(std::vector<std::string> set, const char* text, int ranks) {
    set.push_back(std::string("data.train=") + text);
    const spec::RunSpec run = spec::parse_text(kConfig, "11_own_product_rule", set);
    spec::validate(run, ranks);
    return run;
}

engine::Machine machine_of(const spec::RunSpec& run, int rank, int ranks) {
    return engine::machine_of(run, comm::local_rank({}, rank, ranks), "");
}

// The rule once more, for the checks: counts units from below, in double.
double eight_bits(const std::vector<float>& w, size_t i) {
    const size_t begin = i / kGroup * kGroup;
    double largest = 0;
    for (size_t j = begin; j < begin + kGroup; ++j) largest = std::max(largest, std::abs(double{w[j]}));
    double unit = 0x1p-60;
    while (128 * unit <= largest) unit *= 2;
    const double units = std::floor(std::abs(double{w[i]}) / unit), rest = std::abs(double{w[i]}) / unit - units;
    const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(units, 2) == 1);
    return std::copysign(std::min(units + (up ? 1 : 0), 127.0) * unit, w[i]);
}

// y = x w^T of one layer against sums in double.
void check_product() {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::bf16)};
    nn::Linear layer = nn::make_linear("layer", 128, 64, {.role = Role::column});
    autograd::materialize(ctx, layer.weight, DType::bf16, 1, true);
    layer.weight.rule = std::make_shared<EightBitWeights>();
    const Tensor w = ops::cast(ctx, layer.weight.value, DType::f32);
    const Tensor x = ops::cast(ctx, w.narrow(0, 0, 16).reshape({16, 128}), DType::bf16);  // any values
    autograd::Tape tape(ctx, true);
    const Tensor y = ops::cast(ctx, layer(tape, {x, -1}).value, DType::f32);
    const auto values = w.to_host<float>(), of_x = ops::cast(ctx, x, DType::f32).to_host<float>(),
               of_y = y.to_host<float>();
    double worst = 0, plain = 0;
    for (size_t row = 0; row < 16; ++row)
        for (size_t out = 0; out < 64; ++out) {
            double sum = 0, unrounded = 0, magnitude = 0;
            for (size_t k = 0; k < 128; ++k) {
                const double a = of_x[row * 128 + k], b = eight_bits(values, out * 128 + k);
                sum += a * b;
                unrounded += a * double{values[out * 128 + k]};
                magnitude += std::abs(a * b);
            }
            // y is rounded to bf16, its sum of 128 terms in f32.
            const double bound = 0x1p-8 * std::abs(sum) + 128 * 0x1p-24 * magnitude;
            worst = std::max(worst, std::abs(of_y[row * 64 + out] - sum) / bound);
            plain = std::max(plain, std::abs(of_y[row * 64 + out] - unrounded) / bound);
        }
    check(worst <= 1, "required: products with rounded weights within the bound, got ", worst, " times the bound");
    check(plain > 1, "required: products that differ from those of weights as they are, got ", plain);
    std::printf("a product: %.2f of the bound of its roundings; with weights as they are %.1f\n", worst, plain);
}

// The loss of the first step on one rank: with the rule, without, or without it after rounding the weights here.
enum class With { rule, nothing, rounded_weights };
double first_loss(const spec::RunSpec& run, const data::DataSet& data, With with) {
    double loss = 0;
    comm::run_ranks(1, engine::world_options(run, ""), [&](comm::World& world) {
        engine::Engine engine(run, world, machine_of(run, 0, 1), engine::training_batches(run, &data));
        if (with == With::rule) choose(engine.model);
        if (with == With::rounded_weights) {
            choose(engine.model);
            for (nn::Parameter* p : engine.model.parameters()) {
                if (!std::exchange(p->rule, nullptr)) continue;
                const std::vector<float> w = ops::cast(engine.ctx, p->value, DType::f32).to_host<float>();
                auto* values = p->value.view().as<bf16>();
                for (size_t i = 0; i < w.size(); ++i) values[i] = bf16(static_cast<float>(eight_bits(w, i)));
            }
        }
        loss = engine::train_step(engine, 1).loss;
    });
    return loss;
}

// Memory by purpose at the peak of the first step, rehearsed and counted on every rank.
void check_memory(const spec::RunSpec& run, const data::DataSet& data) {
    comm::run_ranks(kRanks, engine::world_options(run, ""), [&](comm::World& world) {
        const rehearsal::Target target = rehearsal::target_of(machine_of(run, world.rank(), kRanks));
        const auto expected = rehearsal::rehearse(run, target, kRanks, world.rank(), factories()).memory;
        engine::Engine engine(run, world, machine_of(run, world.rank(), kRanks), engine::training_batches(run, &data),
                              factories());
        engine.device->memory().reset_peaks();
        engine::train_step(engine, 1);
        const MemoryByPurpose memory = engine.device->memory().at_peak();
        check(memory == expected.at_peak, "rank ", world.rank(), ": required: memory as rehearsed, ",
              rehearsal::to_json(expected.at_peak), ", counted ", rehearsal::to_json(memory));
        engine.data_parallel->wait_for_weights();
        if (world.rank() == 0)
            std::printf("%d ranks, rehearsed = counted: rank 0 %s at the peak\n", kRanks,
                        format_bytes(memory.total()).c_str());
    });
}

// Trains for `steps` steps more, or to the end of the run.
train::TrainOutcome train_for(int64_t steps, const std::string& directory, const spec::RunSpec& run, int ranks) {
    std::atomic<int64_t> calls = 0;  // of all ranks: each asks after every step
    return train::train({.run = run, .out = directory, .ranks = ranks, .factories = factories(), .stop_requested = [&] {
                             return ++calls > (steps - 1) * ranks;
                         }});
}

int main(int argc, char** argv) try {
    check<UsageError>(argc == 2, "required: a text to learn; usage: 11_own_product_rule TEXT");
    check_product();

    const spec::RunSpec one = run_of({}, argv[1], 1), many = run_of(kLayout, argv[1], kRanks);
    const data::DataSet data = data::open(one.data, one.model.vocab, one.train.seq_len);
    const double loss = first_loss(one, data, With::rule), rounded = first_loss(one, data, With::rounded_weights),
                 plain = first_loss(one, data, With::nothing);
    check(loss == rounded && loss != plain, "required: the first loss of rounded weights, ", rounded, ", not ", plain,
          ", got ", loss);
    std::printf("the first loss: %.6f, as with weights rounded before; with weights as they are %.6f\n", loss, plain);

    check_memory(many, data);

    const std::string whole = "11_run_whole", parts = "11_run_in_parts";
    for (const std::string& directory : {whole, parts}) std::filesystem::remove_all(directory);
    const int64_t steps = many.train.steps;
    const double uninterrupted = train_for(steps, whole, many, kRanks).loss;
    train_for(steps / 2, parts, many, kRanks);
    const spec::RunSpec other = run_of({"parallel.zero=1", "recompute.policy=selective"}, argv[1], 4);
    const double resumed = train_for(steps, parts, other, 4).loss;
    // The last steps sum in another order, in bf16.
    check(std::abs(resumed - uninterrupted) <= 5e-3 * uninterrupted && uninterrupted < 0.9 * loss,
          "required: a loss of ", uninterrupted, " after resuming, below ", loss, ", got ", resumed);
    std::printf("trained to %.4f; stopped at step %lld and resumed on 4 ranks: %.4f\n", uninterrupted,
                static_cast<long long>(steps / 2), resumed);

    // Updates are small: AdamW makes a whole step even of a gradient that is noise.
    std::vector<std::string> slow = kLayout;
    slow.insert(slow.end(), {"optimizer.lr=3e-4", "optimizer.warmup_steps=20"});
    const train::VerifyOutcome verified =
        train::verify({.run = run_of(slow, argv[1], kRanks), .ranks = kRanks, .factories = factories()});
    const train::VerifiedStep worst = verified.worst();
    check(verified.within(), "required: the run of one rank, got a loss that differs by ", worst.loss_difference,
          ", a gradient by ", worst.gradient_difference, " and a weight by ", worst.weight_difference);
    std::printf("verify: the same run as one rank; losses within %.1e, gradients %.1e, weights %.1e\n",
                worst.loss_difference, worst.gradient_difference, worst.weight_difference);
} catch (const Error& error) {
    std::fprintf(stderr, "11_own_product_rule: %s\n", error.what());
    return error.exit_code();
}
