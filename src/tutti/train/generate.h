// train/generate.h: text from a checkpoint of a run. Loads model and tokenizer as the run's config names them and
// continues a prompt through the key-value cache. Called by cli/generate.cpp and by the trainer for its sample.
#pragma once

#include <functional>
#include <string>

#include "tutti/models/model.h"

namespace tutti::train {

struct SamplingOptions {
    int64_t max_tokens = 256;  // new ones
    double temperature = 0.8;  // 0: greedy
    int64_t top_k = 0;         // keep the k most likely; 0: all
    double top_p = 1.0;        // then the fewest whose probability reaches p
    uint64_t seed = 1234;
    int64_t vocab = 0;  // ids below this only, those of the tokenizer; 0: all of the model
};

// The next token from logits (V): a pure function of (logits, options, index of the token).
int32_t sample_token(std::vector<float> logits, const SamplingOptions& options, uint64_t index);

// Calls `emit` with each new token as it is made. When the sequence reaches max_positions (the window that the model
// was trained on) all but its newest half is dropped from the context. `prompt` must not be empty.
void generate(ops::Context& ctx, models::Model& model, DType compute, int64_t max_positions,
              const std::vector<int32_t>& prompt, const SamplingOptions& options,
              const std::function<void(int32_t)>& emit);

// A model with weights, ready to run, from a run directory, its checkpoints directory or one step directory. f32 or
// bf16 as the run computed.
struct LoadedModel {
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<models::Model> model;
    DType compute = DType::f32;
    std::string tokenizer;  // data.tokenizer of the run, or its copy in the run directory
    int64_t max_positions = 0;
    int64_t step = 0;
    std::string path;  // of the checkpoint
};
LoadedModel load_model(const std::string& path, int threads);

}  // namespace tutti::train
