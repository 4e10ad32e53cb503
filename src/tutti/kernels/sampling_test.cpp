// Drawn tokens follow the probabilities; top-k and top-p keep the right tokens. kernel_cases compares the tables with
// each other.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {
namespace {

class Sampling : public ::testing::TestWithParam<const KernelTable*> {
  protected:
    // How often each token is drawn in n draws from one row.
    std::map<int32_t, int> draw(const std::vector<float>& row, Sample how, int64_t n) const {
        std::vector<float> logits;
        for (int64_t i = 0; i < n; ++i) logits.insert(logits.end(), row.begin(), row.end());
        std::vector<int64_t> draws(static_cast<size_t>(n));
        std::iota(draws.begin(), draws.end(), 0);
        std::vector<int32_t> tokens(static_cast<size_t>(n), -2);
        const auto vocab = static_cast<int64_t>(row.size());
        how.logits = View(logits.data(), DType::f32, {n, vocab});
        how.draws = View(draws.data(), DType::i64, {n});
        how.tokens = View(tokens.data(), DType::i32, {n});
        how.key = random_key(3, "test");
        how.vocab = vocab;
        GetParam()->sample(Stream{}, how);
        std::map<int32_t, int> counts;
        for (const int32_t t : tokens) ++counts[t];
        return counts;
    }
    void expect_shares(const std::map<int32_t, int>& counts, const std::map<int32_t, double>& shares, int n) {
        EXPECT_EQ(counts.size(), shares.size());
        for (const auto& [token, share] : shares) {
            ASSERT_TRUE(counts.contains(token)) << token;
            EXPECT_NEAR(static_cast<double>(counts.at(token)) / n, share, 5 * std::sqrt(share / n));  // 5 sigma
        }
    }
    const std::vector<float> row_ = {std::log(0.05f), std::log(0.5f), std::log(0.15f), std::log(0.3f)};
};

TEST_P(Sampling, FollowsTheDistribution) {
    const int n = 20000;
    expect_shares(draw(row_, {}, n), {{0, 0.05}, {1, 0.5}, {2, 0.15}, {3, 0.3}}, n);
    expect_shares(draw(row_, {.top_p = 0.79}, n), {{1, 0.625}, {3, 0.375}}, n);
    expect_shares(draw(row_, {.top_k = 3}, n), {{1, 0.5 / 0.95}, {2, 0.15 / 0.95}, {3, 0.3 / 0.95}}, n);
    // Two of the three that top_k keeps have 0.84 of the probability.
    expect_shares(draw(row_, {.top_k = 3, .top_p = 0.83}, n), {{1, 0.625}, {3, 0.375}}, n);
    // Half the temperature squares the ratios: 0.0025, 0.25, 0.0225, 0.09 of 0.365.
    expect_shares(draw(row_, {.temperature = 0.5f}, n),
                  {{0, 0.0025 / 0.365}, {1, 0.25 / 0.365}, {2, 0.0225 / 0.365}, {3, 0.09 / 0.365}}, n);
}

TEST_P(Sampling, KeepsEqualsTogetherAndIsGreedyAtZero) {
    const std::vector<float> equals = {1, 2, 0.0f, 2, -0.0f, 2};
    EXPECT_EQ(draw(equals, {.temperature = 0}, 5), (std::map<int32_t, int>{{1, 5}}));
    expect_shares(draw(equals, {.top_k = 1}, 9000), {{1, 1.0 / 3}, {3, 1.0 / 3}, {5, 1.0 / 3}}, 9000);
    expect_shares(draw(equals, {.top_p = 1e-9}, 9000), {{1, 1.0 / 3}, {3, 1.0 / 3}, {5, 1.0 / 3}}, 9000);
    EXPECT_EQ(draw(equals, {.top_k = 5}, 9000).size(), 6u);  // 0 is -0
}

TEST_P(Sampling, SaysWhenThereIsNothingToDraw) {
    EXPECT_EQ(draw({1, NAN, 3}, {}, 1).begin()->first, -1);
    EXPECT_EQ(draw({-INFINITY, -INFINITY}, {}, 1).begin()->first, -1);
    EXPECT_EQ(draw({0, INFINITY}, {}, 1).begin()->first, -1);
    EXPECT_EQ(draw({-INFINITY, 0, -INFINITY}, {}, 9), (std::map<int32_t, int>{{1, 9}}));
}

INSTANTIATE_TEST_SUITE_P(Tables, Sampling, ::testing::Values(&reference_table(), &cpu_table(Isa::avx2)),
                         [](const auto& tested) { return tested.index == 0 ? "reference" : "cpu"; });

}  // namespace
}  // namespace tutti::kernels
