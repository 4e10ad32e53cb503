#include "tutti/models/decoder.h"

#include <cmath>

namespace tutti::models {

using namespace nn;

namespace {

class TokenEmbedding final : public Module {
  public:
    explicit TokenEmbedding(const spec::ModelSpec& s)
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

class NormAndHead final : public Module {
  public:
    // `tied`: the embedding matrix serves as the head.
    NormAndHead(const spec::ModelSpec& s, const char* norm, Parameter* tied) {
        norm_ = make_rms_norm(norm, s.width, s.norm_eps);
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

std::vector<std::unique_ptr<Module>> make_decoder(
    const spec::ModelSpec& s, const char* final_norm,
    const std::function<std::unique_ptr<Module>(int64_t layer)>& make_block) {
    std::vector<std::unique_ptr<Module>> modules;
    auto embedding = std::make_unique<TokenEmbedding>(s);
    Parameter* tied = s.tie_embeddings ? &embedding->tokens.weight : nullptr;
    modules.push_back(std::move(embedding));
    for (int64_t layer = 0; layer < s.layers; ++layer) modules.push_back(make_block(layer));
    modules.push_back(std::make_unique<NormAndHead>(s, final_norm, tied));
    return modules;
}

double residual_std(const spec::ModelSpec& s) { return s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers)); }

}  // namespace tutti::models
