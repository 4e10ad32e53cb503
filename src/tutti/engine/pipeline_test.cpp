// Pipelines with messages that come late, and what a schedule must be before anything runs.
#include <gtest/gtest.h>

#include <random>

#include "tutti/base/testing/draws.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/testing/delayed_world.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/tiny.h"
#include "tutti/schedule/generators.h"

namespace tutti::engine::pipeline_test {
namespace {

using testing::tiny_llama;
using tutti::testing::draws;

struct Outcome {
    double loss = 0, norm = 0;  // exact sums: equal bits mean equal terms
    bool operator==(const Outcome&) const = default;
};

// Loss and gradient norm of the first step. `delay_us` > 0: operations begin up to so much later, at random by `seed`.
Outcome step(const spec::RunSpec& run, int ranks, unsigned seed = 0, int delay_us = 0) {
    Outcome outcome;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& plain) {
        comm::testing::DelayedWorld delayed(plain, seed, std::max(delay_us, 1));
        comm::World& world = delay_us > 0 ? delayed : plain;
        Engine engine(run, world, machine_of(run, {}, ""),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
        const StepResult r = train_step(engine, 1);
        const pipeline::Executor::Seconds seconds = engine.executor.seconds();
        EXPECT_GT(seconds.busy, 0);
        EXPECT_LT(seconds.busy, seconds.whole);
        if (world.rank() == 0) outcome = {r.loss, r.grad_norm};
    });
    return outcome;
}

// No deadlock, no wrong value, whenever messages come.
TEST(Pipeline, RunsWithRandomDelays) {
    std::mt19937 random(1);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int runs = draws(200, 1000);
    std::map<int64_t, Outcome> one_rank;
    for (int i = 0; i < runs; ++i) {
        const schedule::Kind& kind = schedule::kinds()[to_size(i) % schedule::kinds().size()];
        const int p = any(2) == 0 ? 2 : 4, m = 2 * p * (1 + any(2));
        spec::RunSpec run = tiny_llama(8, m);
        if (!one_rank.contains(m)) one_rank[m] = step(run, 1);
        run.parallel.pp = p;
        run.parallel.schedule = kind.name;
        run.parallel.virtual_stages = kind.chunks == 0 ? 2 : 1;
        const Outcome many = step(run, p, static_cast<unsigned>(i), 30);
        const auto where = [&] { return concat(kind.name, ", ", p, " ranks, ", m, " microbatches, run ", i); };
        EXPECT_EQ(many.loss, one_rank[m].loss) << where();
        if (schedule::generate(kind.name, {.ranks = p, .chunks = kind.chunks == 0 ? 2 : 1, .microbatches = m})
                .ascending &&
            kind.name != "chimera" && kind.name != "dualpipe")
            EXPECT_EQ(many.norm, one_rank[m].norm) << where();
        else
            EXPECT_NEAR(many.norm, one_rank[m].norm, 1e-6 * one_rank[m].norm) << where();
    }
}

// The units of an overlap's forward and backward alternate, a forward first; with recompute, runs of two blocks do.
TEST(Pipeline, OverlappedPassesTakeTurns) {
    for (const int64_t segment : {0, 2}) {
        spec::RunSpec run = tiny_llama(16, 4);
        run.parallel.pp = 2;
        run.parallel.schedule = "dualpipe-v";
        if (segment > 0) run.recompute.policy = concat("every:", segment);
        comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
            Engine engine(run, world, machine_of(run, {}, ""),
                          [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
            Trace trace(10000);
            trace.open(1);
            engine.trace = &trace;
            train_step(engine, 1);
            int overlaps = 0;
            for (size_t i = 0; i < trace.size(); ++i) {
                const Trace::Span cell = trace.span(i);
                if (cell.what.activity != Activity::action || !cell.what.name.starts_with('(')) continue;
                ++overlaps;
                std::string turns;
                for (size_t j = i + 1; j < trace.size() && trace.span(j).begin_ns < cell.end_ns; ++j)
                    if (const Trace::Span unit = trace.span(j); unit.what.activity == Activity::compute)
                        turns += unit.what.name[0];
                // Four blocks a stage; stage 0 has the embedding too, stage 3 the head, both on rank 0. B of recomputed
                // blocks runs their forward once more: "recompute".
                const std::string blocks = segment == 0 ? "fbfbfbfb" : "ffrrbbffrrbb";
                const bool head_first = cell.what.name.starts_with("(0F");
                const std::string expected = world.rank() == 1 ? blocks : head_first ? "fb" + blocks : blocks + "fb";
                EXPECT_EQ(turns, expected) << cell.what.name;
            }
            EXPECT_GT(overlaps, 0);
        });
    }
}

}  // namespace
}  // namespace tutti::engine::pipeline_test
