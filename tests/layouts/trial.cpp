#include "tests/layouts/trial.h"

#include <algorithm>
#include <bit>

#include "tutti/base/error.h"
#include "tutti/base/philox.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::layouts {

namespace {

// Numbers of one stream, one after another.
class Dice {
  public:
    explicit Dice(RandomKey key) : key_(key) {}
    int64_t below(int64_t n) { return static_cast<int64_t>(uniform_below(key_, next_++, static_cast<uint64_t>(n))); }
    bool one_in(int64_t n) { return below(n) == 0; }
    template <class T>
    T of(std::initializer_list<T> values) {
        return values.begin()[below(static_cast<int64_t>(values.size()))];
    }
    std::string text_of(std::initializer_list<const char*> values) { return of(values); }

  private:
    RandomKey key_;
    uint64_t next_ = 0;
};

void put(Settings& settings, const std::string& key, const std::string& value) {
    for (Setting& s : settings)
        if (s.first == key) {
            s.second = value;
            return;
        }
    settings.emplace_back(key, value);
}
// Of --set: lists of layers look like numbers, and are texts.
std::string assignment(const Setting& setting) {
    const bool quoted = setting.second.empty() || setting.first.ends_with("layers");
    const bool number = setting.first == "model.layers";
    return quoted && !number ? concat(setting.first, "=\"", setting.second, '"')
                             : concat(setting.first, '=', setting.second);
}
void put(Settings& settings, const std::string& key, int64_t value) { put(settings, key, std::to_string(value)); }

// --- models ----------------------------------------------------------------------------------------------------------

void put_sizes(Settings& m, Dice& dice, const char* preset, int64_t layers) {
    put(m, "model.preset", preset);
    for (const auto& [key, value] :
         {std::pair("vocab", 256), {"width", 32}, {"heads", 4}, {"head_dim", 8}, {"ffn", 48}, {"max_positions", 64}})
        put(m, concat("model.", key), value);
    put(m, "model.layers", layers);
    put(m, "model.kv_heads", dice.of({1, 2, 4}));
    put(m, "model.init_std", "0.1");
    put(m, "model.tie_embeddings", dice.text_of({"true", "false"}));
}

// A row of spec/variants.h by its tiny preset, whose options stay; the layers that it lists are those of few layers.
std::string draw_variant(Settings& m, Dice& dice, const std::string& name, int64_t layers) {
    const spec::ModelSpec preset = spec::preset(name);
    put_sizes(m, dice, name.c_str(), layers);
    if (!preset.pattern.empty()) {
        put(m, "model.layers", 4);
        put(m, "model.pattern",
            preset.moe.experts > 0 ? dice.text_of({"M*-E", "ME*E", "EM-*"}) : dice.text_of({"MMMM", "MMMM", "M*M-"}));
    }
    if (spec::has_scan(preset)) {
        put(m, "model.scan_heads", dice.of({4, 8}));
        put(m, "model.scan_head_dim", dice.of({4, 5}));
        put(m, "model.scan_groups", dice.of({1, 2, 4}));
        put(m, "model.scan_state", dice.of({4, 6}));
        put(m, "model.conv_kernel", dice.of({2, 3, 4}));
        put(m, "model.scan_step_max", dice.text_of({"0", "0.5"}));
        put(m, "model.scan_norm", dice.text_of({"gated", "before_gate", "none"}));
        if (!preset.scan_layers.empty())
            put(m, "model.scan_layers", preset.scan_beside ? "0" : dice.text_of({"0", "1"}));
    }
    if (preset.rope_dims > 0) put(m, "model.rope_dims", dice.of({4, 6}));
    if (preset.kv_latent > 0) {
        put(m, "model.kv_heads", 4);
        put(m, "model.kv_latent", dice.of({12, 20}));
        if (preset.q_latent > 0) put(m, "model.q_latent", dice.of({0, 12, 20}));
        if (preset.value_dim > 0) put(m, "model.value_dim", dice.of({5, 6}));
    }
    if (preset.moe.experts > 0) {
        put(m, "model.moe.experts", dice.of({4, 8}));
        put(m, "model.moe.top_k", 2);
        put(m, "model.moe.ffn", 16);
        if (preset.moe.shared_ffn > 0) put(m, "model.moe.shared_ffn", 16);
        if (preset.pattern.empty()) put(m, "model.moe.layers", dice.text_of({"1", "0", ""}));
        if (preset.moe.latent > 0) put(m, "model.moe.latent", dice.of({0, 12}));
        if (preset.moe.groups > 1) put(m, "model.moe.groups", 2), put(m, "model.moe.top_groups", dice.of({1, 2}));
    }
    if (!preset.delta_layers.empty()) {
        put(m, "model.delta_layers", dice.text_of({"0", "0", "1"}));
        put(m, "model.delta_key_heads", dice.of({2, 4}));
        put(m, "model.delta_value_heads", dice.of({4, 8}));
        put(m, "model.delta_key_dim", dice.of({4, 6}));
        put(m, "model.delta_value_dim", dice.of({4, 5}));
        put(m, "model.conv_kernel", dice.of({2, 3, 4}));
    }
    if (preset.gate_limit > 0) put(m, "model.gate_limit", dice.text_of({"0.3", "7"}));
    if (preset.window > 0) put(m, "model.window", dice.of({3, 7, 11}));
    if (!preset.window_layers.empty()) put(m, "model.window_layers", "0");
    if (!preset.nope_layers.empty()) put(m, "model.nope_layers", "1");
    if (preset.rope_scaling.factor > 0) put(m, "model.rope_scaling.original_max_positions", dice.of({4, 8, 16}));
    return name;
}

std::string draw_model(Settings& m, Dice& dice, int64_t layers) {
    const std::string name = dice.text_of({"gpt2",
                                           "llama",
                                           "qwen2",
                                           "qwen3",
                                           "mistral",
                                           "lfm2",
                                           "mixtral",
                                           "qwen_moe",
                                           "lfm2_moe",
                                           "gemma-tiny",
                                           "gemma2-tiny",
                                           "gemma3-tiny",
                                           "phi3-tiny",
                                           "olmo2-tiny",
                                           "olmo3-tiny",
                                           "smollm3-tiny",
                                           "granite-tiny",
                                           "glm-tiny",
                                           "glm4-tiny",
                                           "ministral3-tiny",
                                           "seed-oss-tiny",
                                           "exaone4-tiny",
                                           "deepseek-v2-tiny",
                                           "deepseek-v3-tiny",
                                           "kimi-k2-tiny",
                                           "glm4.7-flash-tiny",
                                           "gpt-oss-tiny",
                                           "granite4-tiny",
                                           "nemotron-h-tiny",
                                           "falcon-h1-tiny",
                                           "mamba2-tiny",
                                           "qwen3-next-tiny",
                                           "qwen3.5-tiny",
                                           "qwen3.5-moe-tiny"});
    if (name.ends_with("-tiny")) return draw_variant(m, dice, name, layers);
    const bool moe = name == "mixtral" || name.ends_with("_moe"), lfm2 = name.starts_with("lfm2");
    put_sizes(m, dice, name == "gpt2" ? "gpt2-124m" : lfm2 ? "lfm2-tiny" : moe ? "moe-tiny" : "llama-tiny", layers);
    if (name == "gpt2") {
        put(m, "model.kv_heads", 4);
        if (dice.one_in(4)) put(m, "model.dropout", "0.1");
    }
    if (name == "qwen2") {
        put(m, "model.qkv_bias", "true");
        if (dice.one_in(3)) put(m, "model.output_bias", "true");
        if (dice.one_in(3)) put(m, "model.mlp_bias", "true");
    }
    if (name == "qwen3") {
        put(m, "model.head_norm", "true");
        put(m, "model.head_dim", dice.of({8, 16}));
    }
    if (name == "mistral") {
        put(m, "model.window", dice.of({3, 7, 11}));
        if (dice.one_in(2)) put(m, "model.window_layers", dice.text_of({"0", "1"}));
    }
    if (lfm2) {
        put(m, "model.conv_layers", dice.text_of({"0", "1", "0-1"}));
        put(m, "model.conv_kernel", dice.of({2, 3}));
        if (dice.one_in(3)) put(m, "model.conv_bias", "true");
    }
    if (!moe) return name;
    put(m, "model.moe.experts", dice.of({4, 8}));
    put(m, "model.moe.ffn", 16);
    put(m, "model.moe.layers", dice.text_of({"", "", "1", "0"}));
    put(m, "model.moe.top_k", 2);
    put(m, "model.moe.normalise", dice.text_of({"true", "false"}));
    if (dice.one_in(4)) put(m, "model.moe.top_k", 1), put(m, "model.moe.normalise", "false");
    if (name == "qwen_moe") {
        put(m, "model.moe.shared_ffn", 16);
        put(m, "model.moe.shared_gate", dice.text_of({"true", "false"}));
    }
    if (lfm2 || dice.one_in(4)) {
        put(m, "model.moe.score", "sigmoid");
        put(m, "model.moe.expert_bias", dice.text_of({"true", "false"}));
    }
    put(m, "model.moe.aux_loss", dice.text_of({"none", "microbatch", "sequence", "all_layers"}));
    put(m, "model.moe.aux_coef", m.back().second == "none" ? "0.0" : "0.01");
    if (dice.one_in(2)) put(m, "model.moe.z_coef", "0.01");
    if (dice.one_in(4)) {
        put(m, "model.moe.capacity_factor", dice.text_of({"0.75", "1.25"}));
        put(m, "model.moe.drop", dice.text_of({"probability", "position"}));
    }
    if (dice.one_in(4)) put(m, "model.moe.groups", 2), put(m, "model.moe.top_groups", 1);
    return name;
}

// Blocks that predict later tokens, of the families that have them.
void draw_later_tokens(Settings& m, Dice& dice, const std::string& model) {
    if (model == "gpt2" || model.starts_with("lfm2") || !dice.one_in(4)) return;
    put(m, "model.mtp_depth", dice.of({1, 2}));
    put(m, "model.mtp_weight", "0.5");
}

void draw_training(Settings& r, Dice& dice) {
    put(r, "train.steps", 20);
    put(r, "train.threads", 1);
    put(r, "train.device", "cpu");
    put(r, "train.seed", dice.below(1000));
    put(r, "train.seq_len", dice.of({16, 32}));
    put(r, "data.train", "corpus.txt");
    put(r, "data.documents", dice.text_of({"packed", "packed", "respected"}));
    const std::string compute = dice.text_of({"f32", "f32", "f32", "bf16", "f16"});
    const std::string rule = dice.text_of({"adamw", "adamw", "adamw", "sgd", "lion", "muon"});
    put(r, "precision.compute", compute);
    put(r, "optimizer.name", rule);
    put(r, "optimizer.lr", "0.01");
    put(r, "optimizer.warmup_steps", 0);
    put(r, "optimizer.schedule", "constant");
    // Of the size of gradients: an update is then a smooth function of the gradient also where that is nearly zero.
    put(r, "optimizer.eps", "0.001");
    if (dice.one_in(4)) put(r, "optimizer.clip", "0.0");
    if (dice.one_in(3)) put(r, "optimizer.m", dice.text_of({"bf16", "u8"}));
    const bool has_second = rule == "adamw" || rule == "muon";
    if (has_second && dice.one_in(4)) put(r, "optimizer.v", dice.text_of({"bf16", "u8"}));
    if (compute == "bf16" && dice.one_in(3)) put(r, "precision.master", "none");
    if (dice.one_in(4)) put(r, "train.packed_weights", dice.text_of({"always", "never"}));
    // Small enough that no layout's sums overflow in f16: after an overflow the scales of two layouts may differ.
    if (compute == "f16" || dice.one_in(4)) put(r, "precision.loss_scale", dice.text_of({"1", "16", "256", "dynamic"}));
    put(r, "precision.loss_scale_initial", 64);
    put(r, "precision.loss_scale_interval", 3);
}

// 8-bit products and 16-bit gradients, whose roundings a layout of equal bits repeats, and `verify` bears.
void draw_codes(Settings& r, Dice& dice, bool gradients) {
    if (dice.one_in(3)) {
        put(r, "precision.recipe", dice.text_of({"tensor", "tensor", "delayed", "delayed", "block", "block", "mxfp8"}));
        put(r, "precision.scales", dice.text_of({"pow2", "pow2", "pow2", "f32"}));
        put(r, "precision.bf16_first", dice.of({0, 1}));
        put(r, "precision.bf16_last", dice.of({0, 1}));
    }
    if (!gradients) return;
    if (dice.one_in(6)) put(r, "precision.gradients", "bf16");
    if (dice.one_in(6)) put(r, "precision.reduce", "bf16");
}

// --- layouts ---------------------------------------------------------------------------------------------------------

void draw_recompute(Settings& l, Dice& dice) {
    put(l, "recompute.policy", dice.text_of({"none", "selective", "full", "every:2", "sqrt"}));
    put(l, "offload.optimizer", dice.text_of({"false", "false", "true"}));
    put(l, "offload.activations", dice.text_of({"false", "false", "true"}));
}

void draw_zero(Settings& l, Dice& dice) {
    const int64_t zero = dice.below(4);
    put(l, "parallel.zero", zero);
    put(l, "offload.params", zero == 3 && dice.one_in(3) ? "true" : "false");
    put(l, "parallel.unsharded_stages", zero == 3 && dice.one_in(3) ? dice.of({1, 2}) : 0);
    put(l, "parallel.reductions", dice.of({1, 1, 2, 5}));
}

// Returns the number of ranks. `micro`, `global`: samples of a microbatch and of a step.
int draw_layout(Settings& l, Dice& dice, bool experts, int64_t micro, int64_t global) {
    const int ranks = dice.of({2, 2, 4, 4, 4, 6, 8, 8});
    int64_t tp = 1, cp = 1, pp = 1, replicate = 1, dp = 1;
    for (int left = ranks; left > 1;) {
        const int factor = left % 3 == 0 ? 3 : 2;
        left /= factor;
        int64_t* const axes[] = {&dp, &replicate, &tp, &tp, &cp, &cp, &pp, &pp};
        *axes[factor == 3 ? dice.of({0, 1, 6}) : dice.below(8)] *= factor;
    }
    put(l, "parallel.dp_replicate", replicate);
    put(l, "parallel.tp", tp);
    put(l, "parallel.cp", cp);
    put(l, "parallel.pp", pp);
    put(l, "train.micro_batch", micro);
    put(l, "train.global_batch", global);
    draw_zero(l, dice);
    put(l, "parallel.accumulate", dice.text_of({"auto", "full"}));
    if (tp > 1) {
        put(l, "parallel.sequence_parallel", dice.text_of({"true", "true", "false"}));
        put(l, "parallel.tp_overlap", dice.of({1, 1, 2, 4}));
    }
    if (cp > 1) {
        put(l, "parallel.cp_method", dice.text_of({"ring", "all_gather", "ulysses"}));
        if (cp > 2 && l.back().second != "ulysses") put(l, "parallel.cp_ulysses", dice.of({0, 2}));
    }
    if (pp > 1) {
        const auto kinds = schedule::kinds();
        const schedule::Kind& kind = kinds[static_cast<size_t>(dice.below(static_cast<int64_t>(kinds.size())))];
        put(l, "parallel.schedule", dice.one_in(12) ? "auto" : std::string(kind.name));
        if (kind.chunks == 0) put(l, "parallel.virtual_stages", dice.of({1, 2}));
    }
    if (experts) {
        put(l, "parallel.ep", dice.of({1, 2, 4}));
        put(l, "parallel.etp", dice.of({1, 1, 2}));
    }
    draw_recompute(l, dice);
    put(l, "comm.progress_thread", dice.text_of({"false", "false", "true"}));
    return ranks;
}

// Settings over `layout` that may not change a bit: the state's sharding, recompute, offload and when to communicate.
Settings draw_twin(const Settings& layout, Dice& dice) {
    Settings other;
    if (!dice.one_in(4)) draw_zero(other, dice);
    if (!dice.one_in(4)) draw_recompute(other, dice);
    if (dice.one_in(3)) put(other, "comm.progress_thread", dice.text_of({"false", "true"}));
    for (const auto& [key, value] : layout)
        if (key == "parallel.tp_overlap") put(other, key, dice.of({1, 2, 4}));
    return other;
}

// What rounding alone decides, which `verify` has to bear: updates of noise, queries that see one key, large weights.
// Returns the number of steps: after some, the model is a trained one.
int draw_extremes(Settings& r, const std::string& model, Dice& dice) {
    put(r, "optimizer.eps", "1e-8");
    put(r, "optimizer.lr", dice.text_of({"0.01", "0.001"}));
    put(r, "model.init_std", dice.text_of({"0.02", "0.1", "0.3"}));
    if (model == "mistral" && dice.one_in(3)) put(r, "model.window", 1);
    return dice.of({3, 3, 3, 15});
}

bool is_legal(const Settings& run, const Settings& layout, int ranks) {
    try {
        run_of({run, layout}, ranks);
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

// What of a layout is gathered as codes, where it may be: of `part`, which stands over `layout`. Half of the runs with
// a recipe gather what they may, with stage 3 of ZeRO where that is legal.
void draw_gather(const Settings& run, const Settings& layout, Settings& part, int ranks, Dice& dice) {
    const Settings without = part;
    const auto legal_with = [&](const std::string& what, bool zero_3) {
        part = without;
        put(part, "precision.gather", what);
        if (zero_3) put(part, "parallel.zero", 3);
        Settings whole = layout;
        for (const auto& [key, value] : part) put(whole, key, value);
        return is_legal(run, whole, ranks);
    };
    const bool coded = std::any_of(run.begin(), run.end(), [](auto& s) { return s.first == "precision.recipe"; });
    if (coded && dice.one_in(2)) {
        std::vector<std::string> all = {"all", "weights", "sequences"};
        std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(dice.below(3)), all.end());
        for (const std::string& what : all)
            for (const bool zero_3 : {false, true})
                if (legal_with(what, zero_3)) return;
    }
    part = without;
    put(part, "precision.gather", "none");
}

// Whether two layouts of one HSDP shape add gradients in one order: stage 0 of ZeRO sums replicas and shards in one
// tree, the other stages each group of shards first (docs/promises.md).
bool sum_alike(const spec::RunSpec& a, const spec::RunSpec& b, int ranks) {
    const int64_t shards = spec::data_parallel_ranks(a.parallel, ranks) / a.parallel.dp_replicate;
    const bool power_of_two = std::has_single_bit(static_cast<uint64_t>(shards));
    return (a.parallel.zero == 0) == (b.parallel.zero == 0) || a.parallel.dp_replicate == 1 || power_of_two;
}

}  // namespace

const char* name_of(Compare compare) {
    constexpr const char* kNames[] = {"one_rank", "twin", "resumed", "verify"};
    return kNames[static_cast<size_t>(compare)];
}

Trial draw(uint64_t seed, int64_t number, int attempt, Compare compare) {
    constexpr int kTries = 10'000;
    Dice dice(random_key(seed, concat("layouts.", name_of(compare), attempt), static_cast<uint64_t>(number)));
    for (int i = 0; i < kTries; ++i) {
        Trial t{.compare = compare};
        t.model = draw_model(t.run, dice, dice.of({2, 3, 4, 6, 8}));
        draw_later_tokens(t.run, dice, t.model);
        draw_training(t.run, dice);
        if (compare == Compare::twin || compare == Compare::verify) draw_codes(t.run, dice, compare == Compare::verify);
        const int64_t micro = dice.of({1, 1, 2}), global = dice.of({4, 6, 8, 12, 16});
        const bool experts =
            std::any_of(t.run.begin(), t.run.end(), [](auto& s) { return s.first == "model.moe.experts"; });
        t.ranks = draw_layout(t.layout, dice, experts, micro, global);
        if (compare == Compare::twin) {
            put(t.layout, "parallel.accumulate", "full");
            t.other = draw_twin(t.layout, dice);
            t.other_ranks = t.ranks;
        }
        if (compare == Compare::verify) t.steps = draw_extremes(t.run, t.model, dice);
        if (compare == Compare::resumed) t.other_ranks = draw_layout(t.other, dice, experts, micro, global);
        draw_gather(t.run, {}, t.layout, t.ranks, dice);
        if (!t.other.empty())
            draw_gather(t.run, compare == Compare::twin ? t.layout : Settings(), t.other, t.other_ranks, dice);
        if (!is_legal(t.run, t.layout, t.ranks)) continue;
        Settings other = compare == Compare::twin ? t.layout : Settings();
        for (const auto& [key, value] : t.other) put(other, key, value);
        if (!t.other.empty() && !is_legal(t.run, other, t.other_ranks)) continue;
        if (compare == Compare::twin &&
            !sum_alike(run_of({t.run, t.layout}, t.ranks), run_of({t.run, other}, t.ranks), t.ranks))
            continue;
        return t;
    }
    throw Error(concat("no legal layout in ", kTries, " draws of seed ", seed, ", number ", number));
}

spec::RunSpec run_of(const std::vector<Settings>& settings, int ranks) {
    std::vector<std::string> all;
    for (const Settings& part : settings)
        for (const Setting& setting : part) all.push_back(assignment(setting));
    spec::RunSpec run = spec::parse_text("", "trial", all);
    spec::validate(run, ranks);
    return run;
}

std::string text_of(const Settings& settings) {
    std::string text;
    for (const Setting& setting : settings)
        text += concat(text.empty() ? "" : " ", "--set '", assignment(setting), '\'');
    return text;
}

}  // namespace tutti::layouts
