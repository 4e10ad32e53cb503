#include "tutti/models/decoder.h"

#include <cmath>

#include "tutti/base/to_size.h"
#include "tutti/models/later_token.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using namespace nn;

namespace {

class TokenEmbedding final : public Module {
  public:
    TokenEmbedding(const spec::ModelSpec& s, const std::string& name)
        : tokens_(make_embedding(name, s.vocab, s.width, s.init_std, Role::vocabulary)),
          scale_(s.embedding_scale > 0 ? s.embedding_scale : 1),
          root_(s.embedding_sqrt ? std::sqrt(static_cast<double>(s.width)) : 0),
          dropout_(s.dropout) {
        unit.name = name;
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
        if (type == DType::bf16) return static_cast<float>(bf16(static_cast<float>(x)));
        return type == DType::f16 ? static_cast<float>(f16(static_cast<float>(x))) : x;
    }

    Embedding tokens_;
    double scale_, root_;  // root_: 0, or the factor before it is rounded
    double dropout_;
};

class NormAndHead final : public Module {
  public:
    // Without later tokens unless they are made, too: `embedding` and `make_block` are those of the decoder. A tied
    // head is the first parameter of `embedding`.
    NormAndHead(const spec::ModelSpec& s, Norm norm, Module& embedding, const MakeBlock& make_block)
        : norm_(std::move(norm)),
          factor_(s.logit_divisor > 0 ? 1 / s.logit_divisor : 1),
          embedding_(embedding),
          weight_(s.mtp_weight) {
        unit.name = "head";
        head_.cap = s.logit_cap;
        own_all(unit, norm_);
        Parameter* matrix = embedding.unit.parameters.front();
        own_head(unit, head_, s.vocab, s.width, s.init_std, s.tie_embeddings ? matrix : nullptr);
        // The tokens ahead are looked up in the matrix, whose gradient then is of the backward; a tied one's also.
        if (s.mtp_depth > 0) (s.tie_embeddings ? unit.gradients_in_both : unit.parameters).push_back(matrix);
        later_.reserve(to_size(s.mtp_depth));
        int64_t layer = s.layers;
        for (int64_t k = 0; k < s.mtp_depth; ++k) {
            std::vector<std::unique_ptr<Module>> blocks;
            for (int64_t i = 0; i < spec::layers_of_a_depth(s); ++i) blocks.push_back(make_block(layer++));
            later_.emplace_back(s, k, std::move(blocks));
            own_all(unit, later_.back());
        }
    }
    Var forward(Tape& tape, const Var& x, const Batch& batch) override {
        const Var h = norm_(tape, x);
        const bool more = !later_.empty() && tape.recording() && batch.targets.defined();
        return more ? losses_of_all(tape, h, batch) : head_(tape, scale(tape, h, factor_), batch);
    }

  private:
    // The losses of the next token. The gradients are those of their sum and of weight / D times that of each depth.
    Var losses_of_all(Tape& tape, const Var& h, const Batch& batch) {
        const size_t depths = later_.size();
        check(batch.ahead.size() == depths, "multi-token prediction: a batch with tokens of ", batch.ahead.size(),
              " depths, the model has ", depths);
        // The gradient of the matrices is complete with the last head: all of their other uses are before.
        std::vector<Var> read = {h};
        Var hidden = h;
        for (size_t k = 0; k < depths; ++k) {
            Batch later = batch;
            later.tokens = batch.ahead[k].tokens;
            hidden = later_[k](tape, hidden, embedding_.forward(tape, {}, later), batch);
            read.push_back(later_[k].for_head(tape, hidden));
        }
        std::vector<Var> losses;
        for (size_t k = 0; k <= depths; ++k) {
            Batch of = batch;
            if (k > 0) {
                of.targets = batch.ahead[k - 1].targets;
                of.grad_scale *= static_cast<float>(weight_ / static_cast<double>(depths));
            }
            losses.push_back(head_(tape, scale(tape, read[k], factor_), of, k < depths));
            if (k > 0 && batch.later_losses) batch.later_losses(static_cast<int64_t>(k) - 1, losses.back().value);
        }
        return first_of(tape, losses);
    }

    Norm norm_;
    Head head_;
    double factor_;  // of the logits, applied to what the head multiplies
    Module& embedding_;
    double weight_;
    std::vector<LaterToken> later_;
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& s, std::unique_ptr<Module> embedding,
                                                  const MakeBlock& make_block, Norm norm) {
    std::vector<std::unique_ptr<Module>> modules;
    Module& tokens = *embedding;
    modules.push_back(std::move(embedding));
    for (int64_t layer = 0; layer < s.layers; ++layer) modules.push_back(make_block(layer));
    modules.push_back(std::make_unique<NormAndHead>(s, std::move(norm), tokens, make_block));
    return modules;
}

std::vector<std::unique_ptr<Module>> make_decoder(const spec::ModelSpec& s, const std::string& embedding,
                                                  const std::string& final_norm, const MakeBlock& make_block) {
    return make_decoder(s, std::make_unique<TokenEmbedding>(s, embedding), make_block,
                        make_rms_norm(final_norm, s.width, s.norm_eps, Role::norm, s.norm_offset ? 1 : 0));
}

void store_as_rows(const std::vector<Parameter*>& parameters, const std::string& tensor, int64_t groups) {
    int64_t rows = 0;
    for (const Parameter* p : parameters) rows += p->shape[0];
    int64_t first = 0;
    for (Parameter* p : parameters) {
        const int64_t block = p->shape[0] / groups;
        p->stored_as = {
            .name = tensor, .first_row = first, .rows = rows, .row_step = rows / groups, .row_block = block};
        first += block;
    }
}

double residual_std(const spec::ModelSpec& s) { return s.init_std / std::sqrt(2.0 * static_cast<double>(s.layers)); }

}  // namespace tutti::models
