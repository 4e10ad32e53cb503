// models/feed_forward.h: the feed-forward part of a block: a gated MLP, or a mixture of SwiGLU experts.
#pragma once

#include <optional>
#include <string>

#include "tutti/nn/layers.h"
#include "tutti/spec/model_spec.h"

namespace tutti::models {

// The names of the part and of the three matrices of its gated MLP (Shazeer 2020) in a model family.
struct FeedForwardNames {
    std::string part;  // "model.layers.3.mlp"
    const char* gate = "gate_proj";
    const char* up = "up_proj";
    const char* down = "down_proj";
    const char* fused = nullptr;           // in files gate | up are rows of one tensor of this name
    const char* shared = "shared_expert";  // of a mixture, like the bias of its router
    const char* bias = "expert_bias";
};

// W_down (g(W_gate x) * W_up x), g silu or gelu. A layer with experts (LayerSpec::mixture) adds the outputs of a
// token's experts, by the router's weights, and of the shared expert; the experts' matrices are stacked,
// "<part>.experts.<gate>.weight" (E, F, C), and apart in files. Must not be moved once a unit owns it.
class FeedForward {
  public:
    // In files a mixture may have other names, `stored`.
    FeedForward(const spec::ModelSpec& spec, int64_t layer, const FeedForwardNames& names,
                const FeedForwardNames& stored);
    FeedForward(const spec::ModelSpec& spec, int64_t layer, const FeedForwardNames& names)
        : FeedForward(spec, layer, names, names) {}

    nn::Var operator()(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch);  // x, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, FeedForward& part);
    struct Dense {
        nn::Linear gate, up, down;
    };
    struct Experts {
        nn::Linear router;
        std::optional<nn::Parameter> bias;
        nn::Parameter gate, up, down;
        std::optional<nn::Linear> shared_gate;
    };
    spec::MixtureSpec spec_;
    ops::Gate gate_ = ops::Gate::silu;
    int64_t layer_;
    std::optional<Dense> dense_;  // in a layer with experts the shared expert
    std::optional<Experts> experts_;
};

}  // namespace tutti::models
