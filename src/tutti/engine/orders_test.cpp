// The passes of a step in random legal orders, as pipeline schedules mix them: forwards and backwards of several
// microbatches, whole or split into input and weight gradients, one run of modules on a rank or several. The gradients
// are those of the plain loop.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tutti/base/testing/draws.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/meta/meta_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/testing/rig.h"

namespace tutti::engine::orders_test {
namespace {

using autograd::PassKind;
using parallel::Zero;
using testing::Action;
using testing::Rig;
using testing::RigOptions;

constexpr int64_t kMicrobatches = 8;

spec::ModelSpec tiny(bool tied) {
    return {.family = tied ? spec::Family::gpt2 : spec::Family::llama,
            .vocab = 37,
            .width = 16,
            .layers = 3,
            .heads = 2,
            .kv_heads = 2,
            .head_dim = 8,
            .ffn = 24,
            .max_positions = Rig::kTokens,
            .tie_embeddings = tied,
            .dropout = 0.1,
            .init_std = 0.2};
}

std::vector<Action> plain_loop() {
    std::vector<Action> actions;
    for (int64_t m = 0; m < kMicrobatches; ++m)
        for (const PassKind kind : {PassKind::forward, PassKind::backward}) actions.push_back({kind, 0, m});
    return actions;
}

// Any order in which each pass has its inputs. `in_order`: the passes that add to weight gradients (F of the last
// stage, B, W) keep their microbatches in order in each stage.
std::vector<Action> random_order(std::mt19937& random, size_t stages, bool in_order) {
    const auto any = [&](size_t n) { return to_size(random() % n); };
    struct Progress {
        size_t forwards = 0, backwards = 0;  // stages done, from the first and from the last
        std::vector<bool> weights_due;       // by stage
    };
    std::vector<Progress> microbatches(kMicrobatches, {0, 0, std::vector<bool>(stages)});
    std::vector<int64_t> next_forward(stages), next_weight(stages);
    const size_t split_share = any(4);
    std::vector<Action> actions;
    while (true) {
        std::vector<Action> ready;
        for (int64_t m = 0; m < kMicrobatches; ++m) {
            const Progress& p = microbatches[to_size(m)];
            if (p.forwards < stages) {
                if (!in_order || next_forward[p.forwards] == m) ready.push_back({PassKind::forward, p.forwards, m});
            } else if (p.backwards < stages) {
                const size_t stage = stages - 1 - p.backwards;
                if (any(4) < split_share)
                    ready.push_back({PassKind::backward_input, stage, m});
                else if (!in_order || next_weight[stage] == m)
                    ready.push_back({PassKind::backward, stage, m});
            }
            for (size_t s = 0; s < stages; ++s)
                if (p.weights_due[s] && (!in_order || next_weight[s] == m))
                    ready.push_back({PassKind::backward_weight, s, m});
        }
        if (ready.empty()) {
            bool done = true;
            for (const Progress& p : microbatches) {
                done = done && p.backwards == stages;
                for (const bool due : p.weights_due) done = done && !due;
            }
            if (done) return actions;
            continue;  // only split backwards are possible, and this draw wanted none
        }
        const Action action = ready[any(ready.size())];
        Progress& p = microbatches[to_size(action.microbatch)];
        if (action.kind == PassKind::forward) {
            ++p.forwards;
            ++next_forward[action.stage];
        } else if (action.kind == PassKind::backward_weight) {
            p.weights_due[action.stage] = false;
            ++next_weight[action.stage];
        } else {
            ++p.backwards;
            if (action.kind == PassKind::backward)
                ++next_weight[action.stage];
            else
                p.weights_due[action.stage] = true;
        }
        actions.push_back(action);
    }
}

using Values = std::map<std::string, std::vector<float>>;

double relative(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(a[i]) != std::isnan(b[i])) return INFINITY;
        if (std::isnan(a[i])) continue;  // another rank's
        difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        size += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
    return size > 0 ? std::sqrt(difference / size) : difference;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Values gradients(const Rig& rig) {
    return rig.owned([](const optim::ParameterShard& p) { return p.gradient(); });
}

struct Configuration {
    int shards, replicas;
    Zero zero;
    bool each, tied;
};

MemoryByPurpose peak_of_step(Rig& rig, const std::vector<Action>& order) {
    rig.memory().reset_peaks();
    rig.step(order, kMicrobatches);
    return rig.memory().at_peak();
}

TEST(Orders, RandomOnesGiveTheGradientsOfThePlainLoop) {
    const Configuration configurations[] = {
        {2, 1, Zero::none, true, false},      {2, 1, Zero::optimizer, true, false},
        {2, 1, Zero::gradients, true, false}, {2, 1, Zero::gradients, false, true},
        {2, 1, Zero::weights, true, false},   {2, 1, Zero::weights, false, false},
        {2, 2, Zero::optimizer, true, true},  {2, 2, Zero::gradients, true, false},
        {2, 2, Zero::weights, true, true},    {2, 2, Zero::weights, true, false},
    };
    const int orders = tutti::testing::draws(10, 34);  // of each configuration and number of stages
    for (const Configuration& c : configurations)
        for (const size_t stages : {1, 2, 5}) {
            RigOptions options{
                .model = tiny(c.tied),
                .mesh = testing::mesh_of(1, 1, c.shards, c.replicas),
                .data_parallel = {.zero = c.zero, .compute = DType::f32, .seed = 7, .reduce_each_microbatch = c.each},
                .stages = stages};
            SCOPED_TRACE(concat(c.shards, " x ", c.replicas, ", zero ", static_cast<int>(c.zero), ", each ", c.each,
                                ", tied ", c.tied, ", stages ", stages));
            comm::run_ranks(c.shards * c.replicas, {.timeout_s = 60}, [&](comm::World& world) {
                RigOptions one = options;
                one.stages = 1;
                Rig plain(world, one);
                plain.step(plain_loop(), kMicrobatches);
                const Values expected = gradients(plain);
                const double norm = plain.data_parallel.gradient_norm();

                Rig rig(world, options);
                comm::MetaWorld meta_world(world.rank(), world.size());
                Rig rehearsal(meta_world, options, true);
                std::mt19937 random(5);  // the same orders on all ranks
                for (int i = 0; i < orders; ++i) {
                    const bool in_order = i % 2 == 0;
                    const std::vector<Action> order = random_order(random, stages, in_order);
                    const MemoryByPurpose held = peak_of_step(rig, order);
                    ASSERT_EQ(held.bytes, peak_of_step(rehearsal, order).bytes) << i;
                    ASSERT_NEAR(rig.data_parallel.gradient_norm(), norm, 1e-6 * norm) << i;
                    for (const auto& [name, gradient] : gradients(rig)) {
                        // A tied matrix gets terms in F and in B: their order is another one.
                        const bool bits = in_order && !(c.tied && name == "wte.weight");
                        if (bits)
                            ASSERT_TRUE(same_bits(expected.at(name), gradient)) << name << ", order " << i;
                        else
                            ASSERT_LT(relative(expected.at(name), gradient), 1e-6) << name << ", order " << i;
                    }
                }
            });
        }
}

// A step that does more microbatches than it announced says so. What one that does fewer leaves out, because a unit was
// not used in the last of them, is summed in the end: over shards and over replicas.
TEST(Orders, TheNumberOfMicrobatchesIsChecked) {
    const std::vector<Action> three = {{PassKind::forward, 0, 0}, {PassKind::backward, 0, 0},
                                       {PassKind::forward, 0, 1}, {PassKind::backward, 0, 1},
                                       {PassKind::forward, 0, 2}, {PassKind::backward, 0, 2}};
    for (const bool each : {true, false})
        for (const Zero zero : {Zero::none, Zero::optimizer, Zero::gradients, Zero::weights}) {
            SCOPED_TRACE(concat("zero ", static_cast<int>(zero), ", each ", each));
            const RigOptions options{
                .model = tiny(false),
                .mesh = testing::mesh_of(1, 1, 2, 2),
                .data_parallel = {.zero = zero, .compute = DType::f32, .reduce_each_microbatch = each}};
            comm::run_ranks(4, {.timeout_s = 60}, [&](comm::World& world) {
                Rig rig(world, options);
                rig.step(three, 3);
                const Values expected = gradients(rig);
                rig.step(three, 4);
                for (const auto& [name, gradient] : gradients(rig))
                    EXPECT_TRUE(same_bits(expected.at(name), gradient)) << name;
                EXPECT_THROW(rig.step(three, 2), Error);
            });
        }
}

}  // namespace
}  // namespace tutti::engine::orders_test
