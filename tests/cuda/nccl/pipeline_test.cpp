// A pipeline's messages over NCCL start where its program has them, beside what is computed next, and no layout depends
// on the number of the hardware's queues.
#include <gtest/gtest.h>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/engine/algorithms.h"
#include "tutti/engine/testing/tiny.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/schedule.h"

namespace tutti::engine {
namespace {

// NCCL's calls are counted: a message that starts only when its result is needed would come later.
TEST(NcclPipeline, AReceiveBeginsBeforeTheNextComputation) {
    comm::fake_nccl();
    for (const char* schedule : {"1f1b", "gpipe"}) {
        spec::RunSpec run = testing::tiny_llama(4, 8);
        run.train.device = "cuda";
        run.parallel.pp = 2;
        run.parallel.schedule = schedule;
        comm::run_ranks(2, {.timeout_s = 60, .watched = true}, [&](comm::World& world) {
            Engine engine(run, world, machine_of(run, {world.rank(), world.size()}, ""),
                          [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
            train_step(engine, 1);  // connects the ranks
            const schedule::Program& program = engine.pipeline.program();
            std::vector<int64_t> expected, seen;  // messages before each computation
            int64_t messages = 0, received_early = 0;
            for (size_t i = 0; i < program.size(); ++i) {
                messages += schedule::is_message(program[i].op);
                if (!schedule::is_compute(program[i].op)) continue;
                expected.push_back(messages);
                // A receive whose message is not this computation's.
                received_early += i > 0 && schedule::is_message(program[i - 1].op) &&
                                  !schedule::is_send(program[i - 1].op) && program[i - 1].work() != program[i].work();
            }
            StepTrace trace(nullptr, *engine.device, false, *engine.data_parallel);
            engine.data_parallel->begin_step(microbatches_of(engine.pipeline));
            const int64_t before = comm::fake_nccl().messages();
            run_passes(engine, trace, batches_of(engine, 1),
                       [&](const schedule::Action&) { seen.push_back(comm::fake_nccl().messages() - before); });
            EXPECT_EQ(seen, expected) << schedule << ", rank " << world.rank();
            EXPECT_TRUE(received_early > 0 || world.rank() == 0 || schedule != std::string("1f1b"));
            engine.data_parallel->finish_gradients();
        });
    }
}

// What a rank was given first never waits for what it was given later: the programs of a pipeline are parts of one
// order (schedule/lowering.h), and the ranks of other groups run one program. So streams may share their queues.
TEST(NcclPipeline, NothingHangsWhereAllStreamsShareAQueue) {
    comm::fake_nccl();
    const comm::UnderRules rules({.alone = true, .hardware_queues = 1});
    const auto expect_steps = [](const spec::RunSpec& run, int ranks) {
        SCOPED_TRACE(concat(run.parallel.schedule, ", pp ", run.parallel.pp, ", zero ", run.parallel.zero, ", ", ranks,
                            " ranks"));
        EXPECT_NO_THROW(comm::run_ranks(ranks, {.timeout_s = 60, .watched = true}, [&](comm::World& world) {
            Engine engine(run, world, machine_of(run, {world.rank(), world.size()}, ""),
                          [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); });
            for (int step = 1; step <= 2; ++step) train_step(engine, step);
        }));
    };
    const auto tiny = [](int layers, int microbatches) {
        spec::RunSpec run = testing::tiny_llama(layers, microbatches);
        run.train.device = "cuda";
        return run;
    };
    for (const schedule::Kind& kind : schedule::kinds()) {
        spec::RunSpec run = tiny(8, 8);
        run.parallel.pp = 4;
        run.parallel.schedule = kind.name;
        run.parallel.virtual_stages = kind.chunks == 0 ? 2 : 1;
        expect_steps(run, 4);
        run.parallel.pp = 2;
        run.train.global_batch *= 2;
        expect_steps(run, 4);  // two replicas
    }
    for (const int zero : {2, 3}) {
        spec::RunSpec run = tiny(4, 16);
        run.parallel.zero = zero;
        run.parallel.pp = run.parallel.tp = 2;
        expect_steps(run, 8);
        run.parallel.pp = run.parallel.tp = 1;
        run.parallel.cp = 2;
        expect_steps(run, 4);
    }
}

}  // namespace
}  // namespace tutti::engine
