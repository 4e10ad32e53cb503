// pipeline/stages.h: the distribution of a model's modules over the stages of a pipeline, and of stages over ranks.
#pragma once

#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/models/model.h"
#include "tutti/schedule/timeline.h"
#include "tutti/spec/run_spec.h"

namespace tutti::pipeline {

using Span = models::Model::Span;

// One stage of one replica on this rank.
struct ModelChunk {
    int replica = 0, stage = 0;
    Span span;
    int64_t microbatches = 0;  // forwards and backwards of a step
};

struct Pipeline {
    schedule::Schedule schedule;  // of a step, with messages; with unshard and reshard if whole stages are unsharded
    std::vector<Span> spans;      // of the model's modules, by stage
    int rank = 0;                 // this rank's position along pp
    int unsharded_stages = 0;     // ParallelSpec::unsharded_stages

    // Whether some W is separate from its I, so that ZeRO-3 may free weights before the W.
    bool delays_weight_gradients() const;
    int stages() const { return schedule.placement.stages; }
    // The chunks of this rank, by stage.
    std::vector<ModelChunk> chunks() const;
    const schedule::Program& program() const { return schedule.programs[to_size(rank)]; }
    // Only the forwards of `microbatches` batches through the first replica: evaluation, generation.
    schedule::Program forward_program(int microbatches) const;
};

// The pipeline of [parallel] for `model`, whose parameters need no memory. UsageError for a schedule that does not
// exist for these numbers of ranks, stages and microbatches, a CSV file that is not a schedule for them, more stages
// than layers, or a stage_layers that does not fit.
Pipeline make_pipeline(const spec::RunSpec& run, const models::Model& model, int64_t microbatches, int rank);

// FLOPs of a token in the forward of each module: what make_pipeline() balances.
std::vector<double> forward_costs(const models::Model& model, int64_t seq_len);

// Contiguous parts of modules with the given costs, each with at least one module that is neither the first nor the
// last, so that the most expensive part costs as little as possible. UsageError with more parts than such modules.
std::vector<Span> balanced(const std::vector<double>& costs, int parts);

// Times of F, I and W of each stage by the FLOPs of its modules; F of a layer is 1 on average. The products of matrices
// whose gradient the forward takes (the head's) are all in F; recomputed layers run again in I.
schedule::Times<double> estimated_times(const spec::RunSpec& run, const models::Model& model,
                                        const std::vector<Span>& spans);

// Sets Parameter::pipeline_ranks of parameters on several ranks: a matrix tied between stages, replicas.
void share_between_stages(const Pipeline& pipeline, models::Model& model);

}  // namespace tutti::pipeline
