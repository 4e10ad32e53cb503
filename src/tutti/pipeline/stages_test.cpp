// The times of stages against multiply-adds counted by hand, and the cut of layers against all cuts.
#include "tutti/pipeline/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::pipeline {
namespace {

struct Fixture {
    std::unique_ptr<Device> device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    spec::RunSpec run;
    Fixture(const std::string& preset, int64_t seq_len) {
        run.model = spec::preset(preset);
        run.train.seq_len = seq_len;
    }
    // One module a stage.
    schedule::Times<double> times() {
        const models::Model model = models::make_model(ctx, run.model, run.train.seq_len);
        std::vector<Span> spans;
        for (size_t i = 0; i < model.modules().size(); ++i) spans.push_back({i, i + 1});
        return estimated_times(run, model, spans);
    }
};

// Multiply-adds of a token in the forward, and the times that follow from them.
struct ByHand {
    double products, attention, early = 0;
};
void expect_times(const schedule::Times<double>& times, const std::vector<ByHand>& modules, bool recomputes = false) {
    ASSERT_EQ(times.stages.size(), modules.size());
    double layer = 0;
    for (size_t i = 1; i + 1 < modules.size(); ++i) layer += modules[i].products + modules[i].attention;
    layer /= static_cast<double>(modules.size() - 2);
    for (size_t i = 0; i < modules.size(); ++i) {
        const auto& [products, attention, early] = modules[i];
        const double again = recomputes && i > 0 && i + 1 < modules.size() ? products + attention : 0;
        EXPECT_DOUBLE_EQ(times.stages[i].forward * layer, products + attention + 2 * early) << i;
        EXPECT_DOUBLE_EQ(times.stages[i].backward_input * layer, products - early + 2.5 * attention + again) << i;
        EXPECT_DOUBLE_EQ(times.stages[i].backward_weight * layer, products - early) << i;
    }
}

// llama-tiny: C 128, 4 layers, q, k, v, o of C^2, three matrices of 448 C, V 256. Causal attention of 512 tokens: the
// scores and the weighted values, each T / 2 keys of width C.
constexpr double kC = 128, kHead = 256 * kC, kAttention = 512 * kC, kProjections = 4 * kC * kC, kMlp = 3 * kC * 448;

TEST(StageTimes, OfADenseModel) {
    Fixture f("llama-tiny", 512);
    const ByHand block{kProjections + kMlp, kAttention}, embedding{0, 0}, head{kHead, 0, kHead};
    expect_times(f.times(), {embedding, block, block, block, block, head});
    f.run.recompute.policy = "full";
    expect_times(f.times(), {embedding, block, block, block, block, head}, true);
}

// Two of eight experts of 224, and the router. A bias of the experts is no product: the times stay as they are.
TEST(StageTimes, OfAMixtureWithAnExpertBias) {
    Fixture f("moe-tiny", 512);
    const ByHand block{kProjections + kC * 8 + 2 * 3 * kC * 224, kAttention}, embedding{0, 0}, head{kHead, 0, kHead};
    expect_times(f.times(), {embedding, block, block, block, block, head});
    f.run.model.moe.score = "sigmoid";
    f.run.model.moe.expert_bias = true;
    expect_times(f.times(), {embedding, block, block, block, block, head});
}

// lfm2-tiny: layers 0, 1 and 3 mix their tokens by a convolution between products of 3 C^2 and C^2; layer 2 attends
// with two key and value heads of 32.
TEST(StageTimes, OfConvolutionsAndGroupedQueries) {
    Fixture f("lfm2-tiny", 512);
    const ByHand convolution{4 * kC * kC + kMlp, 0}, attention{2 * kC * kC + 2 * kC * 64 + kMlp, kAttention};
    expect_times(f.times(), {{0, 0}, convolution, convolution, attention, convolution, {kHead, 0, kHead}});
}

TEST(StageTimes, OfGpt2AndAnMlp) {
    Fixture gpt2("gpt2-124m", 1024);
    const double C = 768;
    std::vector<ByHand> modules(14, {12 * C * C, 1024 * C});
    modules.front() = {0, 0};
    modules.back() = {50257 * C, 0, 50257 * C};
    expect_times(gpt2.times(), modules);
    Fixture mlp("mlp-8192", 1);
    modules.assign(10, {8192.0 * 8192, 0});
    modules.front() = modules.back() = {0, 0};
    expect_times(mlp.times(), modules);
}

// The most expensive part, over all ways to cut the layers.
double best_of_all(const std::vector<double>& costs, size_t begin, int parts) {
    double sum = costs.back(), best = std::numeric_limits<double>::infinity();
    if (parts == 1) {
        for (size_t i = begin; i + 1 < costs.size(); ++i) sum += costs[i];
        return sum + (begin == 1 ? costs.front() : 0);
    }
    sum = begin == 1 ? costs.front() : 0;
    for (size_t end = begin + 1; end + to_size(parts) <= costs.size(); ++end) {
        sum += costs[end - 1];
        best = std::min(best, std::max(sum, best_of_all(costs, end, parts - 1)));
    }
    return best;
}

TEST(Balanced, CutsAsWellAsTheBestOfAllCuts) {
    const std::vector<std::vector<double>> all = {
        {0, 1, 1, 1, 1, 1, 1, 3}, {2, 1, 5, 1, 1, 7, 1, 2, 1, 0.5}, {0, 3, 3, 3, 0}, {9, 1, 1, 1, 9}};
    for (const std::vector<double>& costs : all)
        for (int parts = 1; parts <= 3; ++parts) {
            const std::vector<Span> spans = balanced(costs, parts);
            ASSERT_EQ(spans.size(), to_size(parts));
            EXPECT_EQ(spans.back().end, costs.size());
            double most = 0;
            for (size_t s = 0; s < spans.size(); ++s) {
                EXPECT_EQ(spans[s].begin, s == 0 ? 0 : spans[s - 1].end);
                double cost = 0;
                for (size_t i = spans[s].begin; i < spans[s].end; ++i) cost += costs[i];
                most = std::max(most, cost);
            }
            EXPECT_DOUBLE_EQ(most, best_of_all(costs, 1, parts)) << costs.size() << " modules in " << parts;
        }
}

TEST(Balanced, NeedsALayerForEachStage) { EXPECT_THROW(balanced({1, 1, 1, 1}, 3), UsageError); }

}  // namespace
}  // namespace tutti::pipeline
