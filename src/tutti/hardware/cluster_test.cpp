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
    ASSERT_EQ(cluster_names().size(), 34u);
    for (const std::string& name : cluster_names()) {
        const Cluster c = cluster_named(name);
        EXPECT_EQ(c.name, name);
        EXPECT_FALSE(c.sources.empty()) << name;
        EXPECT_FALSE(c.generation.empty()) << name;
        EXPECT_GT(c.memory_bandwidth, 1e11) << name;
        EXPECT_GE(c.domain, 1) << name;
        constexpr double kContext = 600 << 20;
        EXPECT_NEAR((c.memory + kContext) / c.data_sheet_memory, 1, 0.08) << name;
        EXPECT_GT(c.year, 2009) << name;
        EXPECT_EQ(c.cores > 0, c.l2 > 0) << name;
        // At two FLOP a cycle the cores reach the peak at a clock that a device can have.
        if (c.cores > 0) {
            const double clock = c.peak("fp32") / (2.0 * c.processors * c.cores);
            EXPECT_GT(clock, 1.3e9) << name;
            EXPECT_LT(clock, 2.6e9) << name;
        }
        for (const auto& [type, rate] : c.measured) EXPECT_LT(rate, c.peak(type)) << name << ' ' << type;
    }
}

TEST(Clusters, UnitsAreThoseOfTheDataSheet) {
    const Cluster c = cluster_named("H100");
    EXPECT_DOUBLE_EQ(c.peak("bf16"), 989.4e12);
    EXPECT_DOUBLE_EQ(c.data_sheet_memory, 80e9);
    EXPECT_DOUBLE_EQ(c.memory, (81559.0 - 600) * (1 << 20));  // of nvidia-smi, less the context
    EXPECT_DOUBLE_EQ(c.memory_bandwidth, 3352e9);
    EXPECT_DOUBLE_EQ(c.link_bandwidth, 450e9);
    EXPECT_DOUBLE_EQ(c.network_bandwidth, 50e9);
    EXPECT_EQ(c.per_node, 8);
    EXPECT_EQ(c.processors, 132);
    EXPECT_EQ(cluster_named("A100-80").name, "a100");
    EXPECT_EQ(cluster_named("v100").host_bandwidth, 16e9);  // PCIe 3 x16
    EXPECT_EQ(cluster_named("a100-80gb").name, "a100");
    EXPECT_EQ(cluster_named("a100-40gb").name, "a100-40");
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

// One device has one memory, whether or not a file repeats the size of its data sheet.
TEST(Clusters, AFileHasTheMemoryOfItsBase) {
    const double h100 = cluster_named("h100").memory;
    EXPECT_EQ(parse_cluster("base = \"h100\"\n", "x.toml").memory, h100);
    EXPECT_EQ(parse_cluster("base = \"h100\"\nmemory_gb = 80\n", "x.toml").memory, h100);
    EXPECT_EQ(parse_cluster("base = \"h100\"\nmemory_gb = 94\n", "x.toml").memory, 94e9 - 600.0 * (1 << 20));
    EXPECT_EQ(parse_cluster("base = \"h100\"\nmemory_gb = 94\nmemory_mib = 95830\n", "x.toml").memory,
              (95830.0 - 600) * (1 << 20));
    EXPECT_NE(message_of([] { parse_cluster("base = \"h100\"\nmemory_gb = 0.5\n", "x.toml"); }).find("is less than"),
              std::string::npos);
}

// 0 is refused, or means what docs/clusters.md says; nothing is passed over.
TEST(Clusters, ZeroNegativeAndInfiniteValues) {
    const auto refusal = [](const std::string& line) {
        return message_of([&] { parse_cluster("base = \"h100\"\n" + line + "\n", "x.toml"); });
    };
    for (const char* key : {"memory_gb", "memory_mib", "memory_gbs", "link.gbs", "network.gbs",
                            "network.oversubscription", "site.mtbf_hours"})
        for (const char* value : {"0", "-1", "nan", "inf", "-inf"})
            EXPECT_EQ(refusal(concat(key, " = ", value)),
                      concat("x.toml: ", key, " must be a number from 1e-06 to 1e+09, got ",
                             std::string(value) == "-inf" ? "inf" : value))
                << key;
    for (const char* key : {"link.domain", "network.per_node"})
        for (const char* value : {"0", "-1", "1.5", "nan"}) EXPECT_NE(refusal(concat(key, " = ", value)), "") << key;
    for (const std::string& key : cluster_keys()) {
        if (key.find("name") != std::string::npos || key == "aliases" || key == "sources" || key == "vendor" ||
            key == "generation")
            continue;
        EXPECT_NE(refusal(concat(key, " = -1")), "") << key;
        EXPECT_NE(refusal(concat(key, " = nan")).find("got nan"), std::string::npos) << key;
        for (const char* beyond : {"1e-300", "9e-7", "1.1e9", "1e300", "inf"})
            EXPECT_NE(refusal(concat(key, " = ", beyond)).find(concat(key, " must be a ")), std::string::npos)
                << key << " = " << beyond;
    }
    const Cluster c = parse_cluster(
        "base = \"h100\"\nwatts = 0\n[tflops]\nfp8 = 0\n[measured_tflops]\nbf16 = 0\n[host]\ngbs = 0\n", "x.toml");
    EXPECT_FALSE(c.has("fp8"));
    EXPECT_EQ(c.measured.size(), 0u);  // that of fp8 goes with its peak
    EXPECT_EQ(c.watts, 0);
    EXPECT_EQ(c.host_bandwidth, 0);
    EXPECT_NE(refusal("tflops = {fp32 = 0, tf32 = 0, fp16 = 0, bf16 = 0, fp8 = 0}").find("at least one type"),
              std::string::npos);
}

// An entry of the catalog begins with another one; a domain of one's own has no segment of the base's.
TEST(Clusters, RacksOfSeveralDomainsAndSegmentsOfOne) {
    const Cluster chip = cluster_named("trainium2"), ultra = cluster_named("trn2-ultraserver");
    EXPECT_EQ(ultra.name, "trainium2-ultra");
    EXPECT_EQ(cluster_named("Trn2").name, "trainium2") << "an alias of the base stays with the base";
    EXPECT_EQ(ultra.peaks, chip.peaks);
    EXPECT_EQ(chip.rack_with_links(), 0);
    EXPECT_EQ(ultra.rack_with_links(), 64);
    // Inside an instance and between instances: 1,024 and 256 GB/s in both directions (AWS Neuron documentation).
    EXPECT_DOUBLE_EQ(2 * ultra.link_bandwidth, 1024e9);
    EXPECT_DOUBLE_EQ(2 * ultra.rack_bandwidth, 256e9);
    for (const char* name : {"gb200", "gb300-nvl72"}) {
        EXPECT_EQ(cluster_named(name).domain, 72) << name;
        EXPECT_EQ(cluster_named(name).domain_of_job(), 64) << name;
        EXPECT_EQ(cluster_named(name, {"link.domain=36"}).domain_of_job(), 36) << name;
        EXPECT_EQ(cluster_named(name, {"link.domain=36", "link.segment=32"}).domain_of_job(), 32) << name;
    }
    const Cluster llama3 = cluster_named("h100-llama3");
    EXPECT_EQ(llama3.rack, 16);
    EXPECT_EQ(llama3.rack_with_links(), 0);
    EXPECT_EQ(llama3.memory, cluster_named("h100").memory);
    EXPECT_NE(message_of([] { cluster_named("gb200", {"link.segment=73"}); }).find("at most link.domain = 72"),
              std::string::npos);
    for (const char* devices : {"rack.devices=8", "rack.devices=20", "rack.devices=0"})
        EXPECT_NE(message_of([&] {
                      cluster_named("h100", {"rack.gbs=100", devices});
                  }).find("a multiple of link.domain"),
                  std::string::npos)
            << devices;
}

TEST(Clusters, ChangesAreWhatIfs) {
    const Cluster c = cluster_named("h100", {"network.gbs=35", "name=ours", "network.pod=64"});
    EXPECT_DOUBLE_EQ(c.network_bandwidth, 35e9);
    EXPECT_EQ(c.pod, 64);
    EXPECT_EQ(c.name, "ours");
    EXPECT_EQ(cluster_named("h100", {"network.gbs=35"}).name, "h100 with network.gbs=35");
    for (const char* wrong :
         {"network.gbs", "=3", "network.gbs=", "network.gb=3", "network.gbs=many", "network.gbs=nan"})
        EXPECT_NE(message_of([&] { cluster_named("h100", {wrong}); }).find("--set-cluster"), std::string::npos)
            << wrong;
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

TEST(Clusters, AnUnknownBaseIsAnErrorOfItsFile) {
    for (const std::string base : {"h109", "absent.toml"})
        EXPECT_NE(message_of([&] {
                      parse_cluster("base = \"" + base + "\"\n", "x.toml");
                  }).find("x.toml: base = \"" + base + "\": no cluster is named " + base),
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
              }).find("memory_gb must be a number from 1e-06 to 1e+09, got"),
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
