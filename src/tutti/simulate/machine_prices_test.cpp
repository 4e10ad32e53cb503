#include "tutti/simulate/machine_prices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::simulate {
namespace {

MachinePrices prices(const char* name) { return {hardware::cluster_named(name), {}}; }

TEST(Physics, TwelveNumbersWithinTheirBounds) {
    EXPECT_LE(physics_fields().size(), 12u);
    const Physics defaults;
    for (const PhysicsField& field : physics_fields()) {
        // A fitted value on its bound says that the form of the model is wrong.
        EXPECT_GT(defaults.*field.member, field.low * 1.01) << field.name;
        EXPECT_LT(defaults.*field.member, field.high * 0.99) << field.name;
        EXPECT_GE(field.table, field.low) << field.name;
        EXPECT_LE(field.table, field.high) << field.name;
        EXPECT_FALSE(field.source.empty()) << field.name;
        if (field.spread == 0) {
            EXPECT_EQ(defaults.*field.member, field.table) << field.name << " is not fitted";
        }
    }
}

// One wave of 132 tiles of 128 x 256 fills an H100; one tile more needs a second wave.
TEST(MachinePrices, ProductsFillWavesOfTiles) {
    EXPECT_DOUBLE_EQ(tile_efficiency(132 * 128, 256, 1, 132), 1);
    EXPECT_LT(tile_efficiency(132 * 128 + 1, 256, 1, 132), 0.8);
    EXPECT_EQ(tile_efficiency(1, 1, 1, 0), 1);  // a device without such units
    const MachinePrices h100 = prices("h100");
    // Large: all but the depth. At 700 W.
    const double n = 132 * 128;
    EXPECT_NEAR(2 * n * n * n / h100.product(n, n, n) / (Physics{}.hopper_16 * 700), n / (n + 200), 0.02);
    // Thin: limited by memory.
    EXPECT_NEAR(h100.product(1, 8192, 8192), 2.0 * 8192 * 8192 / (0.85 * 3352e9), 1e-6);
    EXPECT_THROW(prices("a100").product(64, 64, 64, Operands::eight), UsageError);
}

TEST(MachinePrices, ProductsRunAtConstantEnergy) {
    hardware::Cluster limited = hardware::cluster_named("h100");
    limited.power_limit = 350;
    EXPECT_NEAR(MachinePrices(limited, {}).product_rate(Operands::wide) / prices("h100").product_rate(Operands::wide),
                0.5, 1e-9);
}

// Groups of 32 H100: four nodes whose eight adapters of 50 GB/s work side by side reach the link's bandwidth, of which
// one rank a node has an eighth.
TEST(MachinePrices, RanksOfANodeShareTheirAdapters) {
    const MachinePrices h100 = prices("h100");
    EXPECT_NEAR(h100.bandwidth(h100.group(32, 1)), 8 * 50e9 * 0.75, 1e6);
    EXPECT_NEAR(h100.bandwidth(h100.group(4, 8)), 50e9 * 0.75, 1e6);
    EXPECT_NEAR(h100.bandwidth(h100.group(8, 1)), 450e9 * 0.78, 1e6);
    const double bytes = 1 << 30;
    EXPECT_NEAR(h100.gather(bytes, {8, 8}), 7.0 / 8 * bytes / (450e9 * 0.78) + 20e-6, 1e-9);
    EXPECT_NEAR(h100.gather(bytes, {32, 8}), 31.0 / 32 * bytes / (400e9 * 0.75) + 20e-6 + 31 * 10e-6, 1e-9);
    EXPECT_EQ(h100.gather(bytes, {1, 1}), 0);
    // A tree of 64 nodes: 2 log2(64) steps over nodes and 8 inside.
    EXPECT_NEAR(h100.all_reduce(0, {512, 8}), 2 * (20e-6 + 20 * 10e-6), 1e-9);
    // One of four domains receives at most one copy of each token's eight rows.
    EXPECT_LT(h100.all_to_all(bytes, {32, 8}, 3.0 / 4 * 4 / 8), h100.all_to_all(bytes, {32, 8}));
}

// Attention of the rehearsed kernels: all blocks of a long sequence keep the device busy, few do not.
TEST(MachinePrices, AttentionNeedsBlocksForAllProcessors) {
    const MachinePrices h100 = prices("h100");
    const auto rate = [&](double heads, double length) {
        const AttentionShape shape{1, length, heads, 128, length};
        const double flops = 2 * length * length * 128 * heads;
        return flops / h100.attention(shape, flops, false);
    };
    EXPECT_GT(rate(32, 8192), 2.5 * rate(1, 1024));
    EXPECT_LT(rate(64, 65536), hardware::cluster_named("h100").peak("bf16"));
    rehearsal::KernelCall call{"attention_forward", {}};
    call.work.flops = 2.0 * 8192 * 8192 * 128 * 32;  // half of all pairs, two products
    call.work.shape = {.kind = kernels::ProblemShape::Kind::attention, .rank = 4, .sizes = {1, 8192, 32, 128}};
    EXPECT_NEAR(h100.kernel(call), h100.attention({1, 8192, 32, 128, 8192}, call.work.flops, false) + 2e-6, 1e-9);
}

TEST(MachinePrices, GroupedProductsOfARehearsal) {
    const MachinePrices h100 = prices("h100");
    rehearsal::KernelCall call{"grouped_gemm", {}};
    const double rows = 4096, in = 2048, out = 1536, groups = 16;
    call.work.flops = 2 * rows * in * out;
    call.work.shape = {
        .kind = kernels::ProblemShape::Kind::product, .rank = 3, .groups = 16, .sizes = {4096, 2048, 1536}};
    EXPECT_NEAR(h100.kernel(call), h100.grouped(groups, rows / groups, out, in) + 2e-6, 1e-12);
    call.work.shape.transpose_a = true;  // gradients of 16 matrices of 2048 x 1536, of 256 rows each
    call.work.shape.sizes = {2048, 4096, 1536};
    EXPECT_NEAR(h100.kernel(call), h100.grouped_gradient(groups, rows / groups, out, in) + 2e-6, 1e-12);
    call = {"gemm_of_codes", {.flops = 2.0 * 4096 * 2048 * 1024, .bytes = 1}};
    call.work.shape = {.kind = kernels::ProblemShape::Kind::product, .rank = 3, .sizes = {4096, 1024, 2048}};
    EXPECT_NEAR(h100.kernel(call), h100.product(4096, 2048, 1024, Operands::eight) + 2e-6, 1e-12);
    EXPECT_LT(h100.kernel(call), h100.product(4096, 2048, 1024));
}

}  // namespace
}  // namespace tutti::simulate
