// Tensor, sequence and context parallelism against one rank: losses and every gradient of several models, with fewer
// key and value heads than ranks, tied and not, beside data parallelism and ZeRO.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/testing/rig.h"
#include "tutti/spec/layers.h"

namespace tutti::engine::tensor_parallel_test {
namespace {

using autograd::PassKind;
using parallel::Zero;
using testing::mesh_of;
using testing::Rig;
using testing::RigOptions;

struct Case {
    const char* name;
    spec::ModelSpec model;
};

std::vector<Case> cases() {
    const spec::ModelSpec llama{.family = spec::Family::llama,
                                .vocab = 131,
                                .width = 32,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .ffn = 48,
                                .max_positions = Rig::kTokens,
                                .tie_embeddings = false,
                                .dropout = 0.1,
                                .init_std = 0.2};
    spec::ModelSpec gpt2 = llama, mistral = llama, qwen2 = llama, qwen3 = llama, lfm2 = llama;
    gpt2.family = spec::Family::gpt2;
    gpt2.kv_heads = 4;
    gpt2.tie_embeddings = true;
    mistral.window = 3;
    mistral.kv_heads = 1;
    qwen2.qkv_bias = qwen2.output_bias = qwen2.mlp_bias = qwen2.tie_embeddings = true;
    qwen3.head_norm = true;
    lfm2.family = spec::Family::lfm2;
    lfm2.head_norm = lfm2.conv_bias = lfm2.tie_embeddings = true;
    lfm2.conv_layers = "0";
    lfm2.conv_kernel = 2;  // a rank of four has one token in a row
    return {{"gpt2", gpt2}, {"llama", llama}, {"mistral", mistral}, {"qwen2", qwen2}, {"qwen3", qwen3}, {"lfm2", lfm2}};
}

int64_t attention_layers(const spec::ModelSpec& model) {
    const auto layers = spec::all_layers(model);
    return std::ranges::count_if(layers, [](const spec::LayerSpec& layer) { return layer.attention() != nullptr; });
}

struct Outcome {
    std::map<std::string, std::vector<float>> gradients;
    std::vector<std::vector<float>> losses;  // by rank of data parallelism and microbatch
    double norm = 0, loss = 0;               // of all ranks
};

Outcome step(int ranks, const RigOptions& options) {
    Outcome outcome;
    std::mutex mutex;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Rig rig(world, options);
        rig.step({{PassKind::forward, 0, 0},
                  {PassKind::backward, 0, 0},
                  {PassKind::forward, 0, 1},
                  {PassKind::backward_input, 0, 1},
                  {PassKind::backward_weight, 0, 1}},
                 2);
        const double norm = rig.data_parallel.gradient_norm();
        const auto owned = rig.owned([](const optim::ParameterShard& p) { return p.gradient(); });
        const std::lock_guard lock(mutex);
        outcome.norm = norm;
        const mesh::Axes samples = mesh::kDp | mesh::kCp;
        outcome.losses.resize(to_size(rig.groups.mesh().size(samples)));
        auto& losses = outcome.losses[to_size(rig.groups.coordinate(samples))];
        std::vector<float> mine;
        for (const Tensor& l : rig.losses)
            for (const float loss : l.to_host<float>()) mine.push_back(loss);
        EXPECT_TRUE(losses.empty() || losses == mine);  // the ranks of a group agree, to the bit
        if (losses.empty())
            for (const float loss : mine) outcome.loss += loss;
        losses = mine;
        for (const auto& [name, values] : owned) {
            auto& whole = outcome.gradients.try_emplace(name, values.size(), NAN).first->second;
            for (size_t i = 0; i < values.size(); ++i)
                if (!std::isnan(values[i])) whole[i] = values[i];
        }
    });
    return outcome;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(b[i])) return INFINITY;
        difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
        size += std::pow(static_cast<double>(a[i]), 2);
    }
    return std::sqrt(difference / std::max(size, 1e-30));
}

class TensorParallel : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParallel, FollowsOneRank) {
    struct Layout {
        int tp, dp;
        Zero zero;
        int64_t segment = 0;
    };
    for (const int dp : {1, 2}) {
        const RigOptions plain{.model = GetParam().model,
                               .mesh = mesh_of(1, 1, dp, 1),
                               .data_parallel = {.zero = Zero::none, .compute = DType::f32, .seed = 7}};
        const Outcome one = step(dp, plain);
        for (const bool sequence : {false, true})
            for (const Layout& layout : std::vector<Layout>{{2, 1, Zero::none},
                                                            {4, 1, Zero::optimizer, 1},
                                                            {2, 2, Zero::none},
                                                            {2, 2, Zero::optimizer},
                                                            {2, 2, Zero::gradients, 2},
                                                            {2, 2, Zero::weights},
                                                            {4, 2, Zero::weights, 1}}) {
                if (layout.dp != dp) continue;
                SCOPED_TRACE(concat("tp ", layout.tp, ", dp ", dp, ", zero ", static_cast<int>(layout.zero),
                                    sequence ? ", sequence parallel" : ""));
                const int64_t kv_heads = GetParam().model.kv_heads;
                const int copies = layout.tp > kv_heads ? layout.tp / static_cast<int>(kv_heads) : 1;
                RigOptions options = plain;
                options.mesh = mesh_of(copies, layout.tp / copies, dp, 1);
                options.data_parallel.zero = layout.zero;
                options.sequence_parallel = sequence;
                options.segment = layout.segment;
                const Outcome many = step(layout.tp * dp, options);
                EXPECT_NEAR(many.norm, one.norm, 1e-5 * one.norm);
                for (size_t r = 0; r < one.losses.size(); ++r) EXPECT_LT(relative(one.losses[r], many.losses[r]), 1e-5);
                for (const auto& [name, gradient] : one.gradients)
                    EXPECT_LT(relative(gradient, many.gradients.at(name)), 1e-5) << name;
            }
    }
}

// Losses of a rank are those of its chunks: together those of one rank.
TEST_P(TensorParallel, ContextFollowsOneRank) {
    struct Layout {
        int cp, tp, dp;
        Zero zero;
        int64_t segment = 0;
        bool sequence = true;
        int ulysses = 1;
        bool gather = false;
    };
    for (const bool documents : {false, true})
        for (const Layout& layout :
             std::vector<Layout>{{2, 1, 1, Zero::none},
                                 {4, 1, 1, Zero::optimizer, 1},
                                 {2, 1, 2, Zero::weights},
                                 {2, 2, 1, Zero::gradients, 2},
                                 {2, 2, 2, Zero::weights, 1, false},
                                 {.cp = 2, .tp = 1, .dp = 1, .zero = Zero::none, .gather = true},
                                 {.cp = 4, .tp = 2, .dp = 1, .zero = Zero::weights, .segment = 1, .gather = true},
                                 {.cp = 2, .tp = 1, .dp = 1, .zero = Zero::none, .ulysses = 2},
                                 {.cp = 4, .tp = 1, .dp = 1, .zero = Zero::gradients, .ulysses = 4},
                                 {.cp = 2, .tp = 2, .dp = 2, .zero = Zero::weights, .segment = 1, .ulysses = 2},
                                 {.cp = 4, .tp = 1, .dp = 2, .zero = Zero::optimizer, .segment = 2, .ulysses = 2},
                                 {.cp = 4, .tp = 2, .dp = 1, .zero = Zero::none, .ulysses = 2, .gather = true}}) {
            SCOPED_TRACE(concat("cp ", layout.cp, ", tp ", layout.tp, ", dp ", layout.dp, ", zero ",
                                static_cast<int>(layout.zero), ", ulysses ", layout.ulysses,
                                layout.gather ? ", gathered keys" : "", documents ? ", documents" : ""));
            RigOptions options{.model = GetParam().model,
                               .mesh = mesh_of(1, 1, layout.dp, 1),
                               .data_parallel = {.zero = Zero::none, .compute = DType::f32, .seed = 7},
                               .documents = documents};
            const Outcome one = step(layout.dp, options);
            const int copies = GetParam().model.kv_heads < layout.tp ? layout.tp : 1;
            options.mesh = mesh_of(copies, layout.tp / copies, layout.dp, 1, layout.cp, layout.ulysses);
            options.gather_keys = layout.gather;
            options.data_parallel.zero = layout.zero;
            options.segment = layout.segment;
            options.sequence_parallel = layout.sequence;
            const Outcome many = step(layout.cp * layout.tp * layout.dp, options);
            EXPECT_NEAR(many.norm, one.norm, 1e-5 * one.norm);
            EXPECT_NEAR(many.loss, one.loss, 1e-5 * one.loss);
            for (const auto& [name, gradient] : one.gradients)
                EXPECT_LT(relative(gradient, many.gradients.at(name)), 1e-5) << name;
        }
}

// One sum for attention, one for the MLP, in each direction; with sequence parallelism each is a gather and a scatter.
// Once a step the gradients of norms and positions, of which a rank has some rows, and of the norms of heads are
// summed.
TEST_P(TensorParallel, CommunicatesOnceForAttentionAndMlpAndDirection) {
    for (const bool sequence : {false, true}) {
        const RigOptions options{
            .model = GetParam().model,
            .mesh = mesh_of(GetParam().model.kv_heads == 1 ? 2 : 1, GetParam().model.kv_heads == 1 ? 1 : 2, 1, 1),
            .data_parallel = {.zero = Zero::optimizer, .compute = DType::f32},
            .sequence_parallel = sequence};
        comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
            Rig rig(world, options);
            rig.data_parallel.begin_step(1);
            const comm::Communicator& tp = rig.groups.over(mesh::kTp);
            const auto calls = [&](comm::Kind kind) { return tp.traffic(kind).calls; };
            rig.run({PassKind::forward, 0, 0});
            const int64_t L = options.model.layers;
            const int64_t sums = 2 * L + 1, gathers = 2 * L + 1;  // of blocks and embedding; of blocks and head
            EXPECT_EQ(calls(comm::Kind::all_reduce), sequence ? 0 : sums);
            EXPECT_EQ(calls(comm::Kind::reduce_scatter), sequence ? sums : 0);
            EXPECT_EQ(calls(comm::Kind::all_gather), (sequence ? gathers : 0) + 1);  // and partial losses
            rig.run({PassKind::backward, 0, 0});
            rig.data_parallel.finish_gradients();
            const int64_t of_norms = sequence ? L + 1 + (options.model.family == spec::Family::gpt2 ? 1 : 0)
                                              : (options.model.head_norm ? attention_layers(options.model) : 0);
            EXPECT_EQ(calls(comm::Kind::all_reduce), (sequence ? 0 : sums + gathers) + of_norms);
            EXPECT_EQ(calls(comm::Kind::reduce_scatter), sequence ? sums + gathers : 0);
            EXPECT_EQ(calls(comm::Kind::all_gather), (sequence ? gathers + sums : 0) + 1);
        });
    }
}

// With few rows, so that pieces are uneven and some are left out.
TEST_P(TensorParallel, OverlapGivesTheSameBits) {
    const int64_t kv_heads = GetParam().model.kv_heads;
    for (const DType compute : {DType::f32, DType::bf16})
        for (const bool sequence : {false, true})
            for (const int tp : {2, 4}) {
                SCOPED_TRACE(concat(compute, ", tp ", tp, sequence ? ", sequence parallel" : ""));
                const int copies = tp > kv_heads ? tp / static_cast<int>(kv_heads) : 1;
                RigOptions options{.model = GetParam().model,
                                   .mesh = mesh_of(copies, tp / copies, 1, 1),
                                   .data_parallel = {.zero = Zero::optimizer, .compute = compute, .seed = 7},
                                   .sequence_parallel = sequence};
                const Outcome plain = step(tp, options);
                for (const auto& [pieces, segment] : {std::pair{2, 0}, {3, 1}, {16, 0}}) {
                    options.pieces = pieces;
                    options.segment = segment;
                    const Outcome overlapped = step(tp, options);
                    EXPECT_EQ(plain.losses, overlapped.losses) << pieces;
                    EXPECT_EQ(plain.norm, overlapped.norm) << pieces;
                    EXPECT_EQ(plain.gradients, overlapped.gradients) << pieces;
                }
            }
}

// Gathers of layers become a message from each other rank, sums one operation for each piece; embedding and head stay.
TEST_P(TensorParallel, OverlapSendsTheSameBytesInPieces) {
    constexpr int64_t kPieces = 2;
    const int64_t L = GetParam().model.layers;
    for (const bool sequence : {false, true}) {
        std::array<int64_t, 2> sent{};
        for (const bool overlap : {false, true}) {
            const RigOptions options{
                .model = GetParam().model,
                .mesh = mesh_of(GetParam().model.kv_heads == 1 ? 2 : 1, GetParam().model.kv_heads == 1 ? 1 : 2, 1, 1),
                .data_parallel = {.zero = Zero::optimizer, .compute = DType::f32},
                .sequence_parallel = sequence,
                .pieces = overlap ? kPieces : 1};
            comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
                Rig rig(world, options);
                rig.data_parallel.begin_step(1);
                const comm::Communicator& tp = rig.groups.over(mesh::kTp);
                rig.run({PassKind::forward, 0, 0});
                rig.run({PassKind::backward, 0, 0});
                if (world.rank() == 0) sent[overlap] = tp.usage().sent;
                const auto calls = [&](comm::Kind kind) { return tp.traffic(kind).calls; };
                const int64_t sums = overlap ? 4 * L * kPieces + 2 : 4 * L + 2;
                const int64_t of_head_norms =
                    options.model.head_norm && !sequence ? attention_layers(options.model) : 0;
                const int64_t messages = sequence && overlap ? 4 * L : 0;
                EXPECT_EQ(calls(sequence ? comm::Kind::reduce_scatter : comm::Kind::all_reduce), sums + of_head_norms);
                EXPECT_EQ(calls(comm::Kind::send), messages);
                EXPECT_EQ(calls(comm::Kind::all_gather), (sequence ? 4 * L + 2 : 0) - messages + 1);
            });
        }
        EXPECT_EQ(sent[0], sent[1]);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallel, ::testing::ValuesIn(cases()),
                         [](const auto& model) { return std::string(model.param.name); });

}  // namespace
}  // namespace tutti::engine::tensor_parallel_test
