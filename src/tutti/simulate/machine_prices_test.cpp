#include "tutti/simulate/machine_prices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

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
    // Whatever the share is rounded to, nothing crosses links between the domains of a rack, which there are not.
    for (int rows = 4; rows <= 100; ++rows)
        EXPECT_NEAR(h100.all_to_all(bytes, {32, 8}, 3.0 / rows),
                    bytes * std::max(1.0 / 4 / (450e9 * 0.78 * 0.8), 3.0 / rows / (50e9 * 0.75)) + 30e-6, 1e-9)
            << rows;
}

// An UltraServer by hand: four tori of 16 chips; 512 GB/s inside, 128 of each chip to the other tori, 25 to the
// network.
TEST(MachinePrices, DomainsOfARackHaveLinksOfTheirOwn) {
    const MachinePrices ultra = prices("trainium2-ultra"), instance = prices("trainium2");
    const double link = 0.78, network = 0.75, bytes = 1 << 30;
    EXPECT_NEAR(ultra.bandwidth(ultra.group(16, 1)), 512e9 * link, 1e6);
    EXPECT_NEAR(ultra.bandwidth(ultra.group(4, 16)), 128e9 * link, 1e6) << "a ring over the instances";
    EXPECT_NEAR(ultra.bandwidth(ultra.group(8, 8)), 2 * 128e9 * link, 1e6) << "two chips of each instance";
    EXPECT_NEAR(ultra.bandwidth(ultra.group(64, 1)), 512e9 * link, 1e6) << "16 rings of 128 exceed the torus";
    EXPECT_NEAR(ultra.bandwidth(ultra.group(8, 64)), 25e9 * network, 1e6);
    EXPECT_NEAR(ultra.bandwidth(ultra.group(32, 8)), 8 * 25e9 * network, 1e6) << "of 8 ranks a rack";
    EXPECT_NEAR(instance.bandwidth(instance.group(4, 16)), 25e9 * network, 1e6);
    // Inside a rack no step has the latency of the network.
    EXPECT_NEAR(ultra.gather(bytes, ultra.group(4, 16)), 3.0 / 4 * bytes / (128e9 * link) + 20e-6, 1e-9);
    EXPECT_NEAR(ultra.message(bytes, ultra.reach(16)), bytes / (128e9 * link) + 10e-6, 1e-9);
    EXPECT_NEAR(ultra.message(bytes, ultra.reach(64)), bytes / (25e9 * network) + 10e-6 + 10e-6, 1e-9);
    EXPECT_EQ(ultra.reach(15), Reach::domain);
    // All to all over two racks: 16 of 128 ranks near, 48 in the rack, 64 behind the network.
    EXPECT_NEAR(ultra.all_to_all(bytes, ultra.group(128, 1)), bytes * 64 / 128 / (25e9 * network) + 30e-6, 1e-9);
    EXPECT_NEAR(ultra.all_to_all(bytes, ultra.group(64, 1)), bytes * 48 / 64 / (128e9 * link * 0.8) + 20e-6, 1e-9);
    EXPECT_NEAR(ultra.operation({.kind = comm::Kind::all_gather, .bytes = 1 << 30}, {3, 19, 35, 51}),
                ultra.gather(bytes, ultra.group(4, 16)), 1e-12);
}

// A job on racks of 72 GPUs takes 64 of each: a group of 64 stays inside, which 72 do not divide into.
TEST(MachinePrices, AJobTakesASegmentOfADomain) {
    const MachinePrices rack = prices("gb200");
    EXPECT_EQ(rack.group(64, 1).reach(), Reach::domain);
    EXPECT_EQ(rack.group(72, 1).reach(), Reach::network);
    std::vector<int> second(64);
    for (int i = 0; i < 64; ++i) second[to_size(i)] = 64 + i;
    const comm::Summary gathered{.kind = comm::Kind::all_gather, .bytes = 1 << 30};
    EXPECT_NEAR(rack.operation(gathered, second), 63.0 / 64 * (1 << 30) / (900e9 * 0.78) + 20e-6, 1e-9);
    const MachinePrices whole(hardware::cluster_named("gb200", {"link.segment=72"}), Physics());
    EXPECT_GT(whole.operation(gathered, second), 2 * rack.operation(gathered, second)) << "8 here, 56 in the next rack";
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

// A kernel of Ampere's instructions loses a factor of 0.56 on each later generation (decision 38).
TEST(MachinePrices, OldKernelsLoseAFactorAGeneration) {
    const auto seconds = [](const char* device, Attention kernel) {
        return MachinePrices(hardware::cluster_named(device), Physics(), "bf16", kernel)
            .attention({1, 8192, 32, 128, 8192}, 1e12, false);
    };
    int behind = 0;
    for (const char* device : {"a100", "h100", "b200"}) {
        const double newest = seconds(device, Attention::newest);
        EXPECT_NEAR(seconds(device, Attention::flash2), newest / std::pow(0.56, behind), 1e-9 * newest) << device;
        EXPECT_NEAR(seconds(device, Attention::flash1), newest / std::pow(0.56, behind + 1), 1e-9 * newest) << device;
        ++behind;
    }
}

// An array of 256 x 256 holds the 128 values of a head in its half, as does one of 128 with heads of 64.
TEST(MachinePrices, SystolicArraysAreFilledInPart) {
    const auto seconds = [](int side, double head_dim) {
        hardware::Cluster tpu = hardware::cluster_named("tpu-v6e");
        tpu.matrix_unit = side;
        return MachinePrices(tpu, {}).attention({1, 4096, 32, head_dim, 4096}, 1e12, false);
    };
    EXPECT_DOUBLE_EQ(seconds(256, 128), 2 * seconds(128, 128));
    EXPECT_DOUBLE_EQ(seconds(128, 64), 2 * seconds(0, 64));
    EXPECT_DOUBLE_EQ(seconds(256, 256), seconds(128, 256));
    EXPECT_DOUBLE_EQ(seconds(256, 192), 4.0 / 3 * seconds(0, 192));
    // The rate of a whole step was held; the fastest product of a GPU is not.
    EXPECT_DOUBLE_EQ(prices("tpu-v5e").product_rate(Operands::wide), 176e12);
    // Products of whole tiles, and one whose depth is half a tile more.
    const MachinePrices tpu = prices("tpu-v6e");
    const auto rate = [&](double n, double k) { return 8192 * n * k / tpu.product(8192, n, k) * (k + 200) / k; };
    EXPECT_DOUBLE_EQ(rate(8192, 4096), rate(4096, 8192));
    EXPECT_NEAR(rate(8192, 4096 + 128) / rate(8192, 4096), (4096 + 128) / (4096 + 256.0), 1e-9);
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
