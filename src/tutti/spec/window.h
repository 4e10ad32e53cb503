// spec/window.h: which layers look back over a window (ModelSpec::window and window_layers). The model, the FLOPs, the
// rules and config.json read it here.
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

}  // namespace tutti::spec
