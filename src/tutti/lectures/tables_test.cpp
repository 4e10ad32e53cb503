// The tables of the lectures against numbers that others computed.
#include "tutti/lectures/tables.h"

#include <gtest/gtest.h>

namespace tutti::lectures {
namespace {

double cell(const Table& t, size_t row, size_t column) { return t.rows[row][column].get<double>(); }

// By hand, from the formulas.
TEST(Tables, HaveTheTextbooksNumbers) {
    const Table bytes = bytes_of_a_parameter();
    const double sums[] = {16, 18, 16, 12, 12, 8, 12.03, 10.03, 6.03, 14, 12, 14, 14};
    ASSERT_EQ(bytes.rows.size(), std::size(sums));
    for (size_t row = 0; row < std::size(sums); ++row) EXPECT_NEAR(cell(bytes, row, 4), sums[row], 2e-3) << row;
    // 340 B in 18 bytes, and in 12, over 64: 2 + 4 + 12 and 0 + 2 + 10 bytes, each cut as its stage says.
    autograd::Parameter matrix{.name = "w", .shape = {1, 340000000000}, .role = autograd::Role::column};
    const Table state = state_of_a_device("matrices", {&matrix}, 64);
    EXPECT_NEAR(cell(state, 1, 2), 340e9 * 18, 1);
    EXPECT_NEAR(cell(state, 1, 3), 340e9 * (2 + 4 + 12 / 64.0), 1);
    EXPECT_NEAR(cell(state, 1, 4), 340e9 * (2 + (4 + 12) / 64.0), 1);
    EXPECT_NEAR(cell(state, 1, 5), 340e9 * (4 + 12) / 64, 1);  // masters alone
    EXPECT_NEAR(cell(state, 3, 2), 340e9 * 14, 1);
    EXPECT_NEAR(cell(state, 3, 5), 340e9 * 12 / 64, 1);
    const Table zero = zero_stages();  // 70 B over 64: 1120, 293.125, 155.3125, 17.5 GB
    EXPECT_NEAR(cell(zero, 4, 4), 1120e9, 1);
    EXPECT_NEAR(cell(zero, 5, 4), 293.125e9, 1);
    EXPECT_NEAR(cell(zero, 6, 4), 155.3125e9, 1);
    EXPECT_NEAR(cell(zero, 7, 4), 17.5e9, 1);
    // sbh = 25165824; 5as/h = 80: 34 + 80 = 114 times it is 2.869 GB.
    EXPECT_NEAR(cell(activations_of_a_layer(), 0, 2), 25165824.0 * 114, 1);
    EXPECT_NEAR(cell(activations_of_a_layer(), 1, 2), 25165824.0 * 23, 1);
    EXPECT_NEAR(cell(pipeline_bubbles(), 1, 2), 7.0 / 32, 1e-12);
    EXPECT_NEAR(cell(pipeline_bubbles(), 2, 2), 7.0 / 64, 1e-12);
}

TEST(Tables, TheSystemAgreesWithTheFormulas) {
    const Table bytes = bytes_of_a_parameter(), zero = zero_stages(), bubbles = pipeline_bubbles(),
                activations = activations_of_a_layer(), volumes = ring_volumes(), rates = utilisation();
    for (size_t row = 0; row < bytes.rows.size(); ++row) EXPECT_NEAR(cell(bytes, row, 5), cell(bytes, row, 4), 1e-9);
    for (size_t row = 0; row < zero.rows.size(); ++row)
        EXPECT_NEAR(cell(zero, row, 5), cell(zero, row, 4), 1e-6 * cell(zero, row, 4));
    // No masks of dropout: 2 bytes of 34 where they are not shared out, and nothing else, is missing.
    for (size_t row = 0; row < activations.rows.size(); ++row)
        EXPECT_NEAR(cell(activations, row, 3) / cell(activations, row, 2), 0.97, 0.06);
    for (size_t row = 0; row < 4; ++row)
        EXPECT_NEAR(cell(bubbles, row, 3), cell(bubbles, row, 2), 0.01);  // of schedules whose bubble is not zero
    for (size_t row = 0; row < volumes.rows.size(); ++row)
        EXPECT_NEAR(cell(volumes, row, 3), cell(volumes, row, 2), 0.01 * cell(volumes, row, 2));
    for (size_t row = 0; row < rates.rows.size(); ++row) {
        EXPECT_NEAR(cell(rates, row, 5), cell(rates, row, 4), 0.003);     // MFU by the formula, published
        EXPECT_NEAR(cell(rates, row, 6), cell(rates, row, 5), 0.001);     // by our FLOPs
        EXPECT_NEAR(cell(rates, row, 8), cell(rates, row, 7), 0.003);     // HFU
        EXPECT_NEAR(cell(rates, row, 3) / cell(rates, row, 2), 1, 0.08);  // simulated time, measured
    }
}

// 430 of 989.4 TFLOP/s are 43 %, as both columns of the report's table say.
TEST(Tables, RatesOfLlama3AreTheSharesOfThePeak) {
    const Table t = llama3();
    for (size_t row = 0; row < t.rows.size(); ++row) {
        EXPECT_NEAR(cell(t, row, 12) / 989.4, cell(t, row, 7), 0.01);
        EXPECT_NEAR(cell(t, row, 13), cell(t, row, 8) * 989.4, 0.5);
    }
}

// The slides: N = 4 computes 8 and holds 4; recomputed from the first input 14 and 2.
TEST(Tables, AChainIsPlayedAsItsFormulasSay) {
    const Table chain = checkpointed_chain();
    ASSERT_EQ(chain.rows.size(), 8u);
    for (size_t row = 0; row < chain.rows.size(); ++row) {
        EXPECT_EQ(cell(chain, row, 4), cell(chain, row, 3)) << row;
        EXPECT_EQ(cell(chain, row, 7), cell(chain, row, 6)) << row;
    }
    EXPECT_EQ(cell(chain, 0, 4), 8);
    EXPECT_EQ(cell(chain, 0, 7), 4);
    EXPECT_EQ(cell(chain, 1, 4), 14);
    EXPECT_EQ(cell(chain, 1, 7), 2);
}

TEST(Tables, PrintEveryRow) {
    for (const Table& table : all_tables()) {
        const std::string text = render(table);
        for (const auto& row : table.rows) {
            ASSERT_EQ(row.size(), table.columns.size()) << table.id;
            if (row[0].is_string()) {
                EXPECT_NE(text.find(row[0].text()), std::string::npos);
            }
        }
        EXPECT_EQ(to_json(table)["rows"].size(), table.rows.size());
    }
}

}  // namespace
}  // namespace tutti::lectures
