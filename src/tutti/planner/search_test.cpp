// The search against a loop over everything; its bounds and its rules against those that they stand for.
#include "tutti/planner/search.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/planner/rules.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"
#include "tutti/simulate/footprint.h"
#include "tutti/simulate/step_time.h"

namespace tutti::planner {
namespace {

using simulate::Job;
using simulate::Recompute;

Request request_for(const char* preset, int gpus, int64_t batch, int64_t seq, double memory_gb = 80) {
    Request r{spec::preset(preset), hardware::cluster_named("h100"), gpus, batch, seq, "bf16", {"x.bin"}};
    r.cluster.memory = memory_gb * 1e9;
    return r;
}

std::vector<ContextMethod> methods_of(int cp) {
    using simulate::Context;
    std::vector<ContextMethod> methods;
    for (int ulysses = 1; ulysses < std::max(cp, 2); ++ulysses)
        for (const Context method : {Context::ring, Context::all_gather})
            if (cp % ulysses == 0 && (cp > 1 || method == Context::ring)) methods.push_back({method, ulysses});
    if (cp > 1) methods.push_back({Context::ulysses, 1});
    return methods;
}

// Every combination of all axes, possible or not.
template <class Visit>
void for_each_layout(const Request& r, Visit visit) {
    Job job = plain_job(r);
    const auto all = divisors(r.gpus, r.gpus);
    std::vector<int> experts = {1}, expert_tp = {1};
    if (job.mixture()) {
        experts = divisors(r.model.moe.experts, r.gpus);
        expert_tp = divisors(r.model.moe.ffn, 8);
    }
    std::vector<std::pair<std::string, int>> pipelines;
    for (const Schedule& s : schedules())
        for (int v = s.chunks > 0 ? s.chunks : 2; v <= (s.chunks > 0 ? s.chunks : r.model.layers + 2); ++v)
            pipelines.emplace_back(s.name, v);
    for (const int tp : all)
        for (const int cp : all)
            for (const int pp : all) {
                if (r.gpus % (tp * cp * pp) != 0) continue;
                job.tp = tp;
                job.cp = cp;
                job.pp = pp;
                for (const ContextMethod& how : methods_of(cp))
                    for (const auto& [name, v] : pipelines) {
                        job.cp_method = how.method;
                        job.cp_ulysses = how.ulysses;
                        if (pp == 1 && name != "1f1b") continue;
                        if (v > 1 && pp * v > r.model.layers + 2 && name == "interleaved") continue;
                        job.schedule = name;
                        job.virtual_stages = v;
                        for (const int micro_batch : divisors(r.global_batch, 64))
                            for (const bool sp : {true, false})
                                for (const int ep : experts)
                                    for (const int etp : expert_tp)
                                        for (const Recompute recompute :
                                             {Recompute::none, Recompute::selective, Recompute::full})
                                            for (int zero = 0; zero < 4; ++zero)
                                                for (const int replicate : divisors(job.dp(), job.dp())) {
                                                    if (tp == 1 && !sp) continue;
                                                    if (zero == 0 && replicate > 1) continue;
                                                    job.micro_batch = micro_batch;
                                                    job.sequence_parallel = sp;
                                                    job.ep = ep;
                                                    job.etp = etp;
                                                    job.recompute = recompute;
                                                    job.zero = zero;
                                                    job.dp_replicate = replicate;
                                                    for (int o = 0; o < (r.cluster.host_bandwidth > 0 ? 8 : 1); ++o) {
                                                        job.offload = {(o & 1) != 0, (o & 2) != 0, (o & 4) != 0};
                                                        if (job.offload.weights && zero < 3) continue;
                                                        if (offload_allowed(r, name, job.offload)) visit(job);
                                                    }
                                                }
                    }
            }
}

struct Loop {
    int64_t all = 0, allowed = 0, fits = 0;
    double best = 1e30;
    std::vector<std::pair<double, double>> points;  // seconds, bytes of all that fit
};

Loop loop_over(const Request& r) {
    Loop loop;
    for_each_layout(r, [&](const Job& job) {
        ++loop.all;
        if (!allowed(r, job)) return;
        ++loop.allowed;
        const double bytes = footprint(job).total();
        if (bytes > r.cluster.memory) return;
        ++loop.fits;
        const double seconds = step_time(job, r.cluster, {}).total();
        loop.best = std::min(loop.best, seconds);
        loop.points.emplace_back(seconds, bytes);
    });
    return loop;
}

class Small : public testing::TestWithParam<Request> {};

TEST_P(Small, SearchFindsWhatALoopOverEverythingFinds) {
    const Request& r = GetParam();
    const Loop loop = loop_over(r);
    ASSERT_GT(loop.fits, 100);
    for (const size_t keep : {1, 200}) {
        const Found found = propose(r, keep);
        ASSERT_FALSE(found.best.empty());
        EXPECT_EQ(found.best.front().seconds, loop.best);  // the same arithmetic, so the same bits
        const Gates& g = found.gates;
        EXPECT_EQ(g.all, loop.all);
        EXPECT_EQ(g.all, g.rules + g.memory + g.flops + g.compute + g.priced);
        // A group of a mixture can be too large for the memory before each replication of its experts is judged.
        if (r.model.moe.experts == 0) {
            EXPECT_EQ(g.all - g.rules, loop.allowed);
        } else {
            EXPECT_GE(g.all - g.rules, loop.allowed);
        }
        EXPECT_LE(g.priced, loop.fits);
        // Each layout of the loop is met by one of the front: no slower, with no more memory than a slice more.
        const double slice = r.cluster.memory / 128;
        for (const auto& [seconds, bytes] : loop.points) {
            const bool met = std::any_of(found.front.begin(), found.front.end(), [&](const Candidate& c) {
                return c.seconds <= seconds && c.bytes <= bytes + slice;
            });
            ASSERT_TRUE(met) << seconds << " s, " << bytes;
        }
    }
}

TEST_P(Small, CandidatesAreAllowedRisingAndPricedAsStepTimeDoes) {
    const Request& r = GetParam();
    const Found found = propose(r);
    double before = 0;
    for (const Candidate& c : found.best) {
        EXPECT_TRUE(allowed(r, c.job)) << describe_layout(c.job);
        EXPECT_EQ(layout_problem(c.job), "");
        EXPECT_EQ(c.seconds, step_time(c.job, r.cluster, {}).total()) << describe_layout(c.job);
        EXPECT_EQ(c.bytes, footprint(c.job).total());
        EXPECT_LE(c.bytes, r.cluster.memory);
        EXPECT_GE(c.seconds, before);
        before = c.seconds;
    }
    for (size_t i = 1; i < found.front.size(); ++i) {
        EXPECT_GT(found.front[i].seconds, found.front[i - 1].seconds);
        EXPECT_LT(found.front[i].bytes, found.front[i - 1].bytes);
    }
}

TEST_P(Small, TheBoundFromFlopsIsNeverAboveTheTime) {
    const Request& r = GetParam();
    const simulate::Physics constants;
    const simulate::StepPricer pricer(plain_job(r), r.cluster, constants);
    double closest = 0;
    for_each_layout(r, [&](const Job& job) {
        if (!allowed(r, job)) return;
        const double bound = pricer.lower_bound(job), seconds = step_time(job, r.cluster, constants).total();
        ASSERT_LE(bound, seconds) << describe_layout(job);
        EXPECT_EQ(pricer.step(job, pricer.pass(job)).total(), seconds);
        closest = std::max(closest, bound / seconds);
    });
    EXPECT_GT(closest, 0.2);  // or it would prune nothing
}

INSTANTIATE_TEST_SUITE_P(Requests, Small,
                         testing::Values(request_for("llama-tiny", 8, 16, 256, 1.3),
                                         request_for("gpt2-124m", 4, 8, 1024, 6),
                                         request_for("llama3.2-1b", 8, 16, 2048, 40),
                                         request_for("moe-tiny", 4, 8, 256, 1.2)),
                         [](const auto& each) {
                             std::string name = name_of(each.param.model);
                             std::erase_if(name, [](char c) { return !std::isalnum(c); });
                             return name;
                         });

// The search asks the predicates of spec::validate() (spec/rules_test.cpp); the pipelines that it and the planner's own
// rules leave have a schedule.
TEST(Rules, PlannedPipelinesHaveASchedule) {
    int64_t planned = 0;
    for (const Request& r : {request_for("llama-tiny", 8, 12, 96), request_for("moe-tiny", 4, 8, 48),
                             request_for("lfm2-tiny", 6, 6, 24), request_for("gpt2-124m", 12, 12, 36)})
        for_each_layout(r, [&](const Job& job) {
            if (job.pp == 1 || job.recompute != Recompute::none || job.dp_replicate > 1 || job.zero > 0 ||
                job.offload.any() || !allowed(r, job))
                return;
            schedule::generate(job.schedule, {job.pp, job.virtual_stages, int(job.microbatches())});
            ++planned;
        });
    EXPECT_GT(planned, 200);
}

TEST(Rules, StagesAreNearlyEven) {
    EXPECT_TRUE(stages_allowed(126, 16));    // 7, 8 ... 8, 7
    EXPECT_TRUE(stages_allowed(126, 128));   // none on the first and the last
    EXPECT_FALSE(stages_allowed(126, 112));  // 2 for some, 1 for others
    EXPECT_TRUE(stages_allowed(32, 8));
    EXPECT_FALSE(stages_allowed(32, 24));
    EXPECT_FALSE(stages_allowed(4, 8));
}

// The closed form's bubble of each schedule of the search, against the schedule's timeline with equal times.
TEST(Rules, SchedulesHaveTheBubbleOfTheirFormula) {
    for (const Schedule& s : schedules())
        for (const int p : {4, 8, 16})
            for (const int rounds : {2, 4}) {
                const int v = s.chunks > 0 ? s.chunks : 4, m = rounds * p;
                ASSERT_TRUE(schedule_allowed(s, p, m));
                Job job;
                job.schedule = s.name;
                job.virtual_stages = v;
                const auto timeline = schedule::simulate<double>(schedule::generate(s.name, {p, v, m}), {});
                const double bubble = (timeline.makespan / (3 * v) - m) / (p - 1);
                EXPECT_NEAR(simulate::bubble_share(job), bubble, 0.06) << s.name << " p " << p << " m " << m;
            }
}

// One expert takes most tokens: layouts with as many ranks for the experts lose what the fullest waits for.
TEST(Search, GivenLoadsOfExpertsCount) {
    Request even = request_for("mixtral-8x7b", 64, 128, 4096), uneven = even;
    even.expert_loads.assign(static_cast<size_t>(even.model.moe.experts), 1);
    uneven.expert_loads = even.expert_loads;
    uneven.expert_loads.back() = double(even.model.moe.experts);
    for (const Candidate& c : propose(uneven).best) {
        EXPECT_EQ(c.job.imbalance, simulate::imbalance_of(uneven.expert_loads, c.job.ep));
        EXPECT_EQ(c.seconds, step_time(c.job, uneven.cluster, {}).total());
        Job balanced = c.job;
        balanced.imbalance = 1;
        const double seconds = step_time(balanced, uneven.cluster, {}).total();
        if (c.job.ep == 1) {
            EXPECT_EQ(c.seconds, seconds);
        } else {
            EXPECT_GT(c.seconds, seconds) << describe_layout(c.job);
        }
    }
    EXPECT_LE(propose(even).best.front().seconds, propose(uneven).best.front().seconds);
}

TEST(Search, OneMoreDeviceThanTheBatchHasSequencesMustGoElsewhere) {
    const Found found = propose(request_for("llama-tiny", 8, 4, 256));
    for (const Candidate& c : found.best) EXPECT_LE(c.job.dp(), 4);
}

}  // namespace
}  // namespace tutti::planner
