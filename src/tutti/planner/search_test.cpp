// The search against a loop over everything; its rules.
#include "tutti/planner/search.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/planner/counterfactual.h"
#include "tutti/planner/finalists.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"
#include "tutti/schedule/generators.h"

namespace tutti::planner::search_test {
namespace {

Request on_h100(const char* preset, int gpus, int64_t batch, int64_t seq, double memory_gb = 80) {
    Request r = request_for(spec::preset(preset), hardware::cluster_named("h100"), gpus, batch, seq);
    r.cluster.memory = memory_gb * 1e9;
    return r;
}

SearchResult search_of(const Request& r) { return search(r, target_of(r)); }

// Every combination of all axes that the rules allow.
template <class Visit>
void for_each_layout(const Request& r, Visit visit) {
    spec::RunSpec run = plain_run(r);
    spec::ParallelSpec& p = run.parallel;
    const std::vector<int> all = divisors(r.gpus, r.gpus);
    std::vector<int> experts = {1}, expert_tp = {1};
    if (r.run.model.moe.experts > 0) {
        experts = divisors(r.run.model.moe.experts, r.gpus);
        expert_tp = {1, 2, 4, 8};
    }
    std::vector<std::pair<std::string, int64_t>> pipelines;
    for (const schedule::Kind* kind : schedules())
        for (int64_t v = kind->chunks > 0 ? kind->chunks : 2;
             v <= (kind->chunks > 0 ? kind->chunks : r.run.model.layers); ++v)
            pipelines.emplace_back(kind->name, v);
    for (const int tp : all)
        for (const int cp : all)
            for (const int pp : all) {
                if (r.gpus % (tp * cp * pp) != 0) continue;
                const int dp = r.gpus / (tp * cp * pp);
                p.tp = tp;
                p.cp = cp;
                p.pp = pp;
                for (const ContextMethod& how : context_methods(cp))
                    for (const auto& [name, v] : pipelines) {
                        if (pp == 1 && name != "1f1b") continue;
                        p.cp_method = how.name;
                        p.cp_ulysses = how.ulysses;
                        p.schedule = name;
                        p.virtual_stages = v;
                        set_stages(run);
                        for (const int micro_batch : divisors(r.run.train.global_batch, 64))
                            for (const int ep : experts)
                                for (const int etp : expert_tp)
                                    for (const char* recompute : {"none", "selective", "full"})
                                        for (int zero = 0; zero < 4; ++zero)
                                            for (const int replicate : divisors(dp, zero == 0 ? 1 : dp)) {
                                                run.train.micro_batch = micro_batch;
                                                p.ep = ep;
                                                p.etp = etp;
                                                run.recompute.policy = recompute;
                                                p.zero = zero;
                                                p.dp_replicate = replicate;
                                                p.dp_shard = dp / replicate;
                                                if (allowed(r, run)) visit(run);
                                            }
                    }
            }
}

class Small : public ::testing::TestWithParam<Request> {};

// Of all layouts without offload none is more than 3 % faster than what the search finds: an estimate decides which
// layouts are priced.
TEST_P(Small, SearchFindsWhatALoopOverEverythingFinds) {
    Request r = GetParam();
    r.cluster.host_bandwidth = 0;
    Pricer pricer(r, target_of(r));
    double best = 1e30;
    int64_t layouts = 0;
    std::string fastest;
    for_each_layout(r, [&](const spec::RunSpec& run) {
        ++layouts;
        const auto price = pricer.price(run, best);
        if (!price || price->bytes > r.cluster.memory) return;
        best = price->seconds;
        fastest = describe_layout(run);
    });
    ASSERT_GT(layouts, 1000);
    const SearchResult found = search_of(r);
    ASSERT_FALSE(found.best.empty());
    EXPECT_LE(found.best.front().seconds, 1.03 * best)
        << fastest << " against " << describe_layout(found.best.front().run);
    const SearchCounts& g = found.counts;
    EXPECT_EQ(g.all, g.unopened + g.rules + g.memory + g.passes + g.estimated);
    EXPECT_GE(g.unopened, 0);
}

TEST_P(Small, CandidatesAreAllowedAndRising) {
    const Request& r = GetParam();
    const SearchResult found = search_of(r);
    double before = 0;
    for (const Candidate& c : found.best) {
        spec::RunSpec run = c.run;
        EXPECT_TRUE(allowed(r, run)) << describe_layout(c.run);
        EXPECT_LE(c.bytes, r.cluster.memory);
        EXPECT_GE(c.seconds, before);
        before = c.seconds;
    }
    ASSERT_FALSE(found.front.empty());
    for (size_t i = 1; i < found.front.size(); ++i) {
        EXPECT_GT(found.front[i].seconds, found.front[i - 1].seconds);
        EXPECT_LT(found.front[i].bytes, found.front[i - 1].bytes);
    }
}

INSTANTIATE_TEST_SUITE_P(Requests, Small,
                         ::testing::Values(on_h100("llama-tiny", 8, 16, 256, 1.3), on_h100("gpt2-124m", 4, 8, 1024, 6),
                                           on_h100("llama3.2-1b", 8, 16, 2048, 40),
                                           on_h100("moe-tiny", 4, 8, 256, 1.2)),
                         [](const auto& each) {
                             std::string name = name_of(each.param.run.model);
                             std::erase_if(name, [](char c) { return !std::isalnum(c); });
                             return name;
                         });

TEST(Rules, StagesAreNearlyEven) {
    EXPECT_TRUE(stages_allowed(126, 16));    // 7, 8 ... 8, 7
    EXPECT_TRUE(stages_allowed(126, 128));   // none on the first and the last
    EXPECT_FALSE(stages_allowed(126, 112));  // 2 for some, 1 for others
    EXPECT_TRUE(stages_allowed(32, 8));
    EXPECT_FALSE(stages_allowed(32, 24));
    EXPECT_FALSE(stages_allowed(4, 8));
}

// One expert takes most tokens: layouts with as many ranks for the experts lose what the fullest waits for.
TEST(Search, GivenLoadsOfExpertsCount) {
    Request even = on_h100("mixtral-8x7b", 64, 128, 4096), uneven = even;
    uneven.expert_loads.assign(to_size(even.run.model.moe.experts), 1);
    uneven.expert_loads.back() = 3;
    Pricer of_even(even, target_of(even)), of_uneven(uneven, target_of(uneven));
    spec::RunSpec run = plain_run(even);
    const double alone = of_even.price(run)->seconds;
    EXPECT_NEAR(of_uneven.price(run)->seconds, alone, 0.1 * alone);  // its products are as many, of other sizes
    run.parallel.ep = 8;
    EXPECT_GT(of_uneven.price(run)->seconds, 1.3 * of_even.price(run)->seconds);
    EXPECT_LE(search_of(even).best.front().seconds, search_of(uneven).best.front().seconds);
}

TEST(Search, OneMoreDeviceThanTheBatchHasSequencesMustGoElsewhere) {
    const SearchResult found = search_of(on_h100("llama-tiny", 8, 4, 256));
    ASSERT_FALSE(found.best.empty());
    for (const Candidate& c : found.best) EXPECT_LE(c.run.parallel.dp_replicate * c.run.parallel.dp_shard, 4);
}

// The ring of all 8192 ranks takes 80 ms of latency for each bucket; groups of 64 do not.
TEST(Search, ManyCopiesOfFewShardsAreFound) {
    Request r = on_h100("llama3-8b", 8192, 8192, 4096);
    spec::RunSpec run = plain_run(r);
    run.parallel.zero = 2;
    run.parallel.dp_replicate = 128;
    run.parallel.dp_shard = 64;
    ASSERT_TRUE(allowed(r, run));
    const auto by_hand = Pricer(r, target_of(r)).price(run);
    ASSERT_LE(by_hand->bytes, r.cluster.memory);
    EXPECT_LE(search_of(r).best.front().seconds, 1.03 * by_hand->seconds);
    r.limits.dp_replicate = {1};
    for (const Candidate& c : search_of(r).best) EXPECT_EQ(c.run.parallel.dp_replicate, 1);
}

// A number of devices that few layouts divide: most are against a rule, and are counted once.
TEST(Search, EachLayoutIsCountedOnce) {
    const SearchCounts g = search_of(on_h100("llama3-8b", 7, 512, 4096)).counts;
    EXPECT_EQ(g.all, g.unopened + g.rules + g.memory + g.passes + g.estimated);
    EXPECT_GE(g.unopened, 0);
    EXPECT_GT(g.rules, 0);
}

TEST(Search, HeldDataParallelismIsKept) {
    Request r = on_h100("llama-tiny", 8, 16, 256);
    for (const char* layout : {"dp 2", "dp 2 x 2", "dp 8"}) {
        r.limits = {};
        hold(r.limits, layout);
        const SearchResult found = search_of(r);
        ASSERT_FALSE(found.best.empty()) << layout;
        for (const Candidate& c : found.best) {
            const spec::ParallelSpec& p = c.run.parallel;
            EXPECT_EQ(p.dp_replicate * p.dp_shard, r.limits.dp.front()) << layout;
            EXPECT_TRUE(Limits::in(r.limits.dp_replicate, p.dp_replicate)) << layout;
        }
    }
}

// 60 microbatches on 8 stages in groups of 8: the last group of 4 deadlocks, and the whole schedule alone shows it.
TEST(Search, AScheduleThatDeadlocksIsPassedOver) {
    Request r = on_h100("llama3-8b", 8, 60, 4096);
    hold(r.limits, "pp 8 interleaved x 4");
    const SearchResult found = search_of(r);
    ASSERT_FALSE(found.best.empty());
    for (const Candidate& c : found.best)
        EXPECT_NO_THROW(schedule::generate("interleaved", {8, 4, static_cast<int>(60 / c.run.train.micro_batch)}));
}

// Kernels of mixtures take 16,777,216 rows: with 8 experts a token, 32 sequences of 65,536. Larger micro batches are
// passed over by the search, by a lecture's layout, and among the changes of a run.
TEST(Search, AMicroBatchThatIsTooLargeForAKernelIsPassedOver) {
    Request r = on_h100("qwen3-30b-a3b", 8, 512, 65536, 4000);
    r.run.model.layers = 2;
    r.run.model.max_positions = r.run.train.seq_len;
    const Finalists found = choose(r, search_of(r), 1, target_of(r));
    ASSERT_FALSE(found.chosen.empty());
    EXPECT_TRUE(field_recipe(r, found.chosen.front()).layout);
    spec::RunSpec run = plain_run(r);
    run.train.micro_batch = 32;
    EXPECT_FALSE(changes(r, rehearsed(r, target_of(r), run), run).empty());
    run.train.micro_batch = 64;
    EXPECT_THROW(rehearsed(r, target_of(r), run), SizeError);
}

// Twice as many sequences and those of the best layout are one change.
TEST(Changes, AreTriedOnce) {
    const Request r = on_h100("llama-tiny", 4, 64, 128);
    const spec::RunSpec run = plain_run(r);
    spec::RunSpec towards = run;
    towards.train.micro_batch = 2;
    std::set<std::string> names;
    for (const Change& change : changes(r, rehearsed(r, target_of(r), run), towards))
        EXPECT_TRUE(names.insert(change.what).second) << change.what;
    EXPECT_EQ(names.count("micro batch 1 -> 2"), 1U);
}

// Of one sequence, too; then several ranks share it.
TEST(Search, ASequenceThatIsTooLongForAKernelIsDivided) {
    Request r = on_h100("qwen3-30b-a3b", 2, 2, 1 << 22, 4000);
    r.run.model.layers = 2;
    r.run.model.max_positions = r.run.train.seq_len;
    const SearchResult found = search_of(r);
    ASSERT_FALSE(found.best.empty());
    for (const Candidate& c : found.best) EXPECT_GT(c.run.parallel.tp * c.run.parallel.cp, 1);
    r.limits.tp = r.limits.cp = {1};
    EXPECT_THROW(search_of(r), SizeError);
}

}  // namespace
}  // namespace tutti::planner::search_test
