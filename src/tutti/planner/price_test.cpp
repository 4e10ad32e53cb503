// Prices of layouts by probes against whole rehearsals of the same runs.
#include "tutti/planner/price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "tutti/base/error.h"
#include "tutti/planner/finalists.h"
#include "tutti/planner/rules.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {
namespace {

using simulate::Job;

template <class T>
T one_of(std::mt19937& random, const std::vector<T>& values) {
    return values[random() % values.size()];
}

// A layout of the request, drawn from all axes of the search; whether the rules allow it.
bool draw(std::mt19937& random, const Request& r, Job& job) {
    job = plain_job(r);
    job.tp = one_of(random, divisors(r.gpus, 8));
    job.cp = one_of(random, divisors(r.gpus / job.tp, 4));
    const ContextMethod how = one_of(random, context_methods(job.cp));
    job.cp_method = how.method;
    job.cp_ulysses = how.ulysses;
    job.pp = one_of(random, divisors(r.gpus / job.tp / job.cp, 8));
    if (job.pp > 1) {
        const Schedule s = one_of(random, std::vector<Schedule>(schedules().begin(), schedules().end()));
        job.schedule = s.name;
        job.virtual_stages = s.chunks > 0 ? s.chunks : one_of<int>(random, {2, 3, 4});
    }
    if (r.model.moe.experts > 0) {
        job.ep = one_of(random, divisors(r.model.moe.experts, r.gpus));
        job.etp = one_of<int>(random, {1, 1, 2});
    }
    job.micro_batch = one_of<int>(random, {1, 1, 2});
    job.recompute = one_of<simulate::Recompute>(
        random, {simulate::Recompute::none, simulate::Recompute::selective, simulate::Recompute::full});
    job.zero = static_cast<int>(random() % 4);
    if (job.zero > 0) job.dp_replicate = one_of(random, divisors(job.dp(), 4));
    job.offload = {random() % 4 == 0, job.zero == 3 && random() % 4 == 0, random() % 4 == 0};
    return allowed(r, job);
}

TEST(Price, IsThatOfTheRehearsal) {
    std::mt19937 random(20261126);
    std::vector<double> of_time, of_memory;
    std::vector<Request> requests;
    for (const auto& [preset, gpus, batch, seq] :
         {std::tuple("llama3-8b", 32, 128, 4096), std::tuple("llama3.2-1b", 8, 32, 2048),
          std::tuple("qwen3-30b-a3b", 32, 128, 2048), std::tuple("lfm2-1.2b", 16, 64, 4096)}) {
        requests.push_back(
            {spec::preset(preset), hardware::cluster_named("h100"), gpus, batch, seq, "bf16", {"x.bin"}});
        requests.back().model.layers = std::min<int64_t>(requests.back().model.layers, 16);
    }
    for (const Request& r : requests) {
        rehearsal::Target target = *target_of(r);
        target.device.memory_bytes = 0;
        Pricer pricer(r, target);
        int layouts = 0;
        for (int tries = 0; tries < 4000 && layouts < 12; ++tries) {
            Job job;
            if (!draw(random, r, job)) continue;
            const spec::RunSpec run = run_of(r, job);
            try {
                spec::validate(run, r.gpus);
            } catch (const Error&) {
                continue;
            }
            ++layouts;
            const Price price = *pricer.price(run);
            const simulate::RehearsedStep step = simulate::rehearse_on(run, target, r.gpus, r.cluster, {}, false);
            const auto peak = static_cast<double>(step.shown.memory.peak());
            of_time.push_back(price.seconds / step.seconds);
            of_memory.push_back(price.bytes / peak);
            if (std::getenv("TUTTI_SHOW_PRICES") != nullptr)
                std::printf("%-14s time %6.3f  memory %6.3f  %8.3f s %8.2f GB  at %-18s %s\n", name_of(r.model).c_str(),
                            of_time.back(), of_memory.back(), step.seconds, peak / 1e9,
                            step.shown.memory.peak_place.c_str(), describe_layout(job).c_str());
            EXPECT_FALSE(pricer.price(run, 0.999 * price.seconds)) << describe_layout(job);
        }
        EXPECT_GT(layouts, 5) << name_of(r.model);
    }
    // Shares of the layouts within 1 %, 5 % and 15 %.
    const auto within = [](const std::vector<double>& ratios, double tolerance) {
        const auto near = [&](double ratio) { return std::abs(ratio - 1) <= tolerance; };
        return static_cast<double>(std::count_if(ratios.begin(), ratios.end(), near)) /
               static_cast<double>(ratios.size());
    };
    for (const auto& [ratios, one, five, fifteen] :
         {std::tuple(of_time, 0.3, 0.7, 0.94), std::tuple(of_memory, 0.4, 0.7, 0.95)}) {
        EXPECT_GE(within(ratios, 0.01), one);
        EXPECT_GE(within(ratios, 0.05), five);
        EXPECT_GE(within(ratios, 0.15), fifteen);
    }
}

}  // namespace
}  // namespace tutti::planner
