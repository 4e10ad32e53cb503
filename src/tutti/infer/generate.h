// infer/generate.h: continues prompts with a model through key-value caches, several prompts at once.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tutti/models/model.h"

namespace tutti::infer {

struct SamplingOptions {
    int64_t max_tokens = 256;  // new tokens of each prompt, at least 1
    double temperature = 0.8;  // 0: greedy
    int64_t top_k = 0;         // keep the k most likely tokens, and those as likely as the k-th; 0: all
    double top_p = 1.0;        // then the fewest whose probability reaches p, and those as likely as the last
    uint64_t seed = 1234;
    int64_t vocab = 0;                 // ids below this only, those of the tokenizer; 0: all of the model
    int64_t max_positions = 0;         // context length of the model's training
    size_t batch = 16;                 // prompts in one forward, at least 1
    std::vector<int32_t> stop_tokens;  // end a text and are not part of it
};

// Returns the next token of each sequence of a batch, with random draw draws[i] of `how`. Runs on every generating
// rank.
using NextTokens = std::function<std::vector<int32_t>(const nn::Batch& batch, const std::vector<int64_t>& draws,
                                                      const kernels::Sample& how)>;
// The same from logits (B, V) of the last positions.
std::vector<int32_t> sample_tokens(ops::Context& ctx, const Tensor& logits, const std::vector<int64_t>& draws,
                                   const kernels::Sample& how);

enum class Ended { length, stop_token, stopped };  // stopped: emit returned false

// Called with the index of the prompt and each new token as it is generated. False ends that text.
using EmitToken = std::function<bool(size_t prompt, int32_t token)>;

// A text and the keys and values of its tokens, which the next text need not compute where it begins in the same way.
struct KeptText {
    std::vector<int32_t> tokens;  // as many as the cache holds
    std::optional<nn::KvCache> cache;
    int64_t reused = 0;  // tokens of the newest prompt whose keys were there
};

// Continues each prompt as if it were alone: no padding, a cache for each, several prompts in one forward. A text that
// reaches max_positions loses all but the newest half of its context. UsageError for an option out of range, and for a
// prompt that is empty or longer than max_positions. Returns how each text ended.
// All ranks of a tensor-parallel model make the same call and generate the same texts; sequence parallelism is off,
// since one token cannot be divided. `next` empty: the model's forward on this rank. `kept`: of the only prompt, read
// and replaced.
std::vector<Ended> generate(ops::Context& ctx, models::Model& model, const std::vector<std::vector<int32_t>>& prompts,
                            const SamplingOptions& options, const EmitToken& emit, const NextTokens& next = {},
                            KeptText* kept = nullptr);

// ln P(tokens[i + 1] | tokens[0..i]) for each i, over the model's whole vocabulary: the negated losses of the training
// forward on these tokens, to the bit. (The forwards of generate() have other shapes, whose products may round
// otherwise: in f32 about 1e-6.) All ranks of a tensor-parallel model make the same call.
std::vector<float> log_probabilities(ops::Context& ctx, models::Model& model, const std::vector<int32_t>& tokens);

}  // namespace tutti::infer
