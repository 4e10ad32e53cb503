// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024): RMSNorm before each part, rotary positions, grouped-query
// attention, SwiGLU. Its relatives differ in a field of the spec each: Mistral's attention looks back over a window
// (Jiang et al. 2023), Qwen's in some of the layers, Qwen2 has biases on q, k, v (Yang et al. 2024), Qwen3 normalises
// each query and key head (2025). Parameter names are those of Hugging Face's LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM.
#include "tutti/models/decoder.h"
#include "tutti/models/pre_norm_block.h"
#include "tutti/models/self_attention.h"
#include "tutti/spec/hf_config.h"

namespace tutti::models {

using namespace nn;

std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    const ops::RopeTable rope = make_rope_table(ctx, max_positions, rope_frequencies(s), rope_amplitude(s));
    return make_decoder(s, "model.norm", [&](int64_t layer) {
        const std::string name = concat("model.layers.", layer);
        const FeedForwardNames mlp{.part = name + ".mlp"}, mixtral{name + ".block_sparse_moe", "w1", "w3", "w2"};
        return std::make_unique<PreNormBlock<SelfAttention>>(
            s, name, PreNormNames{"input_layernorm", "attention", "post_attention_layernorm", "mlp"},
            SelfAttention(s, layer, name + ".self_attn", rope),
            FeedForward(s, layer, mlp, spec::is_mixtral(s) ? mixtral : mlp));
    });
}

}  // namespace tutti::models
