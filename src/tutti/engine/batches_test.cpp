// Batches without values have the shapes of those with values.
#include "tutti/engine/batches.h"

#include <gtest/gtest.h>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/tiny.h"

namespace tutti::engine {
namespace {

TEST(Batches, BlankOnesHaveTheShapesOfFixedOnes) {
    struct Case {
        int cp, ulysses;
        const char* documents;
    };
    for (const Case& c : {Case{1, 0, "packed"}, Case{1, 0, "respected"}, Case{2, 0, "respected"},
                          Case{4, 2, "respected"}, Case{4, 2, "packed"}}) {
        spec::RunSpec run = testing::tiny_llama(2, 4);
        run.train.micro_batch = 2;
        run.parallel.cp = c.cp;
        run.parallel.cp_ulysses = c.ulysses;
        run.data.documents = c.documents;
        comm::run_ranks(c.cp, {.timeout_s = 60}, [&](comm::World& world) {
            Engine engine(run, world, machine_of(run, {}, ""), [&](ops::Context& ctx, const BatchShard& share) {
                auto fixed = fixed_batches(ctx, run, share), blank = blank_batches(ctx, run, share);
                const nn::Batch a = fixed->microbatch(1, 0), b = blank->microbatch(1, 0);
                EXPECT_EQ(a.grad_scale, b.grad_scale);
                for (Tensor nn::Batch::*part : {&nn::Batch::tokens, &nn::Batch::targets, &nn::Batch::positions,
                                                &nn::Batch::row_index, &nn::Batch::first_key}) {
                    EXPECT_EQ((a.*part).defined(), (b.*part).defined());
                    if (!(a.*part).defined()) continue;
                    EXPECT_EQ((a.*part).shape(), (b.*part).shape());
                    EXPECT_EQ((a.*part).dtype(), (b.*part).dtype());
                }
                return fixed;
            });
        });
    }
}

}  // namespace
}  // namespace tutti::engine
