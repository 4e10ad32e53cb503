// models/decoder.h: what decoders of the Llama kind have in common: their ends and the list of their modules.
#pragma once

#include <functional>

#include "tutti/models/model.h"
#include "tutti/nn/layers.h"

namespace tutti::models {

// Embedding "model.embed_tokens", spec.layers blocks, and the head behind an RMS norm of this name; the head is
// "lm_head" or, tied, the embedding.
std::vector<std::unique_ptr<Module>> make_decoder(
    const spec::ModelSpec& spec, const char* final_norm,
    const std::function<std::unique_ptr<Module>(int64_t layer)>& make_block);

// The standard deviation of a block's projections into the residual stream: smaller, so that the variance of the stream
// does not grow with depth (Radford et al. 2019).
double residual_std(const spec::ModelSpec& spec);

}  // namespace tutti::models
