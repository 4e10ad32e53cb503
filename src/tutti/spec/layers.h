// spec/layers.h: the properties of single layers: the operator that mixes their tokens (ModelSpec::window,
// window_layers, conv_layers), experts (moe.layers), and recompute in the backward (recompute.policy).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/spec/model_spec.h"

namespace tutti::spec {

struct LayerRange {
    int64_t first, last;  // both inclusive
    bool operator==(const LayerRange&) const = default;
};

// The layers for which `listed` is true.
std::vector<LayerRange> layer_ranges(const std::vector<bool>& listed);
// "0,2-5" as ranges in rising order that do not touch; "" is none. "5-2" is valid. UsageError for any other text.
std::vector<LayerRange> layer_ranges(const std::string& text);
// The inverse of layer_ranges().
std::string to_text(const std::vector<LayerRange>& ranges);

// The operator that mixes the tokens of a layer.
struct LayerOperator {
    enum class Kind : uint8_t { attention, short_convolution };
    Kind kind = Kind::attention;
    int64_t window = 0;  // attention: the newest keys that a query attends to; 0: all keys
    bool operator==(const LayerOperator&) const = default;
};
LayerOperator operator_of(const ModelSpec& model, int64_t layer);
struct LayerCounts {
    int64_t attention = 0, windowed = 0, short_convolution = 0;  // `attention` includes `windowed`
};
LayerCounts count_layers(const ModelSpec& model);

// Whether the feed-forward part of a layer is a mixture of experts, and the list of such layers.
bool has_experts(const ModelSpec& model, int64_t layer);
std::vector<int64_t> layers_with_experts(const ModelSpec& model);

struct Recompute {
    int64_t segment = 0;     // blocks that are recomputed together from their input; 0: none
    bool selective = false;  // recompute norms and activation functions only: cheap, a third of a block's saved bytes
};

// "none", "selective", "full" (segments of 1), "every:N" (of N), "sqrt" (of round(sqrt(layers))). Throws UsageError for
// any other policy.
Recompute recompute_of(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
