// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024): RMSNorm before each part, rotary positions, grouped-query
// attention, SwiGLU. Its relatives differ in a field of the spec each: Mistral's attention looks back over a window
// (Jiang et al. 2023), Qwen's in some of the layers, Qwen2 has biases on q, k, v (Yang et al. 2024), Qwen3 normalises
// each query and key head (2025). Parameter names are those of Hugging Face's LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM.
#include "tutti/models/decoder.h"
#include "tutti/models/feed_forward.h"
#include "tutti/models/self_attention.h"

namespace tutti::models {

using namespace nn;

namespace {

class LlamaBlock final : public Module {
  public:
    LlamaBlock(const spec::ModelSpec& s, int64_t layer, ops::RopeTable rope)
        : name_(concat("model.layers.", layer)),
          dropout_(s.dropout),
          attention_norm_(make_rms_norm(name_ + ".input_layernorm", s.width, s.norm_eps)),
          attention_(s, layer, name_ + ".self_attn", std::move(rope)),
          mlp_norm_(make_rms_norm(name_ + ".post_attention_layernorm", s.width, s.norm_eps)),
          mlp_(s, layer, name_ + ".mlp") {
        unit.name = name_;
        own_all(unit, attention_norm_, attention_, mlp_norm_, mlp_);
    }

    // x (B, T, C): x += Attention(RMSNorm(x)); x += MLP(RMSNorm(x))
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        const auto [h, normed] = mlp_norm_.of_sum(tape, x, attention(tape, attention_norm_(tape, x), batch));
        return add(tape, h, mlp(tape, normed, batch));
    }

  private:
    Var attention(Tape& tape, const Var& x, const Batch& batch) {
        return dropout(tape, attention_(tape, x, batch), dropout_, batch, name_ + ".attention");
    }
    Var mlp(Tape& tape, const Var& x, const Batch& batch) {
        return dropout(tape, mlp_(tape, x, batch), dropout_, batch, name_ + ".mlp");
    }

    std::string name_;
    double dropout_;
    Norm attention_norm_;
    SelfAttention attention_;
    Norm mlp_norm_;
    FeedForward mlp_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    const ops::RopeTable rope = make_rope_table(ctx, max_positions, rope_frequencies(s), rope_amplitude(s));
    return make_decoder(s, "model.norm", [&](int64_t layer) { return std::make_unique<LlamaBlock>(s, layer, rope); });
}

}  // namespace tutti::models
