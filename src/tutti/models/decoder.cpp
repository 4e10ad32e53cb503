#include "tutti/models/decoder.h"

#include <cmath>

namespace tutti::models {

using namespace nn;

namespace {

class TokenEmbedding final : public Module {
  public:
    explicit TokenEmbedding(const spec::ModelSpec& s)
        : tokens_(make_embedding("model.embed_tokens", s.vocab, s.width, s.init_std, Role::vocabulary)),
          dropout_(s.dropout) {
        unit.name = "model.embed_tokens";
        unit.backward_reads_weights = false;
        own_all(unit, tokens_);
    }
    Var forward(Tape& tape, const Var&, const Batch& batch) override {
        return dropout(tape, tokens_(tape, batch.tokens), dropout_, batch, "embedding");
    }

  private:
    Embedding tokens_;
    double dropout_;
};

class NormAndHead final : public Module {
  public:
    // `tied`: the embedding matrix serves as the head.
    NormAndHead(const spec::ModelSpec& s, Norm norm, Parameter* tied) : norm_(std::move(norm)) {
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

std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& s, std::unique_ptr<Module> embedding,
                                                  const MakeBlock& make_block, Norm norm) {
    std::vector<std::unique_ptr<Module>> modules;
    Parameter* tied = s.tie_embeddings ? embedding->unit.parameters.front() : nullptr;
    modules.push_back(std::move(embedding));
    for (int64_t layer = 0; layer < s.layers; ++layer) modules.push_back(make_block(layer));
    modules.push_back(std::make_unique<NormAndHead>(s, std::move(norm), tied));
    return modules;
}

std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& s, const char* final_norm,
                                                  const MakeBlock& make_block) {
    return make_decoder(s, std::make_unique<TokenEmbedding>(s), make_block,
                        make_rms_norm(final_norm, s.width, s.norm_eps));
}

double residual_std(const spec::ModelSpec& s) { return s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers)); }

}  // namespace tutti::models
