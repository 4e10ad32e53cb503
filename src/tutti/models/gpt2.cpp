// GPT-2 (Radford et al. 2019): LayerNorm before each part, learned positions, one fused q | k | v projection, GELU
// (tanh), biases everywhere, the head tied to the embedding. Names are those of Hugging Face's GPT2LMHeadModel without
// its "transformer." prefix; weights are (out, in), the transpose of its Conv1D.
#include "tutti/models/decoder.h"

namespace tutti::models {

using namespace nn;

namespace {

// Files put a prefix before each name. The matrices of blocks are Conv1D there: transposed.
void store(Parameter& p, bool transposed = false) { p.stored_as = {concat("transformer.", p.name), transposed}; }

class Gpt2Embedding final : public Module {
  public:
    explicit Gpt2Embedding(const spec::ModelSpec& s)
        : tokens_(make_embedding("wte", s.vocab, s.width, s.init_std, Role::vocabulary)),
          positions_(make_embedding("wpe", s.max_positions, s.width, s.init_std, Role::position)),
          dropout_(s.dropout) {
        unit.name = "embedding";
        unit.backward_reads_weights = false;
        own_all(unit, tokens_, positions_);
        for (Parameter* p : unit.parameters) store(*p);
    }
    Var forward(Tape& tape, const Var&, const Batch& batch) override {
        const Var x = add(tape, tokens_(tape, batch.tokens), positions_(tape, batch.positions));
        return dropout(tape, x, dropout_, batch, "embedding");
    }

  private:
    Embedding tokens_, positions_;
    double dropout_;
};

class Gpt2Block final : public Module {
  public:
    Gpt2Block(const spec::ModelSpec& s, int64_t layer) : spec_(s), layer_(layer), name_(concat("h.", layer)) {
        const int64_t C = s.width, F = s.ffn;
        ln_1_ = make_layer_norm(name_ + ".ln_1", C, s.norm_eps);
        c_attn_ =
            make_linear(name_ + ".attn.c_attn", C, 3 * C,
                        {.role = Role::column, .std = s.init_std, .bias = true, .sections = 3, .grain = s.head_dim});
        attn_c_proj_ = make_linear(name_ + ".attn.c_proj", C, C,
                                   {.role = Role::row, .std = residual_std(s), .bias = true, .grain = s.head_dim});
        ln_2_ = make_layer_norm(name_ + ".ln_2", C, s.norm_eps);
        c_fc_ = make_linear(name_ + ".mlp.c_fc", C, F, {.role = Role::column, .std = s.init_std, .bias = true});
        mlp_c_proj_ =
            make_linear(name_ + ".mlp.c_proj", F, C, {.role = Role::row, .std = residual_std(s), .bias = true});
        unit.name = name_;
        own_all(unit, ln_1_, c_attn_, attn_c_proj_, ln_2_, c_fc_, mlp_c_proj_);
        for (Parameter* p : unit.parameters) store(*p, p->shape.rank() == 2);
        unit.attention = {{.width = C}};
    }

    // x (B, T, C): x += Attention(LN(x)); x += MLP(LN(x))
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        const Var y = packed_attention(tape, c_attn_(tape, ln_1_(tape, x)), spec_.head_dim, batch, layer_);
        const Var a = dropout(tape, attn_c_proj_(tape, y), spec_.dropout, batch, name_ + ".attention");
        const auto [h, normed] = ln_2_.of_sum(tape, x, a);
        const Var z = gelu_mlp(tape, normed, c_fc_, mlp_c_proj_);
        return add(tape, h, dropout(tape, z, spec_.dropout, batch, name_ + ".mlp"));
    }

  private:
    spec::ModelSpec spec_;
    int64_t layer_;
    std::string name_;
    Norm ln_1_, ln_2_;
    Linear c_attn_, attn_c_proj_, c_fc_, mlp_c_proj_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_gpt2(const spec::ModelSpec& s) {
    Norm norm = make_layer_norm("ln_f", s.width, s.norm_eps);
    store(norm.weight);
    store(*norm.bias);
    return make_decoder(
        s, std::make_unique<Gpt2Embedding>(s), [&](int64_t layer) { return std::make_unique<Gpt2Block>(s, layer); },
        std::move(norm));
}

}  // namespace tutti::models
