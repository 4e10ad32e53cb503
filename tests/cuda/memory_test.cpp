// Memory that steps take from a GPU, and from an emulated one with kernels of the CPU.
#include "tests/cuda/training_runs.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/batches.h"
#include "tutti/engine/step.h"
#include "tutti/rehearsal/rehearse.h"

namespace tutti::train {
namespace {

class CudaMemory : public CudaTraining {};

// Blocks of a step and of those after it have the places that the rehearsal gave them, in an arena that is taken at
// once.
TEST_F(CudaMemory, IsWhatWasRehearsedAndNoMore) {
    const Settings model = {"model.preset=llama-tiny", "model.width=256",     "model.layers=4",
                            "model.heads=4",           "model.kv_heads=4",    "model.head_dim=64",
                            "model.ffn=1024",          "model.vocab=2048",    "data.tokenizer=\"bytes\"",
                            "train.seq_len=256",       "train.micro_batch=2", "train.global_batch=4"};
    const std::vector<std::pair<int, Settings>> layouts = {
        {1, {}},
        {1, {"recompute.policy=full", "precision.compute=bf16"}},
        {2, {"parallel.zero=3"}},
        {2, {"parallel.zero=3", "recompute.policy=full", "precision.gradients=bf16", "precision.compute=bf16"}},
        {2, {"parallel.zero=2", "recompute.policy=selective"}},
        {2, {"parallel.zero=1", "offload.optimizer=true"}},
        {2, {"parallel.pp=2", "parallel.schedule=zb-v"}},
        {2, {"parallel.pp=2", "parallel.virtual_stages=2", "parallel.schedule=interleaved"}},
        {2, {"parallel.tp=2"}},
        {2, {"parallel.cp=2", "offload.activations=true"}},
    };
    for (const auto& [ranks, set] : layouts) {
        const spec::RunSpec run = options_of("cuda", model + set, ranks).run;
        comm::run_ranks(ranks, engine::world_options(run, ""), [&](comm::World& world) {
            auto machine = engine::machine_of(run, {world.rank(), ranks}, "");
            rehearsal::Target target = rehearsal::target_of(machine);
            target.through_host = !engine::communicates_on_devices(run, world, *machine.device);
            const rehearsal::MemoryPlan plan = rehearsal::rehearse(run, target, ranks, world.rank()).memory;
            EXPECT_EQ(plan.arena > 16 << 20, !run.offload.activations);
            machine.device->memory().open_arena(plan.arena);
            engine::Engine engine(run, world, std::move(machine),
                                  [&](ops::Context& ctx, const engine::BatchShard& share) {
                                      return engine::fixed_batches(ctx, run, share);
                                  });
            for (int64_t step = 1; step <= 3; ++step) {
                engine::train_step(engine, step);
                EXPECT_EQ(engine.device->memory().reserved(), plan.reserved)
                    << (set.empty() ? "" : set.front()) << ", rank " << world.rank() << ", step " << step;
            }
        });
    }
}

}  // namespace
}  // namespace tutti::train
