// spec/families.h: what all models of a family have in common, as a table: a row for each family. What differs between
// them is in the fields of ModelSpec; spec/layers.h puts both together, layer by layer.
#pragma once

#include <string_view>

#include "tutti/spec/model_spec.h"

namespace tutti::spec {

struct FamilyTraits {
    Family family = {};
    std::string_view name;          // "llama"
    bool tokens = true;             // an embedding, a head, and mixers between tokens; false: rows of features
    bool rotary = true;             // rotary positions
    bool mixtures = true;           // some layers may have experts
    bool biases = false;            // all linear layers have one
    bool gated = true;              // W_down (silu(W_gate x) * W_up x); false: W_out gelu(W_in x), or relu(W x)
    bool plain_heads = false;       // heads * head_dim is the width, and each head has its own keys and values
    bool head_norm = false;         // always normalises the heads of queries and keys
    bool options = false;           // may set what makes Llama's relatives differ: qkv_bias, window, norms, gate, ...
    double router_epsilon = 1e-20;  // of sigmoid scores: added to the sum by which weights are divided (DeepSeek-V3)
    std::string_view unused;        // other keys of [model], with a space after each, that must be 0, false or ""

    bool uses(std::string_view key) const;
};

// A number that is no family has traits without a name; validate() reports it.
const FamilyTraits& traits_of(Family family);
inline const FamilyTraits& traits_of(const ModelSpec& model) { return traits_of(model.family); }

// Gives the keys that the model's family does not use the values that validate() requires of them.
void clear_unused(ModelSpec& model);

}  // namespace tutti::spec
