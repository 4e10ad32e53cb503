#include "tutti/spec/recipe.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/rules.h"

namespace tutti::spec {

namespace {

// A dim of a matrix of the quantized blocks, or of their rows: `value` is that of a key, `times` of which are a dim,
// and `parts` ranks have equal parts of it.
struct Dim {
    const char *section, *key;
    int64_t value, times;
    const char* axis;  // whose ranks have the parts
    int64_t parts;
    const char* of_times = "head_dim";  // whose value `times` is
    int64_t of_rank() const { return value * times / parts; }
};

std::vector<Dim> dims_of(const RunSpec& run) {
    const ModelSpec& m = run.model;
    const ParallelSpec& p = run.parallel;
    std::vector<Dim> dims;
    const auto add = [&](const Dim& dim) {
        const auto same = [&](const Dim& d) {
            return std::string_view(d.key) == dim.key && d.times == dim.times && d.parts == dim.parts;
        };
        if (dim.value > 0 && dim.parts > 0 && std::none_of(dims.begin(), dims.end(), same)) dims.push_back(dim);
    };
    add({"model", "width", m.width, 1, "tp", 1});
    for (int64_t i = 0; i < m.layers; ++i) {
        if (!quantizes(run, i)) continue;
        const LayerSpec of_layer = layer(m, i);
        if (const AttentionSpec* a = of_layer.attention()) {
            add({"model", "heads", a->heads, a->head_dim, "tp", p.tp});
            if (a->latent) {
                add({"model", "kv_latent", a->latent->kv, 1, "tp", 1});
                add({"model", "q_latent", a->latent->q, 1, "tp", 1});
                add({"model", "heads", a->heads, a->value_dim, "tp", p.tp, "value_dim"});
                add({"model", "heads", a->heads, a->head_dim - a->rope->dims + a->value_dim, "tp", p.tp,
                     "(head_dim - rope_dims + value_dim)"});
            } else {
                add({"model", "kv_heads", a->kv_heads, a->head_dim, "tp", std::min(p.tp, a->kv_heads)});
            }
        }
        if (of_layer.convolution() != nullptr) add({"model", "width", m.width, 1, "tp", p.tp});
        if (const DeltaSpec* d = of_layer.delta()) {
            add({"model", "delta_key_heads", d->key_heads, d->key_dim, "tp", p.tp, "delta_key_dim"});
            add({"model", "delta_value_heads", d->value_heads, d->value_dim, "tp", p.tp, "delta_value_dim"});
            add({"model", "delta_value_heads", d->value_heads, 1, "tp", p.tp});
        }
        if (const ScanSpec* s = of_layer.scan()) {
            add({"model", "scan_heads", s->heads, s->head_dim, "tp", p.tp, "scan_head_dim"});
            add({"model", "scan_heads", s->heads, 1, "tp", p.tp});
            add({"model", "scan_groups", s->groups, s->state, "tp", s->groups % p.tp == 0 ? p.tp : 1, "scan_state"});
        }
        if (const MixtureSpec* e = of_layer.mixture()) {
            add({"model", "moe.ffn", e->ffn, 1, "etp", p.etp});
            add({"model", "moe.shared_ffn", e->shared_ffn, 1, "tp", p.tp});
            add({"model", "moe.latent", e->latent, 1, "tp", 1});
        } else if (const MlpSpec* mlp = of_layer.mlp(); mlp && traits_of(m).tokens) {
            add({"model", "ffn", mlp->ffn, 1, "tp", p.tp});
        }
    }
    return dims;
}

std::string text_of(const RunSpec& run) { return concat("[precision] recipe = \"", run.precision.recipe, "\": "); }

// "a rank of tp = 2 has 96 of ffn = 192"
std::string share_of(const Dim& d) {
    const std::string whole =
        concat("[", d.section, "] ", d.key, d.times > 1 ? concat(" * ", d.of_times) : "", " = ", d.value * d.times);
    return d.parts == 1 ? whole
                        : concat("a rank of [parallel] ", d.axis, " = ", d.parts, " has ", d.of_rank(), " of ", whole);
}

// The values of the key with which a rank's part is a multiple.
std::string nearest_of(const Dim& d, int64_t multiple) {
    const int64_t unit = std::lcm(multiple * d.parts, d.times) / d.times;
    return nearest_multiples(concat("; nearest: ", d.key, " = "), d.value, std::lcm(unit, d.parts),
                             concat(d.section, ".", d.key));
}

// What `gather` requires of the recipe and of the layout. refuse(wrong, reason...).
template <class Refuse>
void refuse_gather(const RunSpec& run, const Recipe& recipe, const Refuse& refuse) {
    const PrecisionSpec& p = run.precision;
    const bool whole = recipe.x.along == 0;
    const bool gathers = gathers_codes_of_weights(p), of_sequences = gathers_codes_of_sequences(p);
    const std::string asked_gather = concat("gather = \"", p.gather, "\": ");
    refuse(of_sequences && !whole, asked_gather,
           "the products y = x w^T and dw = dy^T x read codes of x in groups along ",
           "other dims, and both would be as many bytes as bf16; set gather = \"weights\" or \"none\", or recipe = ",
           "\"tensor\" or \"delayed\"");
    refuse(of_sequences && p.scale_over == "rank", asked_gather,
           "codes of several ranks need one scale; set scale_over = ", "\"tensor\", or gather = \"none\"");
    refuse(of_sequences && (run.parallel.tp == 1 || !run.parallel.sequence_parallel), asked_gather,
           "[parallel] tp = ", run.parallel.tp,
           " with sequence_parallel = ", run.parallel.sequence_parallel ? "true" : "false",
           " gathers no sequences; set tp > 1 and sequence_parallel = true, or gather = \"",
           gathers ? "weights" : "none", "\"");
    refuse(gathers && !recipe.weights_in_one_form(), asked_gather,
           "the products y = x w^T and dx = dy w read codes of ", "w in groups of ", recipe.w.across, " x ",
           recipe.w.along, " along other dims, and both would be as many ",
           "bytes as bf16; set gather = \"none\", or recipe = \"block\"");
    refuse((gathers || of_sequences) && p.scales == "f32", asked_gather,
           "a factor that is no power of two is not exact in what products ",
           "make of codes; set scales = \"pow2\", or gather = \"none\"");
    refuse(gathers && run.parallel.zero != 3, asked_gather, "[parallel] zero = ", run.parallel.zero,
           " keeps whole weights, which products of several steps read; set zero = 3, or gather = \"none\"");
}

}  // namespace

std::vector<std::string> recipe_problems(const RunSpec& run) {
    std::vector<std::string> problems;
    const std::optional<Recipe> recipe = recipe_of(run.precision);
    const PrecisionSpec& p = run.precision;
    if (!recipe && p.gather != "none")
        problems.push_back(concat("[precision] gather = \"", p.gather, "\": recipe = \"none\" has no codes; set a ",
                                  "recipe, or gather = \"none\""));
    if (!recipe) return problems;
    const std::string asked = text_of(run);
    const auto refuse = [&](bool wrong, const auto&... parts) {
        if (wrong) problems.push_back(concat(asked, parts...));
    };
    const int64_t layers = run.model.layers;
    refuse(layers <= p.bf16_first + p.bf16_last, "[model] layers = ", layers, ": the first bf16_first = ", p.bf16_first,
           " and the last bf16_last = ", p.bf16_last, " blocks keep their products in ", p.compute,
           ", and none is left; nearest: bf16_first = ", std::min(p.bf16_first, (layers - 1) / 2),
           " and bf16_last = ", std::min(p.bf16_last, layers - 1 - std::min(p.bf16_first, (layers - 1) / 2)));
    refuse(p.compute != "bf16" && p.compute != "f32", "compute = \"", p.compute,
           "\": codes stand for numbers of bf16 or f32; set compute = \"bf16\"");
    const bool whole = recipe->x.along == 0;
    refuse(!whole && p.scales == "f32",
           "scales = \"f32\": groups have powers of two; set scales = \"pow2\", or recipe = \"tensor\" or \"delayed\"");
    refuse(p.scales == "f32" && run.model.moe.experts > 0,
           "scales = \"f32\": products of experts take powers of two; set scales = \"pow2\"");
    refuse(p.scale_over == "rank" && (!whole || recipe->delayed),
           "scale_over = \"rank\": only recipe = \"tensor\" takes a scale over ranks before a cast; set scale_over = "
           "\"tensor\"");
    refuse(
        recipe->delayed && run.parallel.schedule == "pipedream",
        "[parallel] schedule = \"pipedream\": scales change once a step, and stages update by themselves; set recipe = "
        "\"tensor\", or another schedule");
    refuse(recipe->delayed && run.parallel.strategy != "collective", "[parallel] strategy = \"", run.parallel.strategy,
           "\": scales are those of all ranks; set recipe = \"tensor\", or strategy = \"collective\"");
    refuse(run.parallel.tp_overlap > 1, "[parallel] tp_overlap = ", run.parallel.tp_overlap,
           ": a tensor is quantized as a whole, and products in pieces have a part of its rows; set tp_overlap = 1");
    refuse_gather(run, *recipe, refuse);
    refuse(run.train.cuda_graphs,
           "[train] cuda_graphs = true: a graph would repeat the codes of old weights; set cuda_graphs = false");
    if (whole) {
        if (names_gpu(run.train.device))
            for (std::string& problem : code_product_problems(run)) problems.push_back(std::move(problem));
        return problems;
    }
    // Groups are those of the global tensors: no rank may have a part of one.
    for (const Dim& d : dims_of(run))
        refuse(d.parts > 1 && d.of_rank() % recipe->x.along != 0, share_of(d), ", a cut inside of a group of ",
               recipe->x.along, nearest_of(d, recipe->x.along), "; or set ", d.axis, " = 1");
    const int64_t unit = sequence_unit(run.parallel), T = run.train.seq_len;
    refuse(run.parallel.cp > 1 && unit > 0 && T % unit == 0 && T / unit % recipe->x.along != 0, "[train] seq_len = ", T,
           ": [parallel] cp = ", run.parallel.cp, " cuts it into runs of ", T / unit, " tokens, inside of groups of ",
           recipe->x.along, nearest_multiples("; nearest: seq_len = ", T, unit * recipe->x.along, "train.seq_len"));
    if (names_gpu(run.train.device))
        for (std::string& problem : code_product_problems(run)) problems.push_back(std::move(problem));
    return problems;
}

std::vector<std::string> code_product_problems(const RunSpec& run) {
    std::vector<std::string> problems;
    const std::optional<Recipe> recipe = recipe_of(run.precision);
    if (!recipe || run.precision.emulate) return problems;
    const std::string asked = text_of(run);
    for (const Dim& d : dims_of(run))
        if (d.of_rank() % recipe->multiple != 0)
            problems.push_back(concat(asked, share_of(d), ": products of codes need multiples of ", recipe->multiple,
                                      nearest_of(d, recipe->multiple), "; or set [precision] emulate = true"));
    const int64_t tokens = run.train.micro_batch * run.train.seq_len / std::max<int64_t>(run.parallel.cp, 1);
    if (traits_of(run.model).tokens && tokens % recipe->multiple != 0)
        problems.push_back(concat(asked, "a microbatch has ", tokens, " tokens on a rank: products of codes need ",
                                  "multiples of ", recipe->multiple, "; set [train] seq_len to a multiple of ",
                                  recipe->multiple * std::max<int64_t>(run.parallel.cp, 1),
                                  ", or [precision] emulate = true"));
    return problems;
}

}  // namespace tutti::spec
