// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024): RMSNorm before each part, rotary positions, grouped-query
// attention, SwiGLU. Its relatives differ in a field of the spec each: Mistral's attention looks back over a window
// (Jiang et al. 2023), Qwen's in some of the layers, Qwen2 has biases on q, k, v (Yang et al. 2024), Qwen3 normalises
// each query and key head (2025). Parameter names are those of Hugging Face's LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM.
#include <cmath>

#include "tutti/models/model.h"
#include "tutti/nn/layers.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

namespace {

class LlamaEmbedding final : public Module {
  public:
    explicit LlamaEmbedding(const spec::ModelSpec& s)
        : tokens(make_embedding("model.embed_tokens", s.vocab, s.width, s.init_std, Role::vocabulary)),
          dropout_(s.dropout) {
        unit.name = "model.embed_tokens";
        unit.backward_reads_weights = false;
        own_all(unit, tokens);
    }
    Var forward(Tape& tape, const Var&, const Batch& batch) override {
        return dropout(tape, tokens(tape, batch.tokens), dropout_, batch, "embedding");
    }

    Embedding tokens;

  private:
    double dropout_;
};

class LlamaBlock final : public Module {
  public:
    LlamaBlock(const spec::ModelSpec& s, int64_t layer, ops::RopeTable rope)
        : spec_(s),
          layer_(layer),
          window_(spec::window_of(s, layer)),
          rope_(std::move(rope)),
          name_(concat("model.layers.", layer)) {
        const int64_t C = s.width, D = s.head_dim, F = s.ffn;
        const LinearOptions q{.role = Role::column, .std = s.init_std, .bias = s.qkv_bias, .grain = D};
        const LinearOptions kv{.role = Role::key_value, .std = s.init_std, .bias = s.qkv_bias, .grain = D};
        const LinearOptions column{.role = Role::column, .std = s.init_std, .bias = s.mlp_bias};
        // The two projections into the residual stream start smaller, so that its variance does not grow with depth.
        const double residual_std = s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers));
        attention_norm_ = make_rms_norm(name_ + ".input_layernorm", C, s.norm_eps);
        q_ = make_linear(name_ + ".self_attn.q_proj", C, s.heads * D, q);
        k_ = make_linear(name_ + ".self_attn.k_proj", C, s.kv_heads * D, kv);
        v_ = make_linear(name_ + ".self_attn.v_proj", C, s.kv_heads * D, kv);
        o_ = make_linear(name_ + ".self_attn.o_proj", s.heads * D, C,
                         {.role = Role::row, .std = residual_std, .bias = s.output_bias, .grain = D});
        mlp_norm_ = make_rms_norm(name_ + ".post_attention_layernorm", C, s.norm_eps);
        gate_ = make_linear(name_ + ".mlp.gate_proj", C, F, column);
        up_ = make_linear(name_ + ".mlp.up_proj", C, F, column);
        down_ =
            make_linear(name_ + ".mlp.down_proj", F, C, {.role = Role::row, .std = residual_std, .bias = s.mlp_bias});
        unit.name = name_;
        own_all(unit, attention_norm_, q_, k_, v_);
        if (s.head_norm) {
            q_norm_ = make_rms_norm(name_ + ".self_attn.q_norm", D, s.norm_eps, Role::every_head);
            k_norm_ = make_rms_norm(name_ + ".self_attn.k_norm", D, s.norm_eps, Role::every_head);
            own_all(unit, *q_norm_, *k_norm_);
        }
        own_all(unit, o_, mlp_norm_, gate_, up_, down_);
    }

    // x (B, T, C): x += Attention(RMSNorm(x)); x += MLP(RMSNorm(x))
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        const auto [h, normed] = mlp_norm_.of_sum(tape, x, self_attention(tape, attention_norm_(tape, x), batch));
        return add(tape, h, mlp(tape, normed, batch));
    }

  private:
    Var self_attention(Tape& tape, const Var& x, const Batch& batch) {
        const auto rotated = [&](const Var& heads, std::optional<Norm>& norm) {
            return rope(tape, norm ? (*norm)(tape, heads) : heads, batch.positions, rope_);
        };
        const std::vector<Var> qkv = projections(tape, x, {q_, k_, v_});
        const Var q = rotated(split_heads(tape, qkv[0], spec_.head_dim), q_norm_);
        const Var k = rotated(split_heads(tape, qkv[1], spec_.head_dim), k_norm_);
        const Var v = split_heads(tape, qkv[2], spec_.head_dim);
        const Var z = o_(tape, join_heads(tape, attention(tape, q, k, v, batch, layer_, window_)));
        return dropout(tape, z, spec_.dropout, batch, name_ + ".attention");
    }
    // W_down (silu(W_gate x) * W_up x)
    Var mlp(Tape& tape, const Var& x, const Batch& batch) {
        const Var y = swiglu_mlp(tape, x, gate_, up_, down_);
        return dropout(tape, y, spec_.dropout, batch, name_ + ".mlp");
    }

    spec::ModelSpec spec_;
    int64_t layer_, window_;
    ops::RopeTable rope_;
    std::string name_;
    Norm attention_norm_, mlp_norm_;
    Linear q_, k_, v_, o_, gate_, up_, down_;
    std::optional<Norm> q_norm_, k_norm_;
};

class LlamaHead final : public Module {
  public:
    // `tied`: the embedding matrix serves as the head.
    LlamaHead(const spec::ModelSpec& s, Parameter* tied) {
        norm_ = make_rms_norm("model.norm", s.width, s.norm_eps);
        unit.name = "head";
        own_all(unit, norm_);
        own_head(unit, head_, s.vocab, s.width, s.init_std, tied);
    }
    Var forward(Tape& tape, const Var& x, const Batch& batch) override { return head_(tape, norm_(tape, x), batch); }

  private:
    Norm norm_;
    Head head_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    const ops::RopeTable rope = make_rope_table(ctx, max_positions, rope_frequencies(s), rope_amplitude(s));
    std::vector<std::unique_ptr<Module>> modules;
    auto embedding = std::make_unique<LlamaEmbedding>(s);
    Parameter* tied = s.tie_embeddings ? &embedding->tokens.weight : nullptr;
    modules.push_back(std::move(embedding));
    for (int64_t layer = 0; layer < s.layers; ++layer) modules.push_back(std::make_unique<LlamaBlock>(s, layer, rope));
    modules.push_back(std::make_unique<LlamaHead>(s, tied));
    return modules;
}

}  // namespace tutti::models
