// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024): RMSNorm before each part, rotary positions, grouped-query
// attention, SwiGLU. Its relatives differ in fields of the spec: Mistral's attention looks back over a window (Jiang et
// al. 2023), Qwen's in some of the layers, Qwen2 has biases on q, k, v (Yang et al. 2024), Qwen3 normalises each query
// and key head (2025), Qwen3-Next has the gated delta rule in most of the layers; DeepSeek-V2, V3 and their relatives
// make keys and values from a latent; spec/variants.h has the others. Parameter names are those of Hugging Face's
// LlamaForCausalLM and of the relative's own class.
#include "tutti/models/decoder.h"
#include "tutti/models/delta_rule.h"
#include "tutti/models/latent_attention.h"
#include "tutti/models/residual_block.h"
#include "tutti/models/self_attention.h"
#include "tutti/spec/hf_config.h"
#include "tutti/spec/variants.h"

namespace tutti::models {

using namespace nn;

std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    RopeOfLayers rope(ctx, max_positions);
    const spec::Variant& in_files = spec::variant_of(s);
    // Without a norm behind attention its name is that of the norm before the MLP.
    const BlockNames names{.before_mixer = in_files.before_attention,
                           .before_feed_forward = s.norms == "pre" ? "post_attention_layernorm" : in_files.before_mlp,
                           .mixer = "attention",
                           .feed_forward = "mlp",
                           .behind_mixer = in_files.behind_attention,
                           .behind_feed_forward = in_files.behind_mlp};
    const SelfAttentionNames of_attention{.fused = in_files.fused_qkv ? "qkv_proj" : nullptr, .gate = "q_proj"};
    return make_decoder(s, "model.norm", [&](int64_t layer) -> std::unique_ptr<Module> {
        const std::string name = concat("model.layers.", layer);
        const FeedForwardNames mlp{.part = name + ".mlp",
                                   .fused = in_files.fused_gate_up ? "gate_up_proj" : nullptr,
                                   .shared = in_files.shared_expert,
                                   .bias = in_files.expert_bias,
                                   .router = in_files.router,
                                   .together = in_files.experts_together};
        const FeedForwardNames mixtral{name + ".block_sparse_moe", "w1", "w3", "w2"};
        FeedForward feed_forward(s, layer, mlp, spec::is_mixtral(s) ? mixtral : mlp);
        const spec::LayerSpec of_layer = spec::layer(s, layer);
        if (of_layer.delta())
            return std::make_unique<ResidualBlock<DeltaRule>>(
                s, layer, name, names, DeltaRule(s, layer, name + ".linear_attn", in_files.delta_by_key_head),
                std::move(feed_forward));
        const RopeTables tables = rope.of(of_layer.attention()->rope);
        const std::string attention = name + ".self_attn";
        if (of_layer.attention()->latent)
            return std::make_unique<ResidualBlock<LatentAttention>>(
                s, layer, name, names, LatentAttention(s, layer, attention, tables), std::move(feed_forward));
        return std::make_unique<ResidualBlock<SelfAttention>>(
            s, layer, name, names, SelfAttention(s, layer, attention, tables, of_attention), std::move(feed_forward));
    });
}

}  // namespace tutti::models
