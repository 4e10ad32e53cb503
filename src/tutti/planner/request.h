// planner/request.h: what a plan is asked for: a model, machines, and the batch of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/constants.h"
#include "tutti/spec/run_spec.h"

namespace tutti::planner {

struct Request {
    spec::ModelSpec model;
    hardware::Cluster cluster;
    int gpus = 1;
    int64_t global_batch = 1, seq_len = 1;  // sequences of a step, tokens of each
    std::string precision = "bf16";         // bf16 | f32 | tf32
    std::vector<std::string> data;          // of the config that is written; [data] train
    std::vector<double> expert_loads = {};  // of each expert, in any unit; {}: what is usual
    simulate::Constants constants = {};     // of the site
};

// A model by the name of a preset, or from the directory of a Hugging Face model. UsageError with the nearest preset.
spec::ModelSpec model_named(const std::string& name_or_directory);

// UsageError: the model cannot be planned for (the family mlp), the sequence is longer than its positions, the cluster
// has no products of this precision.
void check_request(const Request& request);

}  // namespace tutti::planner
