// models/pre_norm_block.h: the block of Llama and its relatives: a mixer of tokens and a feed-forward part, each
// applied after an RMS norm and added to the residual stream.
#pragma once

#include <string>
#include <utility>

#include "tutti/models/feed_forward.h"
#include "tutti/nn/layers.h"

namespace tutti::models {

// The names of the norms of a block, and of its two parts in the key of their dropout.
struct PreNormNames {
    const char *mixer_norm, *mixer, *feed_forward_norm, *feed_forward;
};

// x (B, T, C): x += mixer(RMSNorm(x)); x += feed_forward(RMSNorm(x)). A Mixer is SelfAttention or ShortConvolution.
template <class Mixer>
class PreNormBlock final : public nn::Module {
  public:
    // `name`: "model.layers.3".
    PreNormBlock(const spec::ModelSpec& s, const std::string& name, const PreNormNames& names, Mixer mixer,
                 FeedForward feed_forward)
        : names_(names),
          dropout_(s.dropout),
          mixer_norm_(nn::make_rms_norm(concat(name, ".", names.mixer_norm), s.width, s.norm_eps)),
          mixer_(std::move(mixer)),
          feed_forward_norm_(nn::make_rms_norm(concat(name, ".", names.feed_forward_norm), s.width, s.norm_eps)),
          feed_forward_(std::move(feed_forward)) {
        unit.name = name;
        own_all(unit, mixer_norm_, mixer_, feed_forward_norm_, feed_forward_);
    }

    nn::Var forward(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch) override {
        const auto dropped = [&](const nn::Var& y, const char* part) {
            return nn::dropout(tape, y, dropout_, batch, concat(unit.name, ".", part));
        };
        const nn::Var mixed = dropped(mixer_(tape, mixer_norm_(tape, x), batch), names_.mixer);
        const auto [h, normed] = feed_forward_norm_.of_sum(tape, x, mixed);
        return nn::add(tape, h, dropped(feed_forward_(tape, normed, batch), names_.feed_forward));
    }

  private:
    PreNormNames names_;
    double dropout_;
    nn::Norm mixer_norm_;
    Mixer mixer_;
    nn::Norm feed_forward_norm_;
    FeedForward feed_forward_;
};

}  // namespace tutti::models
