// 05: ZeRO by hand (Rajbhandari et al. 2020). Every rank has different samples; the ranks shard the state of AdamW.
//   05_zero_by_hand
// In f32 a value has 16 bytes of state: 4 weight, 4 gradient, 8 moments. Stage 1 shards the moments, stage 2 the
// gradients too, stage 3 the weights too. Every stage must end with the bits of stage 0, stage 0 with those of one rank
// that adds the ranks' gradients in the same order, and that one near an AdamW in double. Prints the bytes that a rank
// holds between two steps, which must be those of the formula, and the bytes that it sends in a step.
//
// The model is as small as its gradient is simple: rank r has a target t_r, and its loss is |w - t_r|^2 / (2 n).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"

using namespace tutti;

constexpr int64_t kValues = 1 << 16;
constexpr int kRanks = 4, kSteps = 10;
constexpr double kRate = 1e-2;

float target(int rank, int64_t i) { return normal(random_key(1234, "target", rank), static_cast<uint64_t>(i)); }

// gradient (n) = (w - t_r) / ranks, of weights (n)
void gradient_of_rank(const Tensor& gradient, const Tensor& weights, int rank) {
    const auto* w = weights.view().as<float>();
    auto* g = gradient.view().as<float>();
    for (int64_t i = 0; i < kValues; ++i) g[i] = (w[i] - target(rank, i)) / kRanks;
}

struct Trained {
    std::vector<float> weights;
    int64_t held = 0;  // bytes of the rank between two steps
    int64_t sent = 0;  // bytes of the rank in a step
};

Trained zero(comm::World& world, int stage) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    const auto group = world.everyone("dp");
    const int64_t part = kValues / kRanks, begin = group->rank() * part;
    const auto shard_of = [&](const Tensor& whole) { return whole.narrow(0, begin, part); };

    // State between steps: whole, or this rank's shard.
    const Tensor weights = ops::zeros(ctx, {stage >= 3 ? part : kValues}, DType::f32, Purpose::weights);
    const Tensor gradient = ops::zeros(ctx, {stage >= 2 ? part : kValues}, DType::f32, Purpose::gradients);
    optim::Parameter parameter{.name = "w", .shape = {kValues}};
    optim::ParameterShard piece{.parameter = &parameter, .master = weights, .value = weights, .gradients = &gradient};
    if (stage >= 1) {
        piece.begin = begin;
        piece.master = piece.value = stage >= 3 ? weights : shard_of(weights);
        piece.gradient_begin = stage >= 2 ? 0 : begin;
    }
    optim::Optimizer adamw(ctx, {piece}, {});  // its moments are of the piece's size

    for (int step = 0; step < kSteps; ++step) {
        Tensor all_weights = weights, all_gradients = gradient;
        if (stage >= 3) {
            all_weights = ops::empty(ctx, {kValues}, DType::f32, Purpose::communication);
            group->all_gather(weights, all_weights).wait();
        }
        if (stage >= 2) all_gradients = ops::empty(ctx, {kValues}, DType::f32, Purpose::communication);
        gradient_of_rank(all_gradients, all_weights, world.rank());
        if (stage == 0)
            group->all_reduce(gradient).wait();
        else
            group->reduce_scatter(all_gradients, stage >= 2 ? gradient : shard_of(gradient)).wait();
        adamw.step(kRate, 1);
        if (stage == 1 || stage == 2) group->all_gather(shard_of(weights), weights).wait();
    }

    Trained result{.held = device->memory().total().current, .sent = group->usage().sent / kSteps};
    const Tensor whole = stage >= 3 ? ops::empty(ctx, {kValues}, DType::f32) : weights;
    if (stage >= 3) group->all_gather(weights, whole).wait();
    result.weights = whole.to_host<float>();
    return result;
}

// One rank with all samples. Sums over ranks are trees, ((g0 + g1) + (g2 + g3)), and so is this one.
std::vector<float> one_rank() {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    const Tensor weights = ops::zeros(ctx, {kValues}, DType::f32, Purpose::weights);
    std::vector<Tensor> g;
    for (int r = 0; r < kRanks; ++r) g.push_back(ops::zeros(ctx, {kValues}, DType::f32, Purpose::gradients));
    optim::Parameter parameter{.name = "w", .shape = {kValues}};
    optim::Optimizer adamw(ctx, {{.parameter = &parameter, .master = weights, .value = weights, .gradients = &g[0]}},
                           {});
    for (int step = 0; step < kSteps; ++step) {
        for (int r = 0; r < kRanks; ++r) gradient_of_rank(g[r], weights, r);
        ops::accumulate(ctx, g[1], g[0]);
        ops::accumulate(ctx, g[3], g[2]);
        ops::accumulate(ctx, g[2], g[0]);
        adamw.step(kRate, 1);
    }
    return weights.to_host<float>();
}

// AdamW of one value in double (Loshchilov and Hutter 2019, algorithm 2). A vector has no weight decay.
double plain_adamw(int64_t i) {
    const spec::OptimizerSpec s;
    double w = 0, m = 0, v = 0, t = 0;
    for (int r = 0; r < kRanks; ++r) t += target(r, i) / static_cast<double>(kRanks);
    for (int step = 1; step <= kSteps; ++step) {
        const double g = w - t;
        m = s.beta1 * m + (1 - s.beta1) * g;
        v = s.beta2 * v + (1 - s.beta2) * g * g;
        w -= kRate * (m / (1 - std::pow(s.beta1, step))) / (std::sqrt(v / (1 - std::pow(s.beta2, step))) + s.eps);
    }
    return w;
}

int main() try {
    const std::vector<float> expected = one_rank();
    double largest = 0;
    for (int64_t i = 0; i < kValues; ++i) largest = std::max(largest, std::abs(expected[i] - plain_adamw(i)));
    // A step moves a weight by about kRate. In f32 a rounding is 2^-24; 1 - beta1 and the root of 1 - beta2 multiply
    // that of the betas by ten each, and there are about ten others.
    constexpr double kTolerance = kSteps * kRate * 30 * 0x1p-24;
    check(largest <= kTolerance, "required: AdamW in double within ", kTolerance, ", got ", largest);
    std::printf("one rank: %lld values, %d steps, largest difference from AdamW in double %.1e\n",
                static_cast<long long>(kValues), kSteps, largest);

    const char* formulas[] = {"16 N", "8 N + 8 N / n", "4 N + 12 N / n", "16 N / n"};
    const int64_t whole[] = {16, 8, 4, 0};  // bytes of a value that every rank has; the other bytes are sharded
    for (int stage = 0; stage <= 3; ++stage) {
        comm::run_ranks(kRanks, {.timeout_s = 60}, [&](comm::World& world) {
            const Trained got = zero(world, stage);
            const int64_t held = kValues * whole[stage] + kValues * (16 - whole[stage]) / kRanks;
            check(got.weights == expected, "ZeRO-", stage, ", rank ", world.rank(),
                  ": required: the weights of one rank to the bit, got others");
            check(got.held == held, "ZeRO-", stage, ", rank ", world.rank(), ": required: ", formulas[stage], " = ",
                  held, " bytes, counted ", got.held);
            if (world.rank() == 0)
                std::printf(
                    "ZeRO-%d on %d ranks: the same bits; a rank holds %7lld bytes = %-14s and sends %lld a step\n",
                    stage, kRanks, static_cast<long long>(got.held), formulas[stage], static_cast<long long>(got.sent));
        });
    }
} catch (const Error& error) {
    std::fprintf(stderr, "05_zero_by_hand: %s\n", error.what());
    return error.exit_code();
}
