// spec/variants.h: the models of Hugging Face that are a decoder like Llama with other options: a row for each
// model_type, with what all of its models have in common, the keys of its config.json, and its names in files.
// variants.cpp is the table; a new row needs no other file but the presets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/spec/model_spec.h"

namespace tutti {
class Json;
}

namespace tutti::spec {

class Keys;

// How files of a class name the blocks that predict later tokens.
enum class LaterFiles {
    none,
    layers,  // as layers behind the last one, model.layers.61, with copies of embedding and head (DeepSeek-V3)
    fused,   // mtp.layers.0, with mtp.fc and its norms once for all blocks (Qwen3-Next)
    parts    // mtp.layers.0 and 1, of which the first and the last have the other parts, too (Nemotron 3)
};

// Names and storage of a row's weights. The others are Llama's.
struct Variant {
    std::string_view name;          // "gemma2": model_type, and [model] variant
    std::string_view architecture;  // "Gemma2ForCausalLM"
    // The norms of a block, before and behind attention and MLP; of a block that lacks one the name is not read.
    const char* before_attention = "input_layernorm";
    const char* behind_attention = "post_attention_layernorm";
    const char* before_mlp = "pre_feedforward_layernorm";
    const char* behind_mlp = "post_feedforward_layernorm";
    const char* before_mlp_alone = "post_attention_layernorm";  // in a block without norms behind its parts
    // Parts of the model and of a layer: model.embed_tokens, model.layers.3.mlp, ...
    const char* prefix = "model";
    const char* embedding = "embed_tokens";
    const char* final_norm = "norm";
    const char* mlp = "mlp";
    bool pairs = false;              // of gate and up, in files (models/feed_forward.h: FeedForwardNames::pairs_of)
    bool fused_qkv = false;          // q | k | v are rows of one tensor, qkv_proj
    bool fused_gate_up = false;      // gate | up are rows of one tensor, gate_up_proj
    bool delta_by_key_head = false;  // of the delta rule, rows of a key head side by side (models/delta_rule.h)
    const char* shared_expert = "shared_expert";  // of the feed-forward part, like the next
    const char* expert_bias = "expert_bias";
    const char* router = "gate";
    // The experts of a layer are in one tensor for gate and up, whose columns alternate, and one for down (gpt-oss).
    bool experts_together = false;
    // Files may hold blocks that predict later tokens, which a model without such blocks passes over.
    LaterFiles later = LaterFiles::none;
};

inline constexpr const char* kAutoVariant = "auto";  // found by the other fields of the model

// The row of a model; for "auto" Llama's names.
const Variant& variant_of(const ModelSpec& model);
std::vector<std::string> variant_names();    // the rows
std::vector<std::string> variant_choices();  // "auto" and the rows

// Sets variant and what all models of the row have: norms, gate, ... The other fields stay.
void set_variant(ModelSpec& model, std::string_view name);
// Reads the keys of the model_type `name`, one of variant_names(), except for those that all models have. Appends to
// `problems`, as the functions of `keys` do; `path`: of the file.
void read_variant(std::string_view name, Keys& keys, ModelSpec& model, const std::string& path,
                  std::vector<std::string>& problems);
// The keys of the model's row, for a config.json. UsageError when the row has no key for an option of the model.
Json variant_config(const ModelSpec& model);

}  // namespace tutti::spec
