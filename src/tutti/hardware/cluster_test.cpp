#include "tutti/hardware/cluster.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"

namespace tutti::hardware {
namespace {

std::string message_of(auto&& action) {
    try {
        action();
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(Clusters, AllOfTheCatalogAreComplete) {
    ASSERT_EQ(cluster_names().size(), 24u);
    for (const std::string& name : cluster_names()) {
        const Cluster c = cluster_named(name);
        EXPECT_EQ(c.name, name);
        EXPECT_FALSE(c.sources.empty()) << name;
        EXPECT_FALSE(c.generation.empty()) << name;
        EXPECT_GT(c.memory_bandwidth, 1e11) << name;
        EXPECT_GE(c.domain, 1) << name;
        for (const auto& [type, rate] : c.measured) EXPECT_LT(rate, c.peak(type)) << name << ' ' << type;
    }
}

TEST(Clusters, UnitsAreThoseOfTheDataSheet) {
    const Cluster c = cluster_named("H100");
    EXPECT_DOUBLE_EQ(c.peak("bf16"), 989.4e12);
    EXPECT_DOUBLE_EQ(c.memory, 80e9);
    EXPECT_DOUBLE_EQ(c.memory_bandwidth, 3352e9);
    EXPECT_DOUBLE_EQ(c.link_bandwidth, 450e9);
    EXPECT_DOUBLE_EQ(c.network_bandwidth, 50e9);
    EXPECT_EQ(c.per_node, 8);
    EXPECT_EQ(c.processors, 132);
    EXPECT_EQ(cluster_named("A100-80").name, "a100");
}

TEST(Clusters, AFileStartsFromAKnownOneAndChangesWhatDiffers) {
    const Cluster c = parse_cluster(
        "base = \"h100\"\nname = \"ours\"\nmemory_gbs = 2400\n[network]\ngbs = 25\nper_node = 4\n", "ours.toml");
    EXPECT_EQ(c.name, "ours");
    EXPECT_DOUBLE_EQ(c.memory_bandwidth, 2400e9);
    EXPECT_DOUBLE_EQ(c.network_bandwidth, 25e9);
    EXPECT_EQ(c.per_node, 4);
    EXPECT_DOUBLE_EQ(c.peak("bf16"), 989.4e12);
}

TEST(Clusters, APowerLimitLowersTheClockByItsCubeRoot) {
    EXPECT_EQ(cluster_named("h100").clock(), 1);
    EXPECT_NEAR(parse_cluster("base = \"h100\"\npower_limit_watts = 350\n", "x.toml").clock(), std::cbrt(0.5), 1e-12);
    EXPECT_EQ(parse_cluster("base = \"h100\"\npower_limit_watts = 900\n", "x.toml").clock(), 1);
    EXPECT_NE(message_of([] {
                  parse_cluster("base = \"tpu-v4\"\npower_limit_watts = 200\n", "x.toml");
              }).find("power_limit_watts needs watts"),
              std::string::npos);
}

// A file that is its own base ended the program with a stack overflow.
TEST(Clusters, BasesThatLeadBackAreRefused) {
    const ScratchFolder folder;
    const std::string a = folder.path("a.toml"), b = folder.path("b.toml"), c = folder.path("c.toml");
    folder.write("a.toml", "base = \"" + b + "\"\n");
    folder.write("b.toml", "base = \"" + a + "\"\n");
    EXPECT_NE(message_of([&] { cluster_named(a); }).find("does one of them lead back to itself?"), std::string::npos);
    folder.write("b.toml", "base = \"h100\"\nname = \"ours\"\n");
    folder.write("c.toml", "base = \"" + a + "\"\nmemory_gb = 90\n");
    EXPECT_EQ(cluster_named(c).name, "ours") << "a file may begin with a file";
    EXPECT_NE(message_of([] { parse_cluster("base = 3\n", "x.toml"); }).find("x.toml: base must be a name or a file"),
              std::string::npos);
}

TEST(Clusters, WrongInputIsNamed) {
    EXPECT_NE(message_of([] { cluster_named("h10"); }).find("the nearest is h100"), std::string::npos);
    EXPECT_NE(message_of([] {
                  parse_cluster("base = \"h100\"\nmemory_gb = \"80\"\n", "x.toml");
              }).find("memory_gb must be a number"),
              std::string::npos);
    EXPECT_NE(message_of([] { parse_cluster("base = \"h100\"\n[link]\ngb = 1\n", "x.toml"); }).find("link.gbs"),
              std::string::npos);
    EXPECT_NE(message_of([] { parse_cluster("name = \"x\"\n", "x.toml"); }).find("memory_gb must be given"),
              std::string::npos);
    EXPECT_NE(message_of([] { parse_cluster("name = ", "x.toml"); }).find("x.toml:1"), std::string::npos);
    EXPECT_NE(message_of([] { cluster_named("a100").peak("fp8"); }).find("a100 has no fp8 products; it has bf16"),
              std::string::npos);
}

}  // namespace
}  // namespace tutti::hardware
