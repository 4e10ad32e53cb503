// models/decoder.h: common parts of decoders: their first and last modules, and the list of all modules.
#pragma once

#include <functional>

#include "tutti/models/model.h"

namespace tutti::models {

using MakeBlock = std::function<std::unique_ptr<Module>(int64_t layer)>;

// `embedding`, whose first parameter is the token matrix (V, C), spec.layers blocks, and the head after `norm`; the
// head is "lm_head" or, tied, the token matrix. The last module also predicts later tokens (models/later_token.h), by
// blocks numbered from spec.layers on.
std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& spec, std::unique_ptr<Module> embedding,
                                                  const MakeBlock& make_block, nn::Norm norm);
// The same with an embedding and an RMS norm of these names.
std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& spec, const std::string& embedding,
                                                  const std::string& final_norm, const MakeBlock& make_block);

// In files the parameters are rows of one tensor, in this order; with several groups each is cut in so many equal
// blocks of rows, and the first blocks of all parameters come before the second ones.
void store_as_rows(const std::vector<nn::Parameter*>& parameters, const std::string& tensor, int64_t groups = 1);

// The standard deviation of a block's projections into the residual stream: smaller, so that the variance of the stream
// does not grow with depth (Radford et al. 2019).
double residual_std(const spec::ModelSpec& spec);

}  // namespace tutti::models
