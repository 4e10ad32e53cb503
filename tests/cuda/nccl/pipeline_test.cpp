// A pipeline's messages over NCCL start where its program has them, beside what is computed next. NCCL's calls are
// counted: a message that starts only when its result is needed would come later.
#include <gtest/gtest.h>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/engine/algorithms.h"
#include "tutti/engine/testing/tiny.h"
#include "tutti/schedule/schedule.h"

namespace tutti::engine {
namespace {

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

}  // namespace
}  // namespace tutti::engine
