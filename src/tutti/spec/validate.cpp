// spec/validate.cpp: the rules between fields: first those of [model], then the rest. Each function adds one line per
// broken rule; nothing stops at the first.
#include "tutti/spec/validate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>

#include "tutti/base/error.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/families.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/stages.h"

namespace tutti::spec {
namespace {

using Problems = std::vector<std::string>;

// require(problems, rule holds?, message parts...): a part that is a function is called when the rule does not hold.
template <class... Parts>
void require(Problems& problems, bool holds, const Parts&... parts) {
    const auto text_of = []<class Part>(const Part& part) {
        if constexpr (std::invocable<Part>)
            return concat(part());
        else
            return concat(part);
    };
    if (!holds) problems.push_back(concat(text_of(parts)...));
}

// "; nearest: tp = 2 or 4"; `section` and `key` of the value to change.
auto nearest_divisors_of(int64_t n, int64_t value, const char* section, const char* key) {
    return [=] { return nearest_divisors(concat("; nearest: ", key, " = "), n, value, concat(section, '.', key)); };
}
auto nearest_multiples_of(int64_t n, int64_t unit, const char* section, const char* key) {
    return [=] { return nearest_multiples(concat("; nearest: ", key, " = "), n, unit, concat(section, '.', key)); };
}

// Of the fields of one section, or of all. The rules below divide by values and multiply them, so they are asked only
// about runs without such problems.
Problems out_of_range(const RunSpec& run, std::string_view section = "") {
    Problems problems;
    for_each_field(run, [&](const Field& field, const auto& value) {
        const bool asked = section.empty() || field.section == section;
        if (const auto problem = asked ? range_problem(field, value) : std::nullopt) problems.push_back(*problem);
    });
    return problems;
}

// --- [model] --------------------------------------------------------------------------------------------------------

// Fields that the family does not have must be 0 (false, ""): a request is met or refused, never ignored.
void check_unused(const ModelSpec& m, Problems& problems) {
    const RunSpec run{.model = m};
    for_each_field(run, [&]<class T>(const Field& field, const T& value) {
        if (field.section == "model" && !traits_of(m).uses(field.key)) {
            T none{};  // of a text with choices the first one
            if constexpr (std::is_same_v<T, std::string>)
                if (!field.range.choices.empty()) none = field.range.choices.front();
            require(problems, value == none, field.name(), " = ", toml_text(value), ": the family ", name_of(m.family),
                    " does not use it; it must be ", toml_text(none));
        }
    });
}

void check_transformer(const ModelSpec& m, Problems& problems) {
    const std::pair<const char*, int64_t> sizes[] = {{"vocab", m.vocab},       {"heads", m.heads},
                                                     {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim},
                                                     {"ffn", m.ffn},           {"max_positions", m.max_positions}};
    for (const auto& [key, size] : sizes) {
        require(problems, size >= 1, "[model] ", key, " = ", size, ": the family ", name_of(m.family),
                " needs at least 1");
    }
    require(problems, m.norm_eps > 0, "[model] norm_eps = ", toml_text(m.norm_eps), ": must be > 0");
    if (m.heads < 1 || m.kv_heads < 1 || m.head_dim < 1 || m.width < 1) return;

    const int64_t all_heads = product({m.heads, m.head_dim});
    require(problems, all_heads == m.width || !traits_of(m).plain_heads, "[model] heads * head_dim = ", m.heads, " * ",
            m.head_dim, " = ", all_heads, ": in ", name_of(m.family), " it must equal width = ", m.width, [&] {
                const int64_t dim = m.width / m.heads;
                return m.width % m.heads == 0
                           ? suggestion("; for example head_dim = ", dim, dim, "model.head_dim")
                           : nearest_divisors("; heads must divide width, nearest: heads = ", m.width, m.heads,
                                              "model.heads");
            });
    require(problems, m.heads % m.kv_heads == 0 || traits_of(m).plain_heads, "[model] kv_heads = ", m.kv_heads,
            ": must divide heads = ", m.heads,
            [&] { return nearest_divisors("; nearest: ", m.heads, m.kv_heads, "model.kv_heads"); });
}

void check_positions(const ModelSpec& m, Problems& problems) {
    if (traits_of(m).plain_heads) {
        require(problems, m.kv_heads == m.heads, "[model] kv_heads = ", m.kv_heads, ": the family ", name_of(m.family),
                " has no grouped queries; it must equal heads = ", m.heads);
    }
    if (traits_of(m).rotary) {
        require(problems, m.rope_theta > 0, "[model] rope_theta = ", toml_text(m.rope_theta), ": must be > 0");
        require(problems, m.head_dim % 2 == 0, "[model] head_dim = ", m.head_dim, ": must be even, RoPE rotates pairs",
                [&] { return suggestion("; nearest: ", m.head_dim - 1, m.head_dim + 1, "model.head_dim"); });
    }
}

// One way to write each list, so that equal models are equal specs. Nothing when it is no list of this model's layers.
std::vector<LayerRange> check_layer_list(const ModelSpec& m, const char* key, const std::string& text,
                                         Problems& problems) {
    try {
        const std::vector<LayerRange> ranges = layer_ranges(text);
        const std::string given = concat("[model] ", key, " = ", toml_text(text), ": ");
        require(problems, to_text(ranges) == text, given, "write it as ", toml_text(to_text(ranges)));
        require(problems, ranges.empty() || ranges.back().last < m.layers, given, "the layers are 0 to ", m.layers - 1);
        return ranges;
    } catch (const UsageError& error) {
        problems.push_back(concat("[model] ", key, ": ", error.what()));
        return {};
    }
}

void check_window(const ModelSpec& m, Problems& problems) {
    if (m.window_layers.empty()) return;
    const std::string given = concat("[model] window_layers = ", toml_text(m.window_layers), ": ");
    const std::vector<LayerRange> ranges = check_layer_list(m, "window_layers", m.window_layers, problems);
    if (ranges.empty()) return;
    require(problems, ranges != std::vector<LayerRange>{{0, m.layers - 1}}, given,
            "these are all layers; leave it out");
    require(problems, m.window > 0, given, "has no effect while window = 0; set window or leave it out");
}

void check_convolutions(const ModelSpec& m, Problems& problems) {
    check_layer_list(m, "conv_layers", m.conv_layers, problems);
    if (m.conv_layers.empty()) {
        require(problems, m.conv_kernel == 0 && !m.conv_bias, "[model] conv_kernel = ", m.conv_kernel,
                ", conv_bias = ", toml_text(m.conv_bias),
                ": have no effect while conv_layers is empty; name the layers or leave both out");
    } else {
        require(problems, m.conv_kernel >= 1, "[model] conv_kernel = ", m.conv_kernel,
                ": conv_layers = ", toml_text(m.conv_layers),
                " have a convolution, which needs at least 1; LFM2 has 3");
    }
}

void check_rope_scaling(const RopeScaling& scaling, Problems& problems) {
    if (scaling.factor == 0) {
        require(
            problems, scaling == RopeScaling{},
            "[model] rope_scaling: its other keys have no effect while factor = ", "0; set factor or leave them out");
        return;
    }
    RopeScaling used{.type = scaling.type, .factor = scaling.factor};  // the keys that the type reads
    if (scaling.type == "longrope") {
        used.attention_factor = scaling.attention_factor;
        used.short_factors = scaling.short_factors;
        used.long_factors = scaling.long_factors;
    }
    if (scaling.type != "linear") used.original_max_positions = scaling.original_max_positions;
    if (scaling.type == "llama3") {
        used.low_freq_factor = scaling.low_freq_factor;
        used.high_freq_factor = scaling.high_freq_factor;
    }
    if (scaling.type == "yarn") {
        used.beta_fast = scaling.beta_fast;
        used.beta_slow = scaling.beta_slow;
        used.attention_factor = scaling.attention_factor;
        used.truncate = scaling.truncate;
        used.mscale = scaling.mscale;
        used.mscale_all_dim = scaling.mscale_all_dim;
    }
    require(problems, scaling == used, "[model] rope_scaling: type = ", toml_text(scaling.type),
            " does not use every key that is set; leave out those of the other types");
    require(problems, scaling.high_freq_factor > scaling.low_freq_factor,
            "[model] rope_scaling.high_freq_factor = ", toml_text(scaling.high_freq_factor),
            ": must be above low_freq_factor = ", toml_text(scaling.low_freq_factor));
    require(problems, scaling.beta_fast >= scaling.beta_slow,
            "[model] rope_scaling.beta_fast = ", toml_text(scaling.beta_fast),
            ": must be at least beta_slow = ", toml_text(scaling.beta_slow));
}

void check_latent(const ModelSpec& m, Problems& problems) {
    const std::string given = concat("[model] kv_latent = ", m.kv_latent, ": ");
    if (m.kv_latent == 0) {
        require(problems, m.q_latent == 0, "[model] q_latent = ", m.q_latent,
                ": has no effect while kv_latent = 0; set kv_latent or leave it out");
        require(problems, m.value_dim == 0, "[model] value_dim = ", m.value_dim,
                ": values are as wide as keys while kv_latent = 0; set kv_latent or leave it out");
        return;
    }
    require(problems, m.rope_dims > 0 && m.rope_dims < m.head_dim, given,
            "the heads share a key of rope_dims = ", m.rope_dims, " channels, from 2 to below head_dim = ", m.head_dim,
            "; set rope_dims");
    require(problems, m.value_dim <= m.head_dim, "[model] value_dim = ", m.value_dim,
            ": must be at most head_dim = ", m.head_dim,
            suggestion("; nearest: value_dim = ", m.head_dim, m.head_dim, "model.value_dim"));
    require(problems, m.kv_heads == m.heads, "[model] kv_heads = ", m.kv_heads,
            ": with kv_latent each head has its own ", "keys; it must equal heads = ", m.heads);
    require(problems,
            !m.head_norm && !m.width_norm && !m.qkv_bias && !m.output_bias && m.query_growth == 0 && m.window == 0 &&
                m.nope_layers.empty() && !m.sinks,
            given, "latent attention has no head_norm, width_norm, qkv_bias, output_bias, query_growth, window, ",
            "nope_layers or sinks; leave them out");
}

// The options of Llama's relatives.
void check_options(const ModelSpec& m, Problems& problems) {
    require(problems, !m.head_norm || !m.width_norm,
            "[model] width_norm = true: queries and keys are normalised already, by head_norm; set one of them");
    require(problems, !m.embedding_sqrt || m.embedding_scale == 0,
            "[model] embedding_scale = ", toml_text(m.embedding_scale),
            ": embedding_sqrt multiplies the embeddings already; set one of them");
    require(problems, m.rope_dims <= m.head_dim && m.rope_dims % 2 == 0, "[model] rope_dims = ", m.rope_dims,
            ": must be even and at most head_dim = ", m.head_dim, ", RoPE rotates pairs of channels");
    check_layer_list(m, "nope_layers", m.nope_layers, problems);
    require(problems, m.window_rope_theta == 0 || m.window > 0,
            "[model] window_rope_theta = ", toml_text(m.window_rope_theta),
            ": has no effect while window = 0; set window or leave it out");
    require(problems, m.query_growth == 0 || m.rope_scaling.factor > 0,
            "[model] query_growth = ", toml_text(m.query_growth),
            ": needs rope_scaling, whose original_max_positions it reads");
    require(problems, m.query_growth == 0 || (m.rope_dims == 0 && m.nope_layers.empty() && m.window_rope_theta == 0),
            "[model] query_growth = ", toml_text(m.query_growth),
            ": grows whole heads with RoPE; it needs rope_dims = 0, nope_layers = \"\" and window_rope_theta = 0");
    check_latent(m, problems);
    require(problems, (m.mtp_depth > 0) == (m.mtp_weight > 0), "[model] mtp_depth = ", m.mtp_depth,
            " with mtp_weight = ", toml_text(m.mtp_weight),
            ": one switches these predictions on and the other off; DeepSeek-V3 has 1 with 0.3");
    require(problems, (m.gate == "clamped") == (m.gate_limit > 0), "[model] gate_limit = ", toml_text(m.gate_limit),
            ": gate = \"clamped\" needs a limit above 0, and gate = ", toml_text(m.gate), " is given; gpt-oss has ",
            "gate = \"clamped\" and gate_limit = 7");
    if (m.rope_scaling.type != "longrope" || m.rope_scaling.factor == 0) return;
    const int64_t frequencies = (m.rope_dims > 0 ? m.rope_dims : m.head_dim) / 2;
    for (const auto& [key, text] :
         {std::pair{"short_factors", m.rope_scaling.short_factors}, {"long_factors", m.rope_scaling.long_factors}}) {
        const std::string given = concat("[model] rope_scaling.", key, " = ", toml_text(text), ": ");
        try {
            const std::vector<double> factors = number_list(text);
            require(problems, static_cast<int64_t>(factors.size()) == frequencies, given, "needs ", frequencies,
                    " numbers, one for each frequency");
            require(problems, std::ranges::all_of(factors, [](double f) { return f > 0; }), given, "must be above 0");
            require(problems, list_text(factors) == text, given, "write it as ", toml_text(list_text(factors)));
        } catch (const UsageError& error) {
            problems.push_back(concat(given, error.what()));
        }
    }
}

void check_mixture(const ModelSpec& m, Problems& problems) {
    const MixtureSpec& e = m.moe;
    if (e.experts == 0) {
        require(problems, e == MixtureSpec{},
                "[model] moe: its other keys have no effect while experts = 0; set experts or leave them out");
        return;
    }
    require(problems, traits_of(m).mixtures, "[model] moe.experts = ", e.experts, ": the family ", name_of(m.family),
            " has no mixture of experts; set 0");
    require(problems, !m.mlp_bias, "[model] mlp_bias = true: experts have no mlp_bias; set false, or moe.bias");
    require(problems, e.top_k >= 1 && e.top_k <= e.experts, "[model] moe.top_k = ", e.top_k,
            ": must be from 1 to experts = ", e.experts);
    require(problems, e.ffn >= 1, "[model] moe.ffn = ", e.ffn, ": must be at least 1");
    require(problems, !e.shared_gate || e.shared_ffn > 0,
            "[model] moe.shared_gate = true: there is no shared expert; set shared_ffn, or false");
    require(problems, e.experts % e.groups == 0, "[model] moe.groups = ", e.groups,
            ": must divide experts = ", e.experts,
            [&] { return nearest_divisors("; nearest: ", e.experts, e.groups, "model.moe.groups"); });
    require(problems, e.top_groups <= e.groups && (e.groups > 1 || e.top_groups == 1),
            "[model] moe.top_groups = ", e.top_groups, ": must be at most groups = ", e.groups);
    if (e.groups > 1 && e.experts % e.groups == 0 && e.top_groups <= e.groups) {
        require(problems, e.top_k <= product({e.experts / e.groups, e.top_groups}), "[model] moe.top_k = ", e.top_k,
                ": the ", e.top_groups, " groups of ", e.experts / e.groups,
                " experts that a token may go to have fewer; set top_groups higher, or top_k lower");
        require(problems, e.group_best > 0 || e.top_k % e.top_groups == 0, "[model] moe.top_k = ", e.top_k,
                ": must be a multiple of top_groups = ", e.top_groups,
                ", since a group is judged by its top_k / top_groups best experts; or set group_best");
        require(problems, e.group_best <= e.experts / e.groups, "[model] moe.group_best = ", e.group_best,
                ": a group has ", e.experts / e.groups, " experts");
    }
    require(problems, e.group_best == 0 || e.groups > 1, "[model] moe.group_best = ", e.group_best,
            ": has no effect while groups = 1; set groups or leave it out");
    require(problems, e.capacity_factor > 0 || e.drop == "probability", "[model] moe.drop = ", toml_text(e.drop),
            ": nothing is dropped while capacity_factor = 0; set it or leave drop out");
    require(problems, (e.aux_loss == "none") == (e.aux_coef == 0), "[model] moe.aux_loss = ", toml_text(e.aux_loss),
            " with aux_coef = ", toml_text(e.aux_coef), ": one switches this loss on and the other off");
    const bool all = !e.layers.empty() && check_layer_list(m, "moe.layers", e.layers, problems) ==
                                              std::vector<LayerRange>{{0, m.layers - 1}};
    require(problems, !all, "[model] moe.layers = ", toml_text(e.layers), ": these are all layers; leave it out");
}

void check_model(const ModelSpec& m, Problems& problems) {
    check_unused(m, problems);
    if (traits_of(m).tokens) check_transformer(m, problems);
    check_positions(m, problems);
    if (traits_of(m).uses("window_layers")) check_window(m, problems);
    require(problems, m.head_norm || !traits_of(m).head_norm, "[model] head_norm = false: the family ",
            name_of(m.family), " always has it; set true");
    if (traits_of(m).uses("conv_layers")) check_convolutions(m, problems);
    check_rope_scaling(m.rope_scaling, problems);
    if (traits_of(m).options) check_options(m, problems);
    check_mixture(m, problems);
}

// --- [data], [train], [optimizer], [recompute] ----------------------------------------------------------------------

bool may_be_text(const DataSpec& data) {
    if (data.format != "auto") return data.format == "text" || data.format == "jsonl";
    return std::any_of(data.train.begin(), data.train.end(), [](const std::string& f) { return !f.ends_with(".bin"); });
}

void check_data(const RunSpec& run, Problems& problems) {
    const DataSpec& d = run.data;
    if (!traits_of(run.model).tokens) {
        require(problems, d.train.empty() && d.valid.empty() && d.valid_fraction == 0,
                "[data] train, valid, valid_fraction: the family ", name_of(run.model.family),
                " makes its own inputs; leave them out");
        return;
    }
    require(problems, !d.train.empty(), "[data] train = []: name at least one text or token file");
    require(problems, d.valid.empty() || d.valid_fraction == 0, "[data] valid_fraction = ", toml_text(d.valid_fraction),
            ": must be 0.0 when valid names files; give one of the two");
    require(problems, !d.tokenizer.empty(), "[data] tokenizer = \"\": must be bytes or the path of a tokenizer");
    require(problems, d.tokenizer != "bytes" || !may_be_text(d) || run.model.vocab >= 256,
            "[model] vocab = ", run.model.vocab, ": must be >= 256 for [data] tokenizer = \"bytes\"");
}

// Weights that are 1 whatever the router says: no gradient reaches the router, and there is no order to drop by.
void check_router(const ModelSpec& m, Problems& problems) {
    const MixtureSpec& e = m.moe;
    if (e.experts == 0) return;
    require(problems, e.top_k != 1 || !e.normalise,
            "[model] moe.top_k = 1: with normalise = true the one weight of a token is p / p = 1, so that no gradient "
            "reaches the router; set moe.normalise = false, or top_k = 2 or more");
    const bool all_one = e.experts == 1 && e.score == "softmax";
    require(problems, !all_one || e.capacity_factor == 0 || e.drop == "position",
            "[model] moe.drop = \"probability\": the one expert has probability 1 for every token; set drop = "
            "\"position\"");
}

void check_train(const RunSpec& run, int ranks, Problems& problems) {
    const TrainSpec& t = run.train;
    if (traits_of(run.model).tokens) {
        require(problems, t.seq_len <= run.model.max_positions, "[train] seq_len = ", t.seq_len,
                ": must be at most [model] max_positions = ", run.model.max_positions);
    }
    require(problems, t.eval_every == 0 || !run.data.valid.empty() || run.data.valid_fraction > 0,
            "[train] eval_every = ", t.eval_every, ": needs validation data; set [data] valid or valid_fraction");

    if (batch_divides(run, ranks)) return;
    const int64_t data_parallel = data_parallel_ranks(run.parallel, ranks);
    const int64_t unit = product({t.micro_batch, data_parallel});
    std::string text =
        concat("[train] global_batch = ", t.global_batch, ": must be a multiple of micro_batch * data-",
               "parallel ranks = ", t.micro_batch, " * ", data_parallel, " = ", unit,
               nearest_multiples("; nearest: global_batch = ", t.global_batch, unit, "train.global_batch"));
    if (t.global_batch % data_parallel == 0)
        text +=
            nearest_divisors(", or micro_batch = ", t.global_batch / data_parallel, t.micro_batch, "train.micro_batch");
    problems.push_back(text);
}

void check_optimizer(const RunSpec& run, Problems& problems) {
    const OptimizerSpec& o = run.optimizer;
    const int64_t steps = run.train.steps;
    require(problems, o.schedule == "constant" || o.min_lr <= o.lr, "[optimizer] min_lr = ", toml_text(o.min_lr),
            ": must be at most lr = ", toml_text(o.lr));
    require(problems, o.schedule == "wsd" || o.decay_steps == 0, "[optimizer] decay_steps = ", o.decay_steps,
            ": only schedule = \"wsd\" uses it, not \"", o.schedule, "\"; set 0 or schedule = \"wsd\"");
    const bool decays = o.schedule == "wsd" && o.warmup_steps <= steps;
    require(problems, !decays || o.decay_steps <= steps - o.warmup_steps, "[optimizer] decay_steps = ", o.decay_steps,
            ": must be at most [train] steps - warmup_steps = ", steps - std::min(steps, o.warmup_steps));
    require(problems, o.v == "f32" || o.name == "adamw" || o.name == "muon", "[optimizer] v = ", toml_text(o.v), ": ",
            o.name, " has no second moment; leave it out, or set m");
    const PrecisionSpec& p = run.precision;
    require(problems, p.master == "f32" || p.compute == "bf16", "[precision] master = ", toml_text(p.master),
            ": weights of compute = ", toml_text(p.compute),
            p.compute == "f16" ? " need masters: only bf16 is rounded stochastically" : " are their own masters",
            "; set master = \"f32\", or compute = \"bf16\"");
    require(
        problems, p.master == "f32" || !run.offload.params, "[precision] master = ", toml_text(p.master),
        ": weights in host memory (offload.params) are rounded from masters; set master = \"f32\" or params = false");
}

void check_log(const RunSpec& run, Problems& problems) {
    require(problems, !run.log.trace || run.log.trace_first <= run.train.steps,
            "[log] trace_first = ", run.log.trace_first, ": must be at most [train] steps = ", run.train.steps,
            ", or 0");
    require(problems, run.log.sample_tokens == 0 || traits_of(run.model).tokens,
            "[log] sample_tokens = ", run.log.sample_tokens, ": an mlp writes no text; set 0");
}

void check_recompute(const RunSpec& run, Problems& problems) {
    const std::string& policy = run.recompute.policy;
    for (const char* known : {"none", "selective", "full", "sqrt"}) {
        if (policy == known) return;
    }
    constexpr std::string_view kEvery = "every:";
    int64_t n = 0;
    if (policy.starts_with(kEvery)) {
        const char* end = policy.data() + policy.size();
        const auto [stop, error] = std::from_chars(policy.data() + kEvery.size(), end, n);
        if (error == std::errc() && stop == end && n >= 1 && n <= run.model.layers) return;
    }
    problems.push_back(concat("[recompute] policy = ", toml_text(policy), ": must be none, selective, full, sqrt or ",
                              "every:N with N from 1 to [model] layers = ", run.model.layers));
}

// --- [parallel] -----------------------------------------------------------------------------------------------------

void check_mesh(const ParallelSpec& p, int ranks, Problems& problems) {
    require(problems, p.dp_shard != 0, "[parallel] dp_shard = 0: must be -1 or at least 1");
    require(problems, p.accumulate != "shard" || p.zero >= 2, "[parallel] accumulate = \"shard\": zero = ", p.zero,
            " keeps whole gradients; set zero = 2 or 3, or accumulate = \"auto\"");
    require(problems, p.strategy != "parameter_server" || p.zero == 0,
            "[parallel] strategy = \"parameter_server\": the server keeps the whole state; set zero = 0, not ", p.zero);
    // The server adds up the gradients of replicas of one whole model.
    for (const auto& [key, size] : {std::pair{"tp", p.tp}, {"cp", p.cp}, {"ep", p.ep}, {"etp", p.etp}})
        require(problems, p.strategy != "parameter_server" || size == 1,
                "[parallel] strategy = \"parameter_server\": ", key, " = ", size,
                ": the server sums over data-parallel ", "ranks alone; set ", key,
                " = 1, or strategy = \"collective\"");
    if (p.dp_shard == 0 || axes_fill_ranks(p, ranks)) return;
    const std::string axes = concat("[parallel] dp_replicate * tp * cp * pp = ", p.dp_replicate, " * ", p.tp, " * ",
                                    p.cp, " * ", p.pp, " = ", product({p.dp_replicate, p.tp, p.cp, p.pp}));
    if (p.dp_shard == -1)
        problems.push_back(
            concat(axes, ": must divide the number of ranks, ", ranks, ", as dp_shard = -1 takes the remaining ones"));
    else
        problems.push_back(
            concat(axes, ", times dp_shard = ", p.dp_shard, ": must equal the number of ranks, ", ranks));
}

void check_context_parallel(const RunSpec& run, Problems& problems) {
    const ModelSpec& m = run.model;
    const ParallelSpec& p = run.parallel;
    const int64_t cp = p.cp, exchanging = ulysses_ranks(p), unit = sequence_unit(p);
    if (cp == 1 && exchanging == 1) return;
    require(problems, traits_of(m).tokens, "[parallel] cp = ", cp, ": the family mlp has no sequences; set it to 1");
    const std::string ulysses = concat("[parallel] cp_ulysses = ", exchanging);
    require(problems, ulysses_fits_method(p), ulysses, ": with cp_method = \"ulysses\" all of cp = ", cp,
            " exchange heads; leave cp_ulysses at 0, or set cp_method to ring or all_gather, which the other ranks of "
            "cp use");
    require(problems, ulysses_divides_cp(p), ulysses, ": must divide cp = ", cp,
            nearest_divisors_of(cp, exchanging, "parallel", "cp_ulysses"));
    if (!ulysses_fits_method(p) || !ulysses_divides_cp(p)) return;
    require(problems, cp_divides_sequence(run), "[train] seq_len = ", run.train.seq_len, ": must be a multiple of ",
            unit == cp       ? "cp = "
            : unit == 2 * cp ? "2 cp = "
                             : "cp and of two chunks a rank, ",
            unit, nearest_multiples_of(run.train.seq_len, unit, "train", "seq_len"));
    require(problems, cp_leaves_tokens_of_convolution(run), "[train] seq_len = ", run.train.seq_len,
            ": a rank of [parallel] cp = ", cp, " has ", run.train.seq_len / unit,
            " tokens in a row; a convolution needs [model] conv_kernel - 1 = ", m.conv_kernel - 1, " of them");
    if (!divides(p.tp, m.heads)) return;
    require(problems, ulysses_divides_heads(run), ulysses, ": must divide [model] heads = ", m.heads,
            p.tp == 1 ? "" : concat(" / tp = ", m.heads / p.tp),
            nearest_divisors_of(m.heads / p.tp, exchanging, "parallel", "cp_ulysses"));
    require(problems, ulysses_fits_kv_heads(run), ulysses, ": must divide the ", kv_heads_of_rank(run),
            " key and value heads of a rank ([model] kv_heads = ", m.kv_heads, "), or be a multiple of them");
}

// Stages update by themselves, each microbatch: nothing waits for what all ranks would have to know first.
void check_pipedream(const RunSpec& run, Problems& problems) {
    const ParallelSpec& p = run.parallel;
    if (p.schedule != "pipedream") return;
    const auto refuse = [&](bool asked, const char* key, const auto& value, const std::string& reason) {
        require(problems, !asked, "[parallel] schedule = \"pipedream\": ", key, " = ", toml_text(value), ": ", reason);
    };
    refuse(run.optimizer.clip > 0, "[optimizer] clip", run.optimizer.clip,
           "the norm of the whole gradient is not known when a stage updates; set 0.0");
    refuse(p.zero > 1, "[parallel] zero", p.zero, "weights in several versions must be whole; set 0 or 1");
    refuse(p.virtual_stages > 1, "[parallel] virtual_stages", p.virtual_stages, "a rank has one stage; set 1");
    refuse(run.model.tie_embeddings && p.pp > 1, "[model] tie_embeddings", true,
           "the stages that hold the matrix would update it differently; set false");
    refuse(run.offload.optimizer || run.offload.params, "[offload] optimizer or params", true, "set both to false");
    refuse(p.strategy != "collective", "[parallel] strategy", p.strategy, "set collective");
    const PrecisionSpec& precision = run.precision;
    constexpr const char* kNoSkips =
        "a stage updates before all know whether gradients overflow, so no step can be skipped; set ";
    refuse(precision.compute == "f16", "[precision] compute", precision.compute, concat(kNoSkips, "bf16 or f32"));
    refuse(precision.compute != "f16" && fixed_loss_scale(run) != 1, "[precision] loss_scale", precision.loss_scale,
           concat(kNoSkips, "auto"));
}

// The checks that do not need the schedule; pipeline::make_pipeline() checks the schedule itself.
void check_pipeline(const RunSpec& run, Problems& problems) {
    const ParallelSpec& p = run.parallel;
    constexpr std::array kKnown = {"naive",    "gpipe",      "1f1b",   "interleaved", "looped-bfs",     "zb-h1",
                                   "zb-h2",    "zb-v",       "v-half", "v-min",       "interleaved-zb", "chimera",
                                   "dualpipe", "dualpipe-v", "auto",   "pipedream"};
    const bool known = std::find(kKnown.begin(), kKnown.end(), p.schedule) != kKnown.end();
    require(
        problems, known || p.schedule.ends_with(".csv"), "[parallel] schedule = ", toml_text(p.schedule),
        ": must be one of ", [&] { return joined(kKnown); }, ", or the name of a .csv file");
    check_pipedream(run, problems);
    require(problems, p.unsharded_stages == 0 || p.zero == 3, "[parallel] unsharded_stages = ", p.unsharded_stages,
            ": with zero = ", p.zero, " weights are whole at all times; set unsharded_stages = 0 or zero = 3");
    if (p.pp == 1) return;
    require(problems, p.strategy == "collective", "[parallel] strategy = \"", p.strategy,
            "\": a parameter server has no pipeline; set pp = 1 or strategy = \"collective\"");
    require(problems, stages_have_layers(run), "[parallel] pp = ", p.pp,
            p.virtual_stages > 1 ? concat(" with virtual_stages = ", p.virtual_stages) : "", ": ",
            product({p.pp, p.virtual_stages}), " stages for [model] layers = ", run.model.layers,
            "; required: at least a layer for each stage, or ",
            "stage_layers, by which the first and the last may have none");
}

void check_tensor_parallel(const RunSpec& run, Problems& problems) {
    const ModelSpec& m = run.model;
    const int64_t tp = run.parallel.tp, pieces = run.parallel.tp_overlap;
    require(problems, pieces == 1 || tp > 1, "[parallel] tp_overlap = ", pieces,
            ": with tp = 1 no product communicates; set tp_overlap = 1");
    require(problems, pieces == 1 || !names_gpu(run.train.device), "[parallel] tp_overlap = ", pieces,
            ": [train] device = \"", run.train.device, "\" makes no products in pieces yet; set tp_overlap = 1");
    const bool mlp = !traits_of(m).tokens;
    require(problems, tp == 1 || !mlp, "[parallel] tp = ", tp,
            ": the family mlp has no tensor parallelism; set it to 1");
    if (mlp) return;
    for (const auto& [size, key] :
         {std::pair(m.heads, "heads"), {m.ffn, "ffn"}, {m.moe.shared_ffn, "moe.shared_ffn"}, {conv_width(m), "width"}})
        require(problems, divides(tp, size), "[parallel] tp = ", tp, ": must divide [model] ", key, " = ", size,
                nearest_divisors_of(size, tp, "parallel", "tp"));
    require(problems, tp_fits_kv_heads(run), "[parallel] tp = ", tp, ": must divide [model] kv_heads = ", m.kv_heads,
            ", or be a multiple of it");
    const int64_t unit = product({tp, run.parallel.cp});
    require(problems, width_norm_fits(run), "[parallel] tp = ", tp, ": [model] width_norm = true needs a divisor of ",
            "kv_heads = ", m.kv_heads, ", and a [train] seq_len that is a multiple of tp * cp = ", unit,
            nearest_divisors_of(m.kv_heads, tp, "parallel", "tp"));
    require(problems, sequence_parallel_fits(run), "[train] seq_len = ", run.train.seq_len,
            ": with [parallel] sequence_parallel = true it must be a multiple of tp * cp = ", unit,
            nearest_multiples_of(run.train.seq_len, unit, "train", "seq_len"), ", or set sequence_parallel = false");
}

void check_expert_parallel(const RunSpec& run, int ranks, Problems& problems) {
    const ParallelSpec& p = run.parallel;
    const MixtureSpec& e = run.model.moe;
    require(problems, e.experts < 1 || p.schedule != "pipedream",
            "[parallel] schedule = \"pipedream\": a mixture of experts balances its loads over all microbatches of a "
            "step; set another schedule");
    require(problems, aux_loss_fits_schedule(run),
            "[model] moe.aux_loss = \"global\": [parallel] schedule = ", toml_text(p.schedule),
            ": microbatches must pass in their order; set 1f1b or gpipe, or aux_loss = \"microbatch\"");
    if (!ep_has_experts(run)) {
        for (const auto& [key, size] : {std::pair("ep", p.ep), {"etp", p.etp}})
            require(problems, size == 1, "[parallel] ", key, " = ", size, ": the model has no experts; set it to 1");
        return;
    }
    require(problems, divides(p.ep, e.experts), "[parallel] ep = ", p.ep,
            ": must divide [model] moe.experts = ", e.experts, nearest_divisors_of(e.experts, p.ep, "parallel", "ep"));
    require(problems, divides(p.etp, e.ffn), "[parallel] etp = ", p.etp, ": must divide [model] moe.ffn = ", e.ffn,
            nearest_divisors_of(e.ffn, p.etp, "parallel", "etp"));
    const int64_t shards = data_parallel_shards(p, ranks);
    require(problems, ep_divides_ranks(p, ranks), "[parallel] ep * etp = ", p.ep, " * ", p.etp,
            ": must divide tp * cp * dp_shard = ", p.tp, " * ", p.cp, " * ", shards, " = ",
            product({p.tp, p.cp, shards}));
}

void check_offload(const RunSpec& run, Problems& problems) {
    require(problems, offloaded_weights_are_gathered(run),
            "[offload] params = true: [parallel] zero = ", run.parallel.zero,
            " keeps all weights on every rank; set zero = 3, which gathers them unit by unit");
}

void check_precision(const RunSpec& run, Problems& problems) {
    const PrecisionSpec& p = run.precision;
    require(problems, p.compute != "tf32" || run.train.device != "cpu",
            "[precision] compute = \"tf32\": [train] device = \"cpu\" has no TF32; set compute to f32, bf16 or f16");
    for (const auto& [key, value] : {std::pair{"initial", p.loss_scale_initial}, {"least", p.loss_scale_least}})
        require(problems, is_power_of_two(value), "[precision] loss_scale_", key, " = ", toml_text(value),
                ": must be a power of two", nearest_powers_of_two(value));
    require(problems, p.loss_scale_least <= p.loss_scale_initial,
            "[precision] loss_scale_least = ", toml_text(p.loss_scale_least),
            ": must be at most loss_scale_initial = ", toml_text(p.loss_scale_initial));
}

// Gradients are communicated as they are stored, or rounded once before.
void check_gradients(const RunSpec& run, Problems& problems) {
    const PrecisionSpec& p = run.precision;
    const ParallelSpec& l = run.parallel;
    const bool rounded = p.gradients == "f32" && p.reduce == "bf16";
    const std::string given =
        rounded ? "[precision] reduce = \"bf16\"" : concat("[precision] gradients = ", toml_text(p.gradients));
    require(problems, !rounded || l.zero >= 1, given, ": zero = ", l.zero,
            " sums gradients where they are stored; set zero = 1, 2 or 3, or gradients = \"bf16\"");
    if (p.gradients == "f32") return;
    require(problems, p.reduce != "f32", given,
            ": reduce = \"f32\": they are sent as they are stored; set reduce = "
            "\"auto\", or gradients = \"f32\"");
    require(problems, l.strategy == "collective", given,
            ": a parameter server adds gradients in f32; set strategy = "
            "\"collective\", or gradients = \"f32\"");
    require(problems, !run.train.cuda_graphs, given,
            ": [train] cuda_graphs = true: a recorded microbatch adds to "
            "gradients in f32; set cuda_graphs = false, or gradients = \"f32\"");
}

void check_packed_weights(const RunSpec& run, Problems& problems) {
    if (run.train.packed_weights != "always") return;
    require(problems, run.parallel.zero < 3,
            "[train] packed_weights = \"always\": with [parallel] zero = 3 weights are freed after use; set auto, or "
            "zero to 2 "
            "or less");
    require(problems, !names_gpu(run.train.device), "[train] packed_weights = \"always\": [train] device = \"",
            run.train.device, "\" packs no weights; set auto");
}

// A recorded microbatch repeats the same numbers at the same addresses, and no copies to or from the host.
void check_cuda_graphs(const RunSpec& run, int ranks, Problems& problems) {
    if (!run.train.cuda_graphs) return;
    const auto refuse = [&](bool asked, const char* key, const auto& value, const char* reason) {
        require(problems, !asked, "[train] cuda_graphs = true: ", key, " = ", toml_text(value), ": ", reason);
    };
    refuse(run.train.device == "cpu", "[train] device", run.train.device, "only a GPU has graphs; set auto");
    require(problems, ranks <= 1, "[train] cuda_graphs = true: ", ranks,
            " ranks communicate, which no graph of ours holds yet; set cuda_graphs = false or train on one rank");
    refuse(run.parallel.schedule != "1f1b", "[parallel] schedule", run.parallel.schedule,
           "what is recorded is a forward with its backward behind it; set 1f1b");
    refuse(run.parallel.zero > 1, "[parallel] zero", run.parallel.zero,
           "buffers are allocated and freed in a step; set 0 or 1");
    refuse(run.offload.optimizer || run.offload.params || run.offload.activations, "[offload] any", true,
           "copies pass through the host; set optimizer, params and activations to false");
    refuse(run.log.trace, "[log] trace", true, "nothing of a microbatch can be seen from the host; set false");
    refuse(run.model.moe.experts > 0, "[model] moe.experts", run.model.moe.experts,
           "the host reads where tokens go; set cuda_graphs = false");
    refuse(run.model.dropout > 0, "[model] dropout", run.model.dropout, "its masks differ from step to step; set 0.0");
    refuse(run.data.documents == "respected", "[data] documents", run.data.documents,
           "the number of targets, which gradients are scaled by, differs from step to step; set packed");
}

// Requests that this version of the program cannot meet yet. A feature that arrives deletes its line; nothing else
// keeps such a list.
void check_what_exists(const RunSpec& run, Problems& problems) {
    const auto refuse = [&](bool asked, const char* key, const auto& value, const char* reason) {
        require(problems, !asked, key, " = ", toml_text(value), ": ", reason);
    };
    refuse(run.precision.fp8 != "none", "[precision] fp8", run.precision.fp8,
           "8-bit products are chosen by precision.recipe; set recipe, and leave fp8 out");
}

}  // namespace

std::vector<std::string> model_problems(const ModelSpec& model) {
    const RunSpec run{.model = model};
    Problems problems = out_of_range(run, "model");
    if (problems.empty()) check_model(model, problems);
    return problems;
}

namespace {

// Of a run without stages.
Problems problems_of(const RunSpec& run, int ranks) {
    Problems problems = out_of_range(run);
    if (!problems.empty()) return problems;
    check_model(run.model, problems);
    check_router(run.model, problems);
    check_data(run, problems);
    check_train(run, ranks, problems);
    check_optimizer(run, problems);
    check_recompute(run, problems);
    check_log(run, problems);
    check_mesh(run.parallel, ranks, problems);
    check_tensor_parallel(run, problems);
    check_context_parallel(run, problems);
    check_expert_parallel(run, ranks, problems);
    check_pipeline(run, problems);
    check_offload(run, problems);
    check_precision(run, problems);
    if (problems.empty()) problems = recipe_problems(run);
    check_gradients(run, problems);
    check_packed_weights(run, problems);
    check_cuda_graphs(run, ranks, problems);
    check_what_exists(run, problems);
    return problems;
}

// Each stage is a run; a problem that all of them have is the run's.
Problems problems_of_stages(const RunSpec& run, int ranks) {
    Problems problems = out_of_range(run);
    if (!problems.empty()) return problems;
    const int64_t last = run.stages.size() < 2 ? 0 : run.stages[run.stages.size() - 2].until;
    require(problems, last < run.train.steps, "[[stage]]: stage ", run.stages.size() - 1, ": until = ", last,
            ": must be below [train] steps = ", run.train.steps, ", with which the last stage ends");
    if (!problems.empty()) return problems;
    const std::vector<RunSpec> stages = stages_of(run);
    std::vector<Problems> of_stages;
    for (const RunSpec& stage : stages) of_stages.push_back(problems_of(stage, ranks));
    const auto have = [](const std::string& line) {
        return [&line](const Problems& lines) { return std::find(lines.begin(), lines.end(), line) != lines.end(); };
    };
    for (size_t i = 0; i < stages.size(); ++i)
        for (const std::string& line : of_stages[i]) {
            const bool everywhere = std::all_of(of_stages.begin(), of_stages.end(), have(line));
            if (!everywhere) problems.push_back(of_stage(stages[i], line));
            if (everywhere && i == 0) problems.push_back(line);
        }
    return problems;
}

}  // namespace

void validate(const RunSpec& run, int ranks) {
    check<UsageError>(ranks >= 1, "a run has at least one rank, got ", ranks);
    const Problems problems = run.stages.empty() ? problems_of(run, ranks) : problems_of_stages(run, ranks);
    check<UsageError>(problems.empty(), joined(problems, "\n"));
}

}  // namespace tutti::spec
