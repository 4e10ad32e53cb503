// engine/passes.cpp: the passes of a step and their batches, for every algorithm (algorithms.h), and of an evaluation.
#include <limits>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"
#include "tutti/engine/algorithms.h"
#include "tutti/ops/ops.h"

namespace tutti::engine {

namespace {

using MakeBatch = pipeline::Executor::MakeBatch;

// The batch for this rank's layers, which may have only some of its rows and may divide its sequences with others.
nn::Batch localize(Engine& s, nn::Batch batch) {
    const spec::ParallelSpec& p = s.run.parallel;
    if (p.tp > 1 && p.sequence_parallel) {  // for dropout, which is between the products
        const comm::Communicator& tp = s.groups.over(mesh::kTp);
        batch.row_index = nn::rows_of(batch.row_index, tp.rank(), tp.size());
    }
    batch.context = context_of(s.groups, p.cp_method == "all_gather");
    batch.routing = s.routers;
    return batch;
}

// Ranks of one tensor-parallel group compute the same losses: one of them counts them.
bool counts_losses(const Engine& s) { return s.groups.coordinate(mesh::kTp) == 0; }

// A recorded microbatch is a forward and its backward, on one rank without a pipeline.
template <class Run>
void run_recorded(Engine& s, const MakeBatch& batch, const Run& run) {
    const schedule::Program& program = s.pipeline.program();
    for (size_t i = 0; i < program.size(); i += 2) {
        const schedule::Program both = {program[i], program[i + 1]};
        const nn::Batch inputs = batch(program[i].microbatch);
        if (s.ctx.meter != nullptr && s.ctx.meter->needs_single_launches())
            run(both, [&](int64_t) { return inputs; });
        else
            s.graph->run(inputs, [&](const nn::Batch& kept) { run(both, [&](int64_t) { return kept; }); });
    }
}

}  // namespace

std::vector<int64_t> microbatches_of(const pipeline::Pipeline& pipeline) {
    std::vector<int64_t> of_chunks;
    for (const pipeline::ModelChunk& chunk : pipeline.chunks()) of_chunks.push_back(chunk.microbatches);
    return of_chunks;
}

MakeBatch batches_of(Engine& s, int64_t step) {
    return [&s, step](int64_t index) {
        const TraceScope span(s.trace, {Activity::data, "data"});
        const spec::TrainSpec& train = s.run.train;
        nn::Batch batch = localize(s, s.batches->microbatch(step, index));
        batch.seed = static_cast<uint64_t>(train.seed);
        batch.step = static_cast<uint64_t>(step);
        batch.loss_scale = static_cast<float>(s.loss_scale.value);
        batch.grad_scale *= batch.loss_scale;
        batch.share = static_cast<float>(train.micro_batch) / static_cast<float>(train.global_batch);
        if (counts_losses(s))
            batch.later_losses = [&s](int64_t k, const Tensor& losses) { s.later_losses[to_size(k)].add(losses); };
        if (s.routing) {
            batch.routing.record = &*s.routing;
            batch.routing.index = index;
        }
        return batch;
    };
}

void run_passes(Engine& s, StepTrace& trace, const MakeBatch& batch, const AroundPass& before,
                const AroundPass& after) {
    if (s.routing) s.routing->begin();
    const auto add_losses = [&s](int64_t, const nn::Batch&, const Tensor& losses) {
        if (counts_losses(s)) s.losses.add(losses);
    };
    const bool balances_all_layers = s.run.model.moe.aux_loss == "all_layers" && s.routing;
    const auto run = [&](const schedule::Program& program, const MakeBatch& of) {
        s.executor.run(program, {.hooks = trace.hooks(),
                                 .batch = of,
                                 .output = add_losses,
                                 .weights = s.data_parallel.get(),
                                 .before = before,
                                 .after = after,
                                 .trace = s.trace,
                                 .routing = balances_all_layers ? &*s.routing : nullptr});
    };
    if (s.graph)
        run_recorded(s, batch, run);
    else
        run(s.pipeline.program(), batch);
}

std::optional<double> evaluate(Engine& s, Batches& source, int64_t batches, const std::function<bool()>& is_stopped) {
    ops::Sum losses(s.ctx);
    ExactSum rows;
    const comm::Communicator& dp = s.groups.over(mesh::kDp);
    const int64_t rank = dp.rank(), ranks = dp.size(), rounds = ceil_div(batches, ranks);
    // In parts between which a stop is heard: of 8 rounds for each stage, so that filling a pipeline costs a ninth.
    const int64_t part = 8 * s.pipeline.stages();
    for (int64_t first = 0; first < rounds; first += part) {
        if (first > 0 && is_stopped && is_stopped()) return std::nullopt;
        const auto batch = [&](int64_t i) { return localize(s, source.microbatch(first + i + 1, 0)); };
        const auto take = [&](int64_t i, const nn::Batch& of, const Tensor& y) {
            // Otherwise this rank only takes part in the collectives.
            if ((first + i) * ranks + rank >= batches || !counts_losses(s)) return;
            losses.add(y);
            for (int32_t target : of.targets.to_host<int32_t>()) rows.add(target >= 0 ? 1 : 0);
        };
        s.executor.run(s.pipeline.forward_program(static_cast<int>(std::min(part, rounds - first))),
                       {.training = false,
                        .hooks = *s.data_parallel,
                        .batch = batch,
                        .output = take,
                        .weights = s.data_parallel.get()});
    }
    s.data_parallel->free_idle_weights();  // the next step gathers as a first one does
    ExactSum loss = losses.take();
    s.groups.world().sum(loss);
    s.groups.world().sum(rows);
    return rows.value() > 0 ? loss.value() / rows.value() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tutti::engine
