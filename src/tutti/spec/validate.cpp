// spec/validate.cpp: the rules between fields of all sections but [model] (validate_model.cpp). Each function adds one
// line per broken rule; nothing stops at the first.
#include "tutti/spec/validate.h"

#include <algorithm>

#include "tutti/base/strings.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/families.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/problems.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/stages.h"

namespace tutti::spec {
namespace {

// "; nearest: tp = 2 or 4"; `section` and `key` of the value to change.
auto nearest_divisors_of(int64_t n, int64_t value, const char* section, const char* key) {
    return [=] { return nearest_divisors(concat("; nearest: ", key, " = "), n, value, concat(section, '.', key)); };
}
auto nearest_multiples_of(int64_t n, int64_t unit, const char* section, const char* key) {
    return [=] { return nearest_multiples(concat("; nearest: ", key, " = "), n, unit, concat(section, '.', key)); };
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
    try {
        recompute_of(run.recompute.policy, run.model.layers);
    } catch (const UsageError& error) {
        problems.push_back(error.what());
    }
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
    const int64_t others = product({p.dp_replicate, p.tp, p.cp, p.pp}), below = ranks / others * others;
    const std::string axes = concat("[parallel] dp_replicate * tp * cp * pp = ", p.dp_replicate, " * ", p.tp, " * ",
                                    p.cp, " * ", p.pp, " = ", others);
    if (p.dp_shard == -1)
        problems.push_back(concat(axes, ": must divide the number of ranks, ", ranks,
                                  ", as dp_shard = -1 takes the remaining ones; nearest: --ranks ",
                                  below > 0 ? concat(below, " or ") : "", below + others));
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
    const bool known = schedule::find_kind(p.schedule) != nullptr || p.schedule == "auto" || p.schedule == "pipedream";
    require(
        problems, known || p.schedule.ends_with(".csv"), "[parallel] schedule = ", toml_text(p.schedule),
        ": must be one of ", [] { return joined(schedule::kinds(), ", ", &schedule::Kind::name); },
        ", auto, pipedream, or the name of a .csv file");
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
    for (const auto& [size, key] : {std::pair(m.heads, "heads"),
                                    {m.ffn, "ffn"},
                                    {m.moe.shared_ffn, "moe.shared_ffn"},
                                    {conv_width(m), "width"},
                                    {m.delta_key_heads, "delta_key_heads"},
                                    {m.scan_heads, "scan_heads"}})
        require(problems, divides(tp, size), "[parallel] tp = ", tp, ": must divide [model] ", key, " = ", size,
                nearest_divisors_of(size, tp, "parallel", "tp"));
    require(problems, tp_fits_kv_heads(run), "[parallel] tp = ", tp, ": must divide [model] kv_heads = ", m.kv_heads,
            ", or be a multiple of it");
    const int64_t unit = product({tp, run.parallel.cp});
    require(problems, width_norm_fits(run), "[parallel] tp = ", tp, ": [model] width_norm = true needs a divisor of ",
            "kv_heads = ", m.kv_heads, ", and a [train] seq_len that is a multiple of tp * cp = ", unit,
            nearest_divisors_of(m.kv_heads, tp, "parallel", "tp"));
    require(problems, tp_fits_scan_groups(run), "[parallel] tp = ", tp,
            ": must divide [model] scan_groups = ", m.scan_groups, ", or be a multiple of it");
    require(problems, scan_norm_fits(run), "[train] seq_len = ", run.train.seq_len, ": tp = ", tp,
            " ranks share the norm of a group of heads, [model] scan_groups = ", m.scan_groups,
            "; it must be a multiple of tp * cp = ", unit,
            nearest_multiples_of(run.train.seq_len, unit, "train", "seq_len"));
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

void check_attention(const RunSpec& run, Problems& problems) {
    const TrainSpec& t = run.train;
    require(problems, t.attention == "own" || t.device != "cpu", "[train] attention = \"", t.attention,
            "\": [train] device = \"cpu\" has one kernel; set attention = \"own\"");
    require(problems, (t.attention == "fastest") == !t.attention_tuning.empty(), "[train] attention = \"", t.attention,
            "\" and attention_tuning = ", toml_text(t.attention_tuning),
            ": \"fastest\" needs a file of tutti bench attention --tune, and nothing else reads one; set both or "
            "neither");
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

void check_earlier_names(const RunSpec& run, Problems& problems) {
    require(problems, run.precision.fp8 == "none", "[precision] fp8 = ", toml_text(run.precision.fp8),
            ": 8-bit products are chosen by precision.recipe; set recipe, and leave fp8 out");
}

}  // namespace

Problems out_of_range(const RunSpec& run, std::string_view section) {
    Problems problems;
    for_each_field(run, [&](const Field& field, const auto& value) {
        const bool asked = section.empty() || field.section == section;
        if (const auto problem = asked ? range_problem(field, value) : std::nullopt) problems.push_back(*problem);
    });
    return problems;
}

namespace {

void check_checkpoint(const RunSpec& run, Problems& problems) {
    const CheckpointSpec& c = run.checkpoint;
    require(problems, c.every == 0 || c.memory_every <= c.every, "[checkpoint] memory_every = ", c.memory_every,
            ": must be at most every = ", c.every, ": copies in memory save the steps between checkpoints");
}

// Directories that the run makes.
void check_directories(const RunSpec& run, Problems& problems) {
    for (const auto& [key, path] :
         {std::pair("[checkpoint] dir", &run.checkpoint.dir), {"[offload] dir", &run.offload.dir}})
        require(problems, !begins_at_home(*path), key, " = ", toml_text(*path),
                ": ~ is not expanded; write the path of the home directory, or ./~ for a directory of this name");
}

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
    check_checkpoint(run, problems);
    check_directories(run, problems);
    if (problems.empty()) problems = recipe_problems(run);
    check_gradients(run, problems);
    check_packed_weights(run, problems);
    check_cuda_graphs(run, ranks, problems);
    check_attention(run, problems);
    check_earlier_names(run, problems);
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
