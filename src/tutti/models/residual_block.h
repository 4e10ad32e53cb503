// models/residual_block.h: the block of Llama and its relatives: a mixer of tokens and a feed-forward part, whose
// results are added to the residual stream, with RMS norms before them, behind them, or both.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tutti/models/feed_forward.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

// The names of the norms of a block, of which it has those that its LayerSpec names, and of its two parts in the key of
// their dropout.
struct BlockNames {
    const char *before_mixer, *before_feed_forward, *mixer, *feed_forward;
    const char *behind_mixer = nullptr, *behind_feed_forward = nullptr;
};

// x (B, T, C): x += r N2(mixer(N1(x))); x += r N4(feed_forward(N3(x))), with the norms N1 and N3 (before) or N2 and N4
// (behind) or all four, and the scale r of the residual branches. A Mixer is SelfAttention, LatentAttention,
// DeltaRule or ShortConvolution.
template <class Mixer>
class ResidualBlock final : public nn::Module {
  public:
    // `name`: "model.layers.3".
    ResidualBlock(const spec::ModelSpec& s, int64_t layer, const std::string& name, const BlockNames& names,
                  Mixer mixer, FeedForward feed_forward)
        : names_(names), dropout_(s.dropout), mixer_(std::move(mixer)), feed_forward_(std::move(feed_forward)) {
        const spec::LayerSpec of_layer = spec::layer(s, layer);
        const auto norm = [&](bool exists, const char* of) -> std::optional<nn::Norm> {
            if (!exists) return std::nullopt;
            return nn::make_rms_norm(name + "." + of, s.width, s.norm_eps, nn::Role::norm, s.norm_offset ? 1 : 0);
        };
        residual_scale_ = of_layer.residual_scale;
        before_mixer_ = norm(of_layer.norm_before, names.before_mixer);
        behind_mixer_ = norm(of_layer.norm_behind, names.behind_mixer);
        before_feed_forward_ = norm(of_layer.norm_before, names.before_feed_forward);
        behind_feed_forward_ = norm(of_layer.norm_behind, names.behind_feed_forward);
        unit.name = name;
        own_norm(before_mixer_);
        nn::own_all(unit, mixer_);
        own_norm(behind_mixer_);
        own_norm(before_feed_forward_);
        nn::own_all(unit, feed_forward_);
        own_norm(behind_feed_forward_);
    }

    nn::Var forward(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch) override {
        const nn::Var mixed = branch(tape, mixer_(tape, before_mixer_ ? (*before_mixer_)(tape, x) : x, batch),
                                     behind_mixer_, batch, names_.mixer);
        const nn::SumAndNorm h = before_feed_forward_ ? before_feed_forward_->of_sum(tape, x, mixed)
                                                      : nn::SumAndNorm{nn::add(tape, x, mixed), {}};
        const nn::Var y = feed_forward_(tape, before_feed_forward_ ? h.norm : h.sum, batch);
        return nn::add(tape, h.sum, branch(tape, y, behind_feed_forward_, batch, names_.feed_forward));
    }

  private:
    void own_norm(std::optional<nn::Norm>& norm) {
        if (norm) nn::own_all(unit, *norm);
    }
    // What a part adds to the residual stream.
    nn::Var branch(nn::Tape& tape, nn::Var y, std::optional<nn::Norm>& behind, const nn::Batch& batch,
                   const char* part) {
        if (behind) y = (*behind)(tape, y);
        y = nn::scale(tape, y, residual_scale_);
        return nn::dropout(tape, y, dropout_, batch, unit.name + "." + part);
    }

    BlockNames names_;
    double dropout_, residual_scale_ = 1;
    std::optional<nn::Norm> before_mixer_, behind_mixer_, before_feed_forward_, behind_feed_forward_;
    Mixer mixer_;
    FeedForward feed_forward_;
};

// A layer that is one part: x += part(norm(x)), with the norm "<name>.norm".
template <class Part>
class PartBlock final : public nn::Module {
  public:
    // `of`: the part's name in the key of its dropout.
    PartBlock(const spec::ModelSpec& s, const std::string& name, const char* of, Part part)
        : of_(of),
          dropout_(s.dropout),
          norm_(nn::make_rms_norm(name + ".norm", s.width, s.norm_eps, nn::Role::norm)),
          part_(std::move(part)) {
        unit.name = name;
        nn::own_all(unit, norm_, part_);
    }
    nn::Var forward(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch) override {
        const nn::Var y = part_(tape, norm_(tape, x), batch);
        return nn::add(tape, x, nn::dropout(tape, y, dropout_, batch, unit.name + "." + of_));
    }

  private:
    const char* of_;
    double dropout_;
    nn::Norm norm_;
    Part part_;
};

}  // namespace tutti::models
