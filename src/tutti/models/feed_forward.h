// models/feed_forward.h: the feed-forward part of a block: a gated MLP, or a mixture of such experts.
#pragma once

#include <optional>
#include <string>

#include "tutti/nn/layers.h"
#include "tutti/spec/layers.h"

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
    const char* router = "gate";
    bool together = false;  // in files the experts are in one tensor for gate and up, and one for down
    // In files gate | up are rows of input_linear, and down is output_linear: of all experts together, and of this
    // other part, the MLP or the shared expert (Granite 4). "": not so.
    std::string pairs_of = {};
};

// W_down of the gated unit (kernels::Gate) of W_gate x and W_up x, or W_down relu(W_up x)^2. A layer with experts
// (LayerSpec::mixture) adds the outputs of a token's experts, by the router's weights, and of the shared expert; the
// experts' matrices are stacked,
// "<part>.experts.<gate>.weight" (E, F, C), and usually apart in files. Must not be moved once a unit owns it.
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
        std::optional<nn::Linear> gate;
        nn::Linear up, down;
    };
    struct Experts {
        nn::Linear router;
        std::optional<nn::Parameter> choice_bias;
        std::optional<nn::WeightAndBias> gate;
        nn::WeightAndBias up, down;
        std::optional<nn::Linear> shared_gate;
        std::optional<nn::Linear> into_latent, from_latent;
    };
    nn::Var mlp(nn::Tape& tape, const nn::Var& x);  // of dense_
    static Experts make_experts(const spec::ModelSpec& spec, const spec::LayerSpec& layer,
                                const FeedForwardNames& names, const FeedForwardNames& stored);
    spec::MixtureSpec spec_;
    ops::Gate unit_ = ops::Gate::silu;
    double gate_scale_ = 1, output_scale_ = 1;
    int64_t layer_;
    std::optional<Dense> dense_;  // in a layer with experts the shared expert
    std::optional<Experts> experts_;
};

}  // namespace tutti::models
