// spec/layers.h: what a spec says of single layers: what mixes their tokens (ModelSpec::window, window_layers,
// conv_layers), which have experts (moe.layers), and which are computed again in the backward (recompute.policy).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/spec/model_spec.h"

namespace tutti::spec {

struct LayerRange {
    int64_t first, last;  // both of it
    bool operator==(const LayerRange&) const = default;
};

// The layers whose place in `listed` is true.
std::vector<LayerRange> layer_ranges(const std::vector<bool>& listed);
// "0,2-5" as ranges in rising order that do not touch; "" is none. Throws UsageError for anything that is no list of
// layers; "5-2" is one too.
std::vector<LayerRange> layer_ranges(const std::string& text);
// The one way to write them: layer_ranges' inverse.
std::string to_text(const std::vector<LayerRange>& ranges);

// What mixes the tokens of a layer.
struct LayerOperator {
    enum class Kind : uint8_t { attention, short_convolution };
    Kind kind = Kind::attention;
    int64_t window = 0;  // of attention: the newest keys that a query sees; 0: all of them
    bool operator==(const LayerOperator&) const = default;
};
LayerOperator operator_of(const ModelSpec& model, int64_t layer);
// How many layers have attention, and a short convolution in its place.
struct LayerCounts {
    int64_t attention = 0, windowed = 0, short_convolution = 0;  // windowed: of those with attention
};
LayerCounts count_layers(const ModelSpec& model);

// Whether the feed-forward part of this layer is a mixture of experts, and all layers of which it is.
bool has_experts(const ModelSpec& model, int64_t layer);
std::vector<int64_t> layers_with_experts(const ModelSpec& model);

struct Recompute {
    int64_t segment = 0;     // blocks that are run again together in the backward, from their input; 0: none
    bool selective = false;  // norms and activation functions alone are: cheap, and a third of what a block saves
};

// "none", "selective", "full" (segments of 1), "every:N" (of N), "sqrt" (of round(sqrt(layers))). Throws UsageError for
// any other policy.
Recompute recompute_of(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
