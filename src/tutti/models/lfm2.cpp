// LFM2 (Liquid AI 2025): the blocks of Llama, of which most mix their tokens by a gated short convolution and the
// others by grouped-query attention with norms of heads and rotary positions; SwiGLU; the head tied to the embedding.
// The norm before the head is called "embedding_norm". Parameter names are those of Hugging Face's Lfm2ForCausalLM.
#include <optional>

#include "tutti/models/decoder.h"
#include "tutti/models/feed_forward.h"
#include "tutti/models/self_attention.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

namespace {

// W_out (c conv(b x)) with b | c | x = W_in u.
class ShortConvolution {
  public:
    // `name`: "model.layers.3.conv".
    ShortConvolution(const spec::ModelSpec& s, int64_t layer, const std::string& name) : layer_(layer) {
        const int64_t C = s.width;
        in_ = make_linear(name + ".in_proj", C, 3 * C,
                          {.role = Role::column, .std = s.init_std, .bias = s.conv_bias, .sections = 3});
        taps_.weight = {.name = name + ".conv.weight",
                        .shape = {C, 1, s.conv_kernel},
                        .role = Role::column,
                        .init = {.std = s.init_std}};
        if (s.conv_bias) taps_.bias = Parameter{.name = name + ".conv.bias", .shape = {C}, .role = Role::column};
        out_ = make_linear(name + ".out_proj", C, C, {.role = Role::row, .std = residual_std(s), .bias = s.conv_bias});
    }
    Var operator()(Tape& tape, const Var& u, const Batch& batch) {
        return out_(tape, short_convolution(tape, in_(tape, u), taps_, batch, layer_));
    }

  private:
    friend void own(autograd::Unit& unit, ShortConvolution& part) { own_all(unit, part.in_, part.taps_, part.out_); }
    int64_t layer_;
    Linear in_, out_;
    WeightAndBias taps_;
};

class Lfm2Block final : public Module {
  public:
    Lfm2Block(const spec::ModelSpec& s, int64_t layer, ops::RopeTable rope)
        : name_(concat("model.layers.", layer)),
          dropout_(s.dropout),
          operator_norm_(make_rms_norm(name_ + ".operator_norm", s.width, s.norm_eps)),
          ffn_norm_(make_rms_norm(name_ + ".ffn_norm", s.width, s.norm_eps)),
          feed_forward_(s, layer, name_ + ".feed_forward", {.gate = "w1", .up = "w3", .down = "w2"}) {
        if (spec::operator_of(s, layer).kind == spec::LayerOperator::Kind::short_convolution)
            convolution_.emplace(s, layer, name_ + ".conv");
        else
            attention_.emplace(
                s, layer, name_ + ".self_attn", std::move(rope),
                SelfAttentionNames{.output = "out_proj", .query_norm = "q_layernorm", .key_norm = "k_layernorm"});
        unit.name = name_;
        own_all(unit, operator_norm_);
        convolution_ ? own_all(unit, *convolution_) : own_all(unit, *attention_);
        own_all(unit, ffn_norm_, feed_forward_);
    }

    // x (B, T, C): x += Operator(RMSNorm(x)); x += FeedForward(RMSNorm(x))
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        const auto [h, normed] = ffn_norm_.of_sum(tape, x, mix(tape, operator_norm_(tape, x), batch));
        return add(tape, h, feed_forward(tape, normed, batch));
    }

  private:
    Var mix(Tape& tape, const Var& x, const Batch& batch) {
        const Var y = convolution_ ? (*convolution_)(tape, x, batch) : (*attention_)(tape, x, batch);
        return dropout(tape, y, dropout_, batch, name_ + ".operator");
    }
    Var feed_forward(Tape& tape, const Var& x, const Batch& batch) {
        return dropout(tape, feed_forward_(tape, x, batch), dropout_, batch, name_ + ".feed_forward");
    }

    std::string name_;
    double dropout_;
    Norm operator_norm_, ffn_norm_;
    std::optional<ShortConvolution> convolution_;  // one of the two
    std::optional<SelfAttention> attention_;
    FeedForward feed_forward_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_lfm2(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    const ops::RopeTable rope = make_rope_table(ctx, max_positions, rope_frequencies(s), rope_amplitude(s));
    return make_decoder(s, "model.embedding_norm",
                        [&](int64_t layer) { return std::make_unique<Lfm2Block>(s, layer, rope); });
}

}  // namespace tutti::models
