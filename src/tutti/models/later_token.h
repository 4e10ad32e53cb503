// models/later_token.h: multi-token prediction (DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 2.2): depth k
// predicts the token k + 1 places ahead, from the representation of depth k - 1 and the embedding of the token k places
// ahead, with the model's own embedding and head. Names of parameters: spec::later_names().
#pragma once

#include <memory>
#include <vector>

#include "tutti/nn/layers.h"
#include "tutti/spec/model_spec.h"

namespace tutti::models {

// h^k = blocks(W [N_e(e); N_h(h^(k-1))]), and N(h^k), which the head reads. h^0 is what the model's head reads, the
// result of the last norm, as in the public implementations (vllm/model_executor/models/deepseek_mtp.py,
// megatron/core/transformer/multi_token_prediction.py). Must not be moved once a unit owns it.
class LaterToken {
  public:
    // Of depth `k` + 1; `blocks`: its layers, made with the numbers from spec.layers + k spec::layers_of_a_depth() on.
    LaterToken(const spec::ModelSpec& spec, int64_t k, std::vector<std::unique_ptr<nn::Module>> blocks);

    // h, embeddings and the result (B, T, C).
    nn::Var operator()(nn::Tape& tape, const nn::Var& h, const nn::Var& embeddings, const nn::Batch& batch);
    nn::Var for_head(nn::Tape& tape, const nn::Var& h) { return norm_(tape, h); }

  private:
    friend void own(autograd::Unit& unit, LaterToken& part);
    nn::Norm of_embedding_, of_hidden_, norm_;
    nn::Linear projection_;  // (C, 2 C)
    std::vector<std::unique_ptr<nn::Module>> blocks_;
};

}  // namespace tutti::models
