// planner/request.h: the request for a plan: a model, machines, and the batch of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/physics.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

struct Request {
    spec::ModelSpec model;
    hardware::Cluster cluster;
    int gpus = 1;
    int64_t global_batch = 1, seq_len = 1;  // sequences of a step, tokens of each
    std::string precision = "bf16";         // bf16 | f32 | tf32
    std::vector<std::string> data;          // [data] train of the emitted config
    std::vector<double> expert_loads = {};  // of each expert, in any unit; {}: the usual imbalance
    simulate::Physics constants = {};       // of the site
};

// A model by the name of a preset, or from the directory of a Hugging Face model. UsageError with the nearest preset.
spec::ModelSpec model_named(const std::string& name_or_directory);

// UsageError for the family mlp, a sequence longer than the model's positions, and a cluster that lacks the precision.
void check_request(const Request& request);

}  // namespace tutti::planner
