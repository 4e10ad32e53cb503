// models/feed_forward.h: the part of a block that works on each token by itself: SwiGLU, or a mixture of such experts.
#pragma once

#include <optional>
#include <string>

#include "tutti/nn/layers.h"
#include "tutti/spec/model_spec.h"

namespace tutti::models {

// What a family calls the three matrices of SwiGLU (Shazeer 2020).
struct FeedForwardNames {
    const char* gate = "gate_proj";
    const char* up = "up_proj";
    const char* down = "down_proj";
};

// W_down (silu(W_gate x) * W_up x); in a layer with experts (spec::has_experts) the sum over a token's experts of that,
// whose matrices are stacked in "<name>.experts.<gate>.weight" (E, F, C), and of the shared expert. Must not be moved
// once a unit owns it.
class FeedForward {
  public:
    // `name`: "model.layers.3.mlp".
    FeedForward(const spec::ModelSpec& spec, int64_t layer, const std::string& name,
                const FeedForwardNames& names = {});

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
    int64_t layer_;
    std::optional<Dense> dense_;  // or the shared expert
    std::optional<Experts> experts_;
};

}  // namespace tutti::models
