// infer/generate.h: texts from a model: prompts continued through key-value caches, several at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/models/model.h"

namespace tutti::infer {

struct SamplingOptions {
    int64_t max_tokens = 256;  // new ones of each prompt
    double temperature = 0.8;  // 0: greedy
    int64_t top_k = 0;         // keep the k most likely, and what is as likely as the k-th; 0: all
    double top_p = 1.0;        // then the fewest whose probability reaches p, and what is as likely as the last
    uint64_t seed = 1234;
    int64_t vocab = 0;                 // ids below this only, those of the tokenizer; 0: all of the model
    int64_t max_positions = 0;         // the window that the model was trained on
    size_t batch = 16;                 // prompts in one forward
    std::vector<int32_t> stop_tokens;  // end a text and are not part of it
};

// The next token of each sequence of a batch, by draw draws[i] of `how`: on every rank that generates.
using NextTokens = std::function<std::vector<int32_t>(const nn::Batch& batch, const std::vector<int64_t>& draws,
                                                      const kernels::Sample& how)>;
// The same from logits (B, V) of the last positions.
std::vector<int32_t> sample_tokens(ops::Context& ctx, const Tensor& logits, const std::vector<int64_t>& draws,
                                   const kernels::Sample& how);

enum class Ended { length, stop_token, stopped };  // stopped: emit said so

// Called with the index of the prompt and each new token as it is made. False ends that text.
using EmitToken = std::function<bool(size_t prompt, int32_t token)>;

// Continues each prompt as if it were alone: no padding, a cache for each, several of them in one forward. A text that
// reaches max_positions loses all but the newest half of its context. UsageError for a prompt that is empty or longer
// than max_positions. Returns how each ended.
// Of a model that ranks share out, all of them call it alike and make the same texts; sequence parallelism pauses,
// since one token has no parts. `next` may be empty: the model's forward on this rank.
std::vector<Ended> generate(ops::Context& ctx, models::Model& model, const std::vector<std::vector<int32_t>>& prompts,
                            const SamplingOptions& options, const EmitToken& emit, const NextTokens& next = {});

}  // namespace tutti::infer
