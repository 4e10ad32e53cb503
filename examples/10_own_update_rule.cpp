// 10: an update rule of a program's own. Lion (Chen et al. 2023, algorithm 2) with one state in bf16 and arithmetic in
// f32; no line of Tutti knows of it.
//   10_own_update_rule TEXT
// The rule says what it keeps and makes its step from the pieces that a rank updates. Everything else follows: ZeRO-3,
// tensor parallelism and pipelines, rehearsed memory, checkpoints that another layout loads, and `verify`. Checks all
// of these, and the update itself against its formula in double. Writes a run to the current directory.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/comm/launcher.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/rehearsal/present.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"
#include "tutti/train/verify.h"

using namespace tutti;
using optim::Piece, optim::StateField, optim::StepNumbers;

// u = sign(b1 m + (1 - b1) g);  p -= lr (u + decay p);  m = b2 m + (1 - b2) g
class Lion final : public optim::UpdateRule {
  public:
    explicit Lion(const spec::OptimizerSpec& spec) : b1_(spec.beta1), b2_(spec.beta2) {}

    std::vector<StateField> state(const autograd::Parameter&) const override {
        return {{.name = "lion", .dtype = DType::bf16}};
    }

    // Ops alone, which run on any device, and in a rehearsal on none.
    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        const auto wide = [&](const Tensor& x) { return ops::cast(ctx, x, DType::f32, Purpose::workspace); };
        const auto lr = static_cast<float>(numbers.lr);
        for (const Piece& piece : pieces) {
            const Tensor& p = piece.shard.master;
            const Tensor g = wide(piece.gradient), m = wide(piece.state[0]), u = wide(m);
            ops::scale(ctx, g, static_cast<float>(numbers.grad_scale));
            ops::scale(ctx, u, static_cast<float>(b1_ / (1 - b1_)));  // a positive factor leaves the sign
            ops::accumulate(ctx, g, u);
            ops::scale(ctx, p, 1 - lr * static_cast<float>(piece.weight_decay));
            ops::balance(ctx, p, u, 0, lr);  // p += lr sign(0 - u)
            ops::scale(ctx, m, static_cast<float>(b2_));
            ops::scale(ctx, g, static_cast<float>(1 - b2_));
            ops::accumulate(ctx, g, m);
            ops::cast_into(ctx, m, piece.state[0]);
            optim::round_master(ctx, piece.shard);
        }
    }

  private:
    double b1_, b2_;
};

const engine::Factories kLion{
    .update_rule = [](const spec::OptimizerSpec& spec) { return std::make_unique<Lion>(spec); }};

constexpr const char* kConfig = R"(
    [model]
    preset = "llama-tiny"
    width = 64
    layers = 3
    heads = 4
    kv_heads = 2
    head_dim = 16
    ffn = 96
    [optimizer]
    lr = 1e-3
    beta1 = 0.9
    beta2 = 0.98
    schedule = "constant"
    [train]
    seq_len = 32
    global_batch = 8
    micro_batch = 1
    threads = 1
    [precision]
    compute = "f32"
)";

spec::RunSpec run_of(const std::string& text, int ranks, std::vector<std::string> set) {
    set.push_back("data.train=" + text);
    spec::RunSpec run = spec::parse_text(kConfig, "10_own_update_rule", set);
    spec::validate(run, ranks);
    return run;
}

const std::vector<std::string> kSharded = {"parallel.tp=2", "parallel.pp=2", "parallel.zero=3"};  // 8 ranks: dp 2

// The largest difference between Lion's formula in double and ten steps of the rule on a vector, in units of the rate.
// The state is bf16, so the formula rounds its own; where |u| is within rounding of 0, either sign is right.
double difference_from_formula() {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    constexpr int64_t kSize = 37;
    autograd::Parameter parameter{.name = "w", .shape = {1, kSize}, .init = {.std = 1}};
    autograd::materialize(ctx, parameter, DType::f32, 5, true);
    const spec::OptimizerSpec spec{.beta2 = 0.98, .weight_decay = 0.1};
    optim::Optimizer optimizer(ctx, optim::whole_shards({&parameter}), {spec, kLion.update_rule});
    std::vector<double> p, m(kSize);
    for (const float x : parameter.master.to_host<float>()) p.push_back(x);
    double largest = 0;
    constexpr double kLr = 0.01;
    for (int step = 1; step <= 10; ++step) {
        std::vector<float> g(kSize);
        for (size_t i = 0; i < g.size(); ++i) g[i] = normal(random_key(9, "g", static_cast<uint64_t>(step)), i);
        device->copy_in(parameter.gradient.view().data, g.data(), parameter.gradient.bytes());
        optimizer.step(kLr, 0.5);
        const std::vector<float> got = parameter.master.to_host<float>();
        for (size_t i = 0; i < g.size(); ++i) {
            const double half = 0.5 * static_cast<double>(g[i]), u = 0.9 * m[i] + (1 - 0.9) * half;
            p[i] -= kLr * ((u > 0 ? 1.0 : u < 0 ? -1.0 : 0.0) + spec.weight_decay * p[i]);
            m[i] = static_cast<double>(static_cast<float>(bf16(static_cast<float>(0.98 * m[i] + 0.02 * half))));
            if (std::abs(u) > 1e-6) largest = std::max(largest, std::abs(static_cast<double>(got[i]) - p[i]) / kLr);
        }
    }
    return largest;
}

// Memory by purpose at the peak of the first step, as every rank of the finished run counted it.
void check_as_rehearsed(const train::TrainOptions& o) {
    const Json counted = Json::parse(read_file(o.out + "/run.json")).at("ranks");
    for (int rank = 0; rank < o.ranks; ++rank) {
        const auto machine = engine::machine_of(o.run, comm::local_rank({}, rank, o.ranks), "");
        const auto rehearsed =
            rehearsal::rehearse(o.run, rehearsal::target_of(machine), o.ranks, rank, o.factories).memory.at_peak;
        check(counted[static_cast<size_t>(rank)].at("memory") == rehearsal::to_json(rehearsed), "rank ", rank,
              ": required: memory as rehearsed, ", rehearsal::to_json(rehearsed), ", counted ",
              counted[static_cast<size_t>(rank)].at("memory"));
        if (rank == 0)
            std::printf("memory of rank 0, rehearsed = counted: %lld bytes of optimizer state, of %lld\n",
                        static_cast<long long>(rehearsed[Purpose::optimizer]),
                        static_cast<long long>(rehearsed.total()));
    }
}

int main(int argc, char** argv) try {
    check<UsageError>(argc == 2, "required: a text to learn; usage: 10_own_update_rule TEXT");
    const std::string text = argv[1];
    const double off = difference_from_formula();
    std::printf("ten steps of Lion are those of its formula in double within %.1e of the rate\n", off);
    check(off < 1e-4, "required: less than 1e-4 of the rate");  // f32 roundings of weights below 4: 10 * 2^-22 / 0.01

    const auto options = [&](const std::string& out, int ranks, std::vector<std::string> set) {
        return train::TrainOptions{
            .run = run_of(text, ranks, std::move(set)), .out = out, .ranks = ranks, .factories = kLion};
    };
    const auto steps = [](std::vector<std::string> set, int n) {
        set.push_back("train.steps=" + std::to_string(n));
        return set;
    };
    for (const char* run : {"10_own_update_rule.run", "10_own_update_rule.one"}) std::filesystem::remove_all(run);
    const train::TrainOptions sharded = options("10_own_update_rule.run", 8, steps(kSharded, 6));
    const double half = train::train(sharded).loss;
    check_as_rehearsed(sharded);

    // The same run goes on under ZeRO-1 on 4 ranks; each loads its new part of the weights and of Lion's state.
    const double resumed = train::train(options("10_own_update_rule.run", 4, steps({"parallel.zero=1"}, 12))).loss;
    const double one = train::train(options("10_own_update_rule.one", 1, steps({}, 12))).loss;
    std::printf("loss after 6 steps %.6f, resumed after 12 steps %.6f; one rank %.6f\n", half, resumed, one);
    check(std::abs(resumed - one) <= 1e-4 * one, "required: the loss of one rank within 1e-4, got ", resumed);

    const train::VerifyOutcome verified =
        train::verify({.run = run_of(text, 8, steps(kSharded, 12)), .ranks = 8, .factories = kLion});
    const train::VerifiedStep worst = verified.worst();
    std::printf("verify: tp 2 x pp 2 x ZeRO-3 against one rank: gradients within %.1e, weights within %.1e\n",
                worst.gradient_difference, worst.weight_difference);
    check(verified.within(), "required: differences of rounding only, at most ", worst.bound);
} catch (const Error& error) {
    std::fprintf(stderr, "10_own_update_rule: %s\n", error.what());
    return error.exit_code();
}
