#include "tutti/models/decoder.h"

#include <cmath>

namespace tutti::models {

using namespace nn;

namespace {

class TokenEmbedding final : public Module {
  public:
    explicit TokenEmbedding(const spec::ModelSpec& s)
        : tokens_(make_embedding("model.embed_tokens", s.vocab, s.width, s.init_std, Role::vocabulary)),
          scale_(s.embedding_scale > 0 ? s.embedding_scale : 1),
          root_(s.embedding_sqrt ? std::sqrt(static_cast<double>(s.width)) : 0),
          dropout_(s.dropout) {
        unit.name = "model.embed_tokens";
        unit.backward_reads_weights = false;
        own_all(unit, tokens_);
    }
    Var forward(Tape& tape, const Var&, const Batch& batch) override {
        const Var x = tokens_(tape, batch.tokens);
        const double factor = root_ > 0 ? rounded(root_, x.value.dtype()) : scale_;
        return dropout(tape, scale(tape, x, factor), dropout_, batch, "embedding");
    }

  private:
    static double rounded(double x, DType type) {
        return type == DType::bf16 ? static_cast<float>(bf16(static_cast<float>(x))) : x;
    }

    Embedding tokens_;
    double scale_, root_;  // root_: 0, or the factor before it is rounded
    double dropout_;
};

class NormAndHead final : public Module {
  public:
    // `tied`: the embedding matrix serves as the head.
    NormAndHead(const spec::ModelSpec& s, Norm norm, Parameter* tied)
        : norm_(std::move(norm)), factor_(s.logit_divisor > 0 ? 1 / s.logit_divisor : 1) {
        unit.name = "head";
        head_.cap = s.logit_cap;
        own_all(unit, norm_);
        own_head(unit, head_, s.vocab, s.width, s.init_std, tied);
    }
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        return head_(tape, scale(tape, norm_(tape, x), factor_), batch);
    }

  private:
    Norm norm_;
    Head head_;
    double factor_;  // of the logits, applied to what the head multiplies
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
                        make_rms_norm(final_norm, s.width, s.norm_eps, Role::norm, s.norm_offset ? 1 : 0));
}

void store_as_rows(const std::vector<Parameter*>& parameters, const std::string& tensor) {
    int64_t rows = 0;
    for (const Parameter* p : parameters) rows += p->shape[0];
    int64_t first = 0;
    for (Parameter* p : parameters) {
        p->stored_as = {.name = tensor, .first_row = first, .rows = rows};
        first += p->shape[0];
    }
}

double residual_std(const spec::ModelSpec& s) { return s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers)); }

}  // namespace tutti::models
