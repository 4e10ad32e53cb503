// spec/layers.h: what a spec says of single layers: which look back over a window (ModelSpec::window and
// window_layers), and which are computed again in the backward (recompute.policy).
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

// "0,2-5" as ranges in rising order that do not touch; "" is none. Throws UsageError for anything that is no list of
// layers; "5-2" is one too.
std::vector<LayerRange> layer_ranges(const std::string& text);
// The one way to write them: layer_ranges' inverse.
std::string to_text(const std::vector<LayerRange>& ranges);

// The newest keys that a query of this layer sees; 0: all of them.
int64_t window_of(const ModelSpec& model, int64_t layer);
// How many layers have a window.
int64_t windowed_layers(const ModelSpec& model);

struct Recompute {
    int64_t segment = 0;     // blocks that are run again together in the backward, from their input; 0: none
    bool selective = false;  // norms and activation functions alone are: cheap, and a third of what a block saves
};

// "none", "selective", "full" (segments of 1), "every:N" (of N), "sqrt" (of round(sqrt(layers))). Throws UsageError for
// any other policy.
Recompute recompute_of(const std::string& policy, int64_t layers);

}  // namespace tutti::spec
