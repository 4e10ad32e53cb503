// LFM2 (Liquid AI 2025): the blocks of Llama, of which most mix their tokens by a gated short convolution and the
// others by grouped-query attention with norms of heads and rotary positions; SwiGLU; the head tied to the embedding.
// The norm before the head is called "embedding_norm". Parameter names are those of Hugging Face's Lfm2ForCausalLM.
#include <utility>

#include "tutti/models/decoder.h"
#include "tutti/models/residual_block.h"
#include "tutti/models/self_attention.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

namespace {

// W_out (c conv(b x)) with b | c | x = W_in u.
class ShortConvolution {
  public:
    // `name`: "model.layers.3.conv".
    ShortConvolution(const spec::ModelSpec& s, int64_t layer, const std::string& name, const spec::ConvolutionSpec& c)
        : layer_(layer) {
        const int64_t C = s.width;
        in_ = make_linear(name + ".in_proj", C, 3 * C,
                          {.role = Role::column, .std = s.init_std, .bias = c.bias, .sections = 3});
        taps_.weight = {.name = name + ".conv.weight",
                        .shape = {C, 1, c.kernel},
                        .role = Role::column,
                        .init = {.std = s.init_std}};
        if (c.bias) taps_.bias = Parameter{.name = name + ".conv.bias", .shape = {C}, .role = Role::column};
        out_ = make_linear(name + ".out_proj", C, C, {.role = Role::row, .std = residual_std(s), .bias = c.bias});
    }
    Var operator()(Tape& tape, const Var& u, const Batch& batch) {
        return out_(tape, short_convolution(tape, in_(tape, u), taps_, batch, {.layer = layer_}));
    }

  private:
    friend void own(autograd::Unit& unit, ShortConvolution& part) { own_all(unit, part.in_, part.taps_, part.out_); }
    int64_t layer_;
    Linear in_, out_;
    WeightAndBias taps_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_lfm2(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    RopeOfLayers rope(ctx, max_positions);
    const BlockNames names{"operator_norm", "ffn_norm", "operator", "feed_forward"};
    return make_decoder(s, "model.embed_tokens", "model.embedding_norm", [&](int64_t layer) -> std::unique_ptr<Module> {
        const std::string name = concat("model.layers.", layer);
        FeedForward feed_forward(s, layer, {name + ".feed_forward", "w1", "w3", "w2"});
        const spec::LayerSpec of_layer = spec::layer(s, layer);
        if (const spec::ConvolutionSpec* convolution = of_layer.convolution())
            return std::make_unique<ResidualBlock<ShortConvolution>>(
                s, layer, name, names, ShortConvolution(s, layer, name + ".conv", *convolution),
                std::move(feed_forward));
        const SelfAttentionNames of_attention{
            .output = "out_proj", .query_norm = "q_layernorm", .key_norm = "k_layernorm"};
        return std::make_unique<ResidualBlock<SelfAttention>>(
            s, layer, name, names,
            SelfAttention(s, layer, name + ".self_attn", rope.of(of_layer.attention()->rope), of_attention),
            std::move(feed_forward));
    });
}

}  // namespace tutti::models
