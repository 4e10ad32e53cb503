// spec/stages.h: the stages of a run, [[stage]] of the config. Each is a run of its own that differs from the stage
// before in the keys that the stage sets (Field::in_stage says which keys these may be). All stages have the same
// ranks; how these are laid out may change.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// A run for each stage, in order, without stages of its own: its keys, and its place among the steps, the samples and
// the courses of the learning rate of `run`. A run without stages is its only stage.
//
// Samples: of stages with the same training data and seq_len, a later one reads on where the earlier one stopped.
// Learning rate: a stage that sets none of lr, min_lr, schedule, warmup_steps and decay_steps goes on with the course
// of the stage before. Any of these keys begins a new course, whose step 1 is the first of the stage and whose end is
// that of the last stage before the next new course; its warm-up rises from the rate of the step before it.
std::vector<RunSpec> stages_of(const RunSpec& run);

// The index of the stage that makes step `step`, from 1; of later steps the last one.
size_t stage_at(const std::vector<RunSpec>& stages, int64_t step);

// The last step of a stage, or of a run without stages.
inline int64_t last_step(const RunSpec& stage) { return stage.place.last > 0 ? stage.place.last : stage.train.steps; }

// "stage 2" and "until step 1500: train.seq_len = 8192, optimizer.lr = 1e-4"; "" of a run without stages.
std::string stage_name(const RunSpec& stage);
std::string stage_text(const RunSpec& run, size_t stage);
// The same behind "stage 2 of 3, ", and its keys alone.
std::string stage_status(const RunSpec& run, size_t stage);
std::string stage_keys_text(const RunSpec& run, size_t stage);  // "train.seq_len = 8192, optimizer.lr = 1e-4"

// "stage 2: " and the message, of a stage.
std::string of_stage(const RunSpec& stage, const std::string& message);

// The keys that a stage may set: "model.rope_theta", ....
std::vector<std::string> stage_keys();

// The keys of a layout: those of [parallel], [recompute] and [offload] that a stage may set, and train.micro_batch. A
// layout spreads a step over ranks, passes and memory, and changes its values by rounding alone.
std::map<std::string, StageSpec::Value> layout_keys(const RunSpec& run);
// `run`, each of whose stages, in the order of stages_of(run), has the layout of the one in `stages`.
RunSpec with_layouts(RunSpec run, const std::vector<RunSpec>& stages);

// The stage with the longest sequences, and of these that with the most in a step: a layout is planned for it.
RunSpec longest_stage(const RunSpec& run);

// Whether stages `a` and `b` differ in nothing but the data, the learning rate and their places, none of which changes
// a tensor of a step: one engine makes the steps of both.
bool have_equal_steps(RunSpec a, const RunSpec& b);

}  // namespace tutti::spec
