// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024): RMSNorm before each part, rotary positions, grouped-query
// attention, SwiGLU. Its relatives differ in fields of the spec: Mistral's attention looks back over a window (Jiang et
// al. 2023), Qwen's in some of the layers, Qwen2 has biases on q, k, v (Yang et al. 2024), Qwen3 normalises each query
// and key head (2025), Qwen3-Next has the gated delta rule in most of the layers; DeepSeek-V2, V3 and their relatives
// make keys and values from a latent; Granite 4, Nemotron-H and Falcon-H1 have Mamba-2's scan in place of attention,
// beside it, or as a layer of its own; spec/variants.h has the others. Parameter names are those of Hugging Face's
// LlamaForCausalLM and of the relative's own class.
#include "tutti/base/to_size.h"
#include "tutti/models/decoder.h"
#include "tutti/models/delta_rule.h"
#include "tutti/models/latent_attention.h"
#include "tutti/models/mamba2.h"
#include "tutti/models/residual_block.h"
#include "tutti/models/self_attention.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/later_names.h"
#include "tutti/spec/variants.h"

namespace tutti::models {

using namespace nn;

namespace {

constexpr const char* kPart = "mixer";  // of a layer that is one part (Nemotron-H), whatever it is

// Attention and the scan side by side, of one input (Falcon-H1).
struct Beside {
    SelfAttention attention;
    Mamba2 scan;
    Var operator()(Tape& tape, const Var& x, const Batch& batch) {
        const Var scanned = scan(tape, x, batch);
        return add(tape, scanned, attention(tape, x, batch));
    }
};
void own(autograd::Unit& unit, Beside& part) { own_all(unit, part.scan, part.attention); }

}  // namespace

std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    RopeOfLayers rope(ctx, max_positions);
    const spec::Variant& in_files = spec::variant_of(s);
    // Without a norm behind attention its name is that of the norm before the MLP.
    const BlockNames names{.before_mixer = in_files.before_attention,
                           .before_feed_forward = s.norms == "pre" ? in_files.before_mlp_alone : in_files.before_mlp,
                           .mixer = "attention",
                           .feed_forward = "mlp",
                           .behind_mixer = in_files.behind_attention,
                           .behind_feed_forward = in_files.behind_mlp};
    const SelfAttentionNames of_attention{.fused = in_files.fused_qkv ? "qkv_proj" : nullptr, .gate = "q_proj"};
    const std::string prefix = concat(in_files.prefix, ".");
    const auto make_block = [&](int64_t layer) -> std::unique_ptr<Module> {
        const int64_t behind = layer - s.layers, of_a_depth = spec::layers_of_a_depth(s);
        const std::string name = behind < 0
                                     ? prefix + "layers." + std::to_string(layer)
                                     : spec::later_names(s, behind / of_a_depth).layers[to_size(behind % of_a_depth)];
        const FeedForwardNames mlp{.part = name + "." + (s.pattern.empty() ? in_files.mlp : kPart),
                                   .fused = in_files.fused_gate_up ? "gate_up_proj" : nullptr,
                                   .shared = in_files.shared_expert,
                                   .bias = in_files.expert_bias,
                                   .router = in_files.router,
                                   .together = in_files.experts_together};
        const FeedForwardNames mixtral{name + ".block_sparse_moe", "w1", "w3", "w2"};
        const FeedForwardNames pairs{
            .part = name + ".block_sparse_moe", .router = "router.layer", .pairs_of = name + ".shared_mlp"};
        const spec::LayerSpec of_layer = spec::layer(s, layer);
        if (!s.pattern.empty()) {
            const std::string part = concat(name, ".", kPart);
            if (of_layer.scan()) return std::make_unique<PartBlock<Mamba2>>(s, name, kPart, Mamba2(s, layer, part));
            if (of_layer.attention())
                return std::make_unique<PartBlock<SelfAttention>>(
                    s, name, kPart, SelfAttention(s, layer, part, rope.of(of_layer.attention()->rope), of_attention));
            return std::make_unique<PartBlock<FeedForward>>(s, name, kPart, FeedForward(s, layer, mlp));
        }
        FeedForward feed_forward(s, layer, mlp, spec::is_mixtral(s) ? mixtral : in_files.pairs ? pairs : mlp);
        if (of_layer.beside())
            return std::make_unique<ResidualBlock<Beside>>(
                s, layer, name, names,
                Beside{SelfAttention(s, layer, name + ".self_attn", rope.of(of_layer.attention()->rope), of_attention),
                       Mamba2(s, layer, name + ".mamba")},
                std::move(feed_forward));
        if (of_layer.scan())
            return std::make_unique<ResidualBlock<Mamba2>>(s, layer, name, names, Mamba2(s, layer, name + ".mamba"),
                                                           std::move(feed_forward));
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
    };
    return make_decoder(s, prefix + in_files.embedding, prefix + in_files.final_norm, make_block);
}

}  // namespace tutti::models
