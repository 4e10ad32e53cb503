// Health of a cluster: the pairs of each round, the judgement of figures, and ranks that are slow or wrong on purpose.
#include "tutti/diagnose/health.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::diagnose {
namespace {

// --- rounds ----------------------------------------------------------------------------------------------------------

TEST(HealthRounds, EveryTwoRanksMeetOnce) {
    for (int ranks = 1; ranks <= 33; ++ranks)
        for (const bool alone : {false, true}) {
            const std::vector<Round> rounds = alone ? one_by_one(ranks) : tournament(ranks);
            std::set<std::pair<int, int>> met;
            for (const Round& round : rounds) {
                std::set<int> busy;
                for (const auto& [a, b] : round) {
                    EXPECT_TRUE(0 <= a && a < b && b < ranks) << a << ", " << b << " of " << ranks;
                    EXPECT_TRUE(met.insert({a, b}).second) << a << ", " << b << " of " << ranks;
                    EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << ranks;
                }
            }
            EXPECT_EQ(static_cast<int>(met.size()), ranks * (ranks - 1) / 2);
            const size_t pairs = to_size(ranks * (ranks - 1) / 2);
            EXPECT_EQ(rounds.size(), alone ? pairs : pairs == 0 ? 1u : to_size(ranks - 1 + ranks % 2));
        }
}

// --- the verdict, on figures by hand ---------------------------------------------------------------------------------

void name(std::array<char, 64>& text, const std::string& value) { value.copy(text.data(), text.size() - 1); }
void name(std::array<char, 96>& text, const std::string& value) { value.copy(text.data(), text.size() - 1); }

// Hosts of four equal ranks, links of 10 GB/s and 10 us within them, of 1 GB/s and 100 us between them.
ClusterHealth healthy(int ranks) {
    ClusterHealth c;
    for (int r = 0; r < ranks; ++r) {
        RankHealth rank;
        name(rank.host, concat("n", r / 4));
        name(rank.device, "H");
        rank.rates = {700e12, 50e12, 4e12, 50e9, 48e9};
        rank.repeats = 5;
        rank.digest = 7;
        c.ranks.push_back(rank);
    }
    c.links.resize(to_size(ranks) * to_size(ranks));
    for (int a = 0; a < ranks; ++a)
        for (int b = 0; b < ranks; ++b)
            c.links[to_size(a * ranks + b)] =
                c.same_host(a, b) ? LinkHealth{10e9, 10e-6, 0} : LinkHealth{1e9, 100e-6, 0};
    return c;
}

LinkHealth& link(ClusterHealth& c, int a, int b) { return c.links[to_size(a * c.size() + b)]; }

std::vector<std::pair<std::string, std::vector<int>>> found(const ClusterHealth& c, double margin = 0.2) {
    std::vector<std::pair<std::string, std::vector<int>>> result;
    for (const HealthFinding& f : judge(c, margin).findings) result.emplace_back(f.what, f.ranks);
    return result;
}
using Found = std::vector<std::pair<std::string, std::vector<int>>>;

TEST(HealthVerdict, EqualsAreHealthy) {
    for (const int ranks : {1, 2, 3, 4, 5, 8, 17}) {
        EXPECT_EQ(found(healthy(ranks)), Found{}) << ranks;
        EXPECT_EQ(judge(healthy(ranks), 0.2).notes.size(), ranks <= 2 ? 1u : 0u);
    }
}

// Each figure of each rank of several sizes of cluster: just within the margin, and just beyond.
TEST(HealthVerdict, ASlowRankIsNamedAndNoOther) {
    for (const int ranks : {2, 3, 4, 8})
        for (int slow = 0; slow < ranks; ++slow)
            for (size_t figure = 0; figure < kFigures; ++figure)
                for (const double margin : {0.05, 0.2, 0.5}) {
                    ClusterHealth c = healthy(ranks);
                    double& rate = c.ranks[to_size(slow)].rates[figure];
                    const double usual = rate;
                    rate = usual * (1 - margin) * 1.001;
                    EXPECT_EQ(found(c, margin), Found{});
                    rate = usual * (1 - margin) * 0.999;
                    EXPECT_EQ(found(c, margin), (Found{{name_of(static_cast<Figure>(figure)), {slow}}}));
                    const Verdict verdict = judge(c, margin);
                    EXPECT_NEAR(verdict.findings[0].share, (1 - margin) * 0.999, 1e-9);
                    EXPECT_NE(verdict.findings[0].text.find(concat("rank ", slow, " (n", slow / 4, ", H)")),
                              std::string::npos)
                        << verdict.findings[0].text;
                    EXPECT_FALSE(verdict.findings[0].advice.empty());
                }
}

TEST(HealthVerdict, PeersAreTheSameDevices) {
    ClusterHealth c = healthy(5);
    for (const int r : {1, 3}) {
        name(c.ranks[to_size(r)].device, "L");
        c.ranks[to_size(r)].rates = {100e12, 30e12, 0.8e12, 20e9, 20e9};
        c.ranks[to_size(r)].digest = 8;  // other hardware, other bits
    }
    EXPECT_EQ(found(c), Found{});
    c.ranks[3].rates[0] = 70e12;
    EXPECT_EQ(found(c), (Found{{"bf16_products", {3}}}));
    name(c.ranks[1].device, "X");  // now each is alone
    EXPECT_EQ(found(c), Found{});
    const Verdict verdict = judge(c, 0.2);
    ASSERT_EQ(verdict.notes.size(), 2u);
    EXPECT_EQ(verdict.notes[0], "rank 1 (n0, X) has no peer: its speed was not judged");
}

TEST(HealthVerdict, WhatWasNotMeasuredIsNotJudged) {
    ClusterHealth c = healthy(4);
    for (RankHealth& rank : c.ranks) rank.rates[3] = rank.rates[4] = 0;
    EXPECT_EQ(found(c), Found{});
}

TEST(HealthVerdict, ASlowLinkIsNamedByItsPair) {
    for (const auto& [a, b] : {std::pair{0, 1}, {2, 3}, {1, 6}, {5, 7}}) {
        ClusterHealth c = healthy(8);
        link(c, a, b).bytes_per_s *= 0.79;
        EXPECT_EQ(found(c), (Found{{"link", {a, b}}}));
        link(c, a, b) = healthy(8).link(a, b);
        link(c, a, b).latency_s *= 1.9;
        EXPECT_EQ(found(c), Found{});
        link(c, a, b).latency_s *= 2.1 / 1.9;
        EXPECT_EQ(found(c), (Found{{"latency", {a, b}}}));
    }
}

TEST(HealthVerdict, ARankWithSlowLinksIsNamedOnce) {
    for (const int ranks : {4, 8, 12})
        for (int slow = 0; slow < ranks; ++slow) {
            ClusterHealth c = healthy(ranks);
            for (int other = 0; other < ranks; ++other)
                if (other != slow) {
                    link(c, std::min(slow, other), std::max(slow, other)).bytes_per_s *= 0.3;
                    link(c, std::min(slow, other), std::max(slow, other)).latency_s *= 5;
                }
            EXPECT_EQ(found(c), (Found{{"link", {slow}}, {"latency", {slow}}})) << slow << " of " << ranks;
        }
}

TEST(HealthVerdict, WrongProductsAndMessagesAreNamed) {
    ClusterHealth c = healthy(4);
    c.ranks[2].wrong_rows = 3;
    EXPECT_EQ(found(c), (Found{{"wrong_product", {2}}}));
    EXPECT_EQ(judge(c, 0.2).findings[0].share, 0);
    c = healthy(4);
    c.ranks[1].changed = 1;
    EXPECT_EQ(found(c), (Found{{"wrong_product", {1}}}));
    c = healthy(4);
    c.ranks[3].digest = 8;
    EXPECT_EQ(found(c), (Found{{"wrong_product", {3}}}));
    c.ranks[0].digest = 8;  // two against two
    EXPECT_EQ(found(c), (Found{{"wrong_product", {0, 1, 2, 3}}}));
    c = healthy(4);
    link(c, 3, 1).wrong_words = 1;  // what rank 3 got from rank 1
    EXPECT_EQ(found(c), (Found{{"wrong_link", {1, 3}}}));
    // The wrong come first, whatever is slow.
    c.ranks[0].rates[0] *= 0.5;
    EXPECT_EQ(found(c), (Found{{"wrong_link", {1, 3}}, {"bf16_products", {0}}}));
}

// --- ranks as threads, one of them spoilt ----------------------------------------------------------------------------

using Spoil = void (*)(const Stream&, const kernels::Gemm&);

void right_product(const Stream& stream, const kernels::Gemm& g) {
    kernels::cpu_table(kernels::best_isa()).gemm(stream, g);
}

Verdict verdict_with(int ranks, int spoilt, Spoil gemm, double margin) {
    Verdict verdict;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        kernels::KernelTable table = kernels::cpu_table(kernels::best_isa());
        if (world.rank() == spoilt) table.gemm = gemm;
        ops::Context ctx{*device, table};
        const ClusterHealth cluster =
            measure_health(world, ctx, {.seconds = 0.01, .local = {world.rank(), world.size()}});
        if (world.rank() == 0) verdict = judge(cluster, margin);
    });
    return verdict;
}

bool names(const Verdict& verdict, const std::string& what, int rank) {
    for (const HealthFinding& f : verdict.findings)
        if (f.what == what && f.ranks == std::vector{rank}) return true;
    return false;
}

TEST(Health, ASlowRankIsNamed) {
    // A product of this size takes some milliseconds; the others would have to be slowed down as much to hide it.
    const Verdict verdict = verdict_with(
        3, 1,
        [](const Stream& stream, const kernels::Gemm& g) {
            right_product(stream, g);
            std::this_thread::sleep_for(std::chrono::milliseconds(150));
        },
        0.5);
    EXPECT_TRUE(names(verdict, "bf16_products", 1));
    EXPECT_TRUE(names(verdict, "f32_products", 1));
    EXPECT_FALSE(names(verdict, "wrong_product", 1));
}

TEST(Health, AWrongElementIsNamed) {
    const Verdict verdict = verdict_with(
        3, 2,
        [](const Stream& stream, const kernels::Gemm& g) {
            right_product(stream, g);
            if (g.c.dtype == DType::f32) g.c.as<float>()[100] += 1;
        },
        0.999);
    ASSERT_EQ(verdict.findings.size(), 2u);  // the known product; the bits of its peers
    EXPECT_NE(verdict.findings[0].text.find("2 rows of a matrix product whose values are known"), std::string::npos)
        << verdict.findings[0].text;  // one of each type
    EXPECT_NE(verdict.findings[1].text.find("other bits than most peers"), std::string::npos);
    for (const HealthFinding& f : verdict.findings) EXPECT_EQ(f.ranks, std::vector{2});
}

TEST(Health, ABitThatIsWrongNowAndThenIsNamed) {
    const Verdict verdict = verdict_with(
        2, 0,
        [](const Stream& stream, const kernels::Gemm& g) {
            right_product(stream, g);
            static int calls = 0;  // of the one spoilt rank
            if (g.c.dtype != DType::f32 || !g.accumulate || ++calls % 4 != 0) return;
            uint32_t& word = *g.c.as<uint32_t>();
            word ^= 1;
        },
        0.999);
    bool changed = false;
    for (const HealthFinding& f : verdict.findings) {
        EXPECT_EQ(f.what, "wrong_product");
        changed =
            changed || f.text.find("repeats of a matrix product gave other bits than its first") != std::string::npos;
    }
    EXPECT_TRUE(changed);
}

}  // namespace
}  // namespace tutti::diagnose
