// peers/emit.cpp: a run as another trainer's own text.
#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/peers/peers.h"
#include "tutti/peers/tables.h"
#include "tutti/peers/text.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/toml.h"

namespace tutti::peers {

namespace {

Values values_of(const spec::RunSpec& run) {
    Values values;
    flatten(spec::parse_toml(spec::to_toml(run), "run"), "", values);
    return values;
}

struct Shape {  // of a run, as whole numbers
    int64_t ranks, layers, pp, v, dp, micro_batch, global_batch;
};

Shape shape_of(const spec::RunSpec& run, int ranks) {
    return {ranks,
            run.model.layers,
            run.parallel.pp,
            run.parallel.schedule == "interleaved" || run.parallel.schedule == "interleaved-zb"
                ? run.parallel.virtual_stages
                : 1,
            spec::data_parallel_ranks(run.parallel, ranks),
            run.train.micro_batch,
            run.train.global_batch};
}

// Embedding and loss count as layers, as in Llama 3.
bool ends_count(const Shape& s) {
    return s.pp > 1 && s.layers % (s.pp * s.v) != 0 && (s.layers + 2) % (s.pp * s.v) == 0;
}

void write_megatron_recipe(const spec::RunSpec& run, Values& out, std::vector<std::string>& notes) {
    const std::optional<spec::Recipe> recipe = spec::recipe_of(run.precision);
    if (!recipe) return;
    const spec::PrecisionSpec& p = run.precision;
    for (const Word& word : kMegatronRecipes)
        if (p.recipe == word.ours) out["--fp8-recipe"] = word.theirs;
    out["--fp8-format"] = recipe->dy.format == DType::e4m3 ? "e4m3" : "hybrid";
    if (recipe->delayed) {
        out["--fp8-amax-history-len"] = std::to_string(p.amax_history);
        out["--fp8-amax-compute-algo"] = p.amax_of;
    }
    if (p.bf16_first + p.bf16_last > 0 && recipe->delayed) {
        notes.push_back("it keeps no first and last layers in bf16 with delayed scaling");
    } else if (p.bf16_first + p.bf16_last > 0) {
        out["--first-last-layers-bf16"] = "";
        out["--num-layers-at-start-in-bf16"] = std::to_string(p.bf16_first);
        out["--num-layers-at-end-in-bf16"] = std::to_string(p.bf16_last);
    }
    if (spec::gathers_codes_of_weights(p)) out["--fp8-param-gather"] = "";
}

void write_torchtitan_recipe(const spec::RunSpec& run, Values& out, std::vector<std::string>& notes) {
    const spec::PrecisionSpec& p = run.precision;
    if (p.recipe == "none") return;
    const auto* const word = std::find_if(std::begin(kTitanRecipes), std::end(kTitanRecipes),
                                          [&](const TitanRecipe& w) { return p.recipe == w.ours; });
    if (word == std::end(kTitanRecipes)) return notes.push_back(concat("it has no recipe ", p.recipe));
    out["model.converters"] = concat("[\"", word->section, "\"]");
    out[concat(word->section, ".recipe_name")] = word->name;
    if (spec::gathers_codes_of_weights(p)) out[kTitanGather] = out[kTitanAllScales] = "true";
    if (p.bf16_first + p.bf16_last > 0)
        notes.push_back(concat("list the first ", p.bf16_first, " and last ", p.bf16_last, " layers in ", word->section,
                               ".filter_fqns, which keep their products in bf16 here"));
}

void write_megatron(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    if (run.model.kv_heads != run.model.heads) {
        out["--group-query-attention"] = "";
        out["--num-query-groups"] = std::to_string(run.model.kv_heads);
    }
    write_megatron_recipe(run, out, notes);
    if (s.pp > 1 && s.v > 1) out["--num-virtual-stages-per-pipeline-rank"] = std::to_string(s.v);
    if (ends_count(s)) {
        out["--account-for-embedding-in-pipeline-split"] = "";
        out["--account-for-loss-in-pipeline-split"] = "";
    } else if (s.layers % (s.pp * s.v) != 0) {
        notes.push_back(
            concat(s.layers, " layers on ", s.pp * s.v,
                   " stages: give --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers"));
    }
    if (s.pp > 1 && run.parallel.schedule != "1f1b" && run.parallel.schedule != "interleaved")
        notes.push_back(concat("it has no schedule ", run.parallel.schedule));
    if (run.parallel.cp_ulysses > 1)
        notes.push_back("--cp-comm-type a2a+p2p with --hierarchical-context-parallel-sizes");
}

void write_torchtitan(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    const std::string section = "parallelism.pipeline_parallel_";
    const Flavor* flavor = nullptr;
    for (const Flavor& f : titan_flavors()) {
        spec::ModelSpec model = spec::preset(f.preset);
        model.max_positions = run.model.max_positions;
        model.preset = run.model.preset;
        if (model == run.model) flavor = &f;
    }
    if (flavor != nullptr) {
        out["model.name"] = flavor->name;
        out["model.flavor"] = flavor->flavor;
    } else {
        notes.push_back(concat("no flavor has the sizes of ", name_of(run.model), ": add one to its model registry"));
    }
    write_torchtitan_recipe(run, out, notes);
    // Without a pipeline a local batch is a microbatch and global batches accumulate; with one it is divided.
    out["training.local_batch_size"] = std::to_string(s.pp > 1 ? s.global_batch / s.dp : s.micro_batch);
    if (s.pp > 1) {
        out[section + "microbatch_size"] = std::to_string(s.micro_batch);
        for (const TitanSchedule& kind : titan_schedules())
            if (run.parallel.schedule == kind.ours) out[section + "schedule"] = kind.theirs;
        if (!out.contains(section + "schedule")) notes.push_back(concat("it has no schedule ", run.parallel.schedule));
        if (s.v > 1) out[section + "layers_per_stage"] = std::to_string((s.layers + s.pp * s.v - 1) / (s.pp * s.v));
    }
    if (run.parallel.zero < 2 && s.dp > run.parallel.dp_replicate)
        notes.push_back("FSDP shards gradients too: this is its nearest to ZeRO-" + std::to_string(run.parallel.zero));
}

void write_nanotron(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    out["parallelism.dp"] = std::to_string(s.dp);
    out["tokens.batch_accumulation_per_replica"] = std::to_string(s.global_batch / (s.dp * s.micro_batch));
    if (run.model.family != spec::Family::llama) notes.push_back("its models are llama, qwen2 and starcoder2");
    if (run.parallel.zero > 1) notes.push_back("it has ZeRO-0 and ZeRO-1");
}

void write_deepspeed(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    out["gradient_accumulation_steps"] = std::to_string(s.global_batch / (s.dp * s.micro_batch));
    const std::string lr = spec::toml_text(run.optimizer.lr);
    if (run.optimizer.schedule == "linear" && run.optimizer.min_lr > 0)
        notes.push_back("WarmupDecayLR ends at 0, not at optimizer.min_lr");
    if (run.optimizer.schedule == "cosine")
        out["scheduler.params.cos_min_ratio"] = spec::toml_text(run.optimizer.min_lr / run.optimizer.lr);
    else
        out["scheduler.params.warmup_max_lr"] = lr;
    out["scheduler.params.warmup_type"] = "linear";
    out["optimizer.params.betas"] =
        concat("[", spec::toml_text(run.optimizer.beta1), ", ", spec::toml_text(run.optimizer.beta2), "]");
    if (run.parallel.tp > 1 && run.parallel.sequence_parallel)
        notes.push_back(
            "its tensor parallelism does not divide the norms' sequences: parallel.sequence_parallel = false");
    if (s.pp > 1 || run.parallel.cp > 1 || run.parallel.ep > 1)
        notes.push_back("pipelines, sequences and experts are divided by its code, not by its config");
    if (run.parallel.dp_replicate > 1)
        notes.push_back("replicas of shard groups: MiCS, zero_optimization.mics_shard_size");
}

void write_nanogpt(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    out["gradient_accumulation_steps"] = std::to_string(s.global_batch / s.micro_batch);
    out["lr_decay_iters"] = std::to_string(run.train.steps);
    out["bias"] = "True";
    if (run.model.family != spec::Family::gpt2) notes.push_back("its model is gpt2");
    if (run.model.vocab != kNanogptVocab)
        notes.push_back(
            concat("a vocabulary of ", run.model.vocab, ": it takes that of the data set, else ", kNanogptVocab));
    if (s.dp != s.ranks || run.parallel.zero > 0) notes.push_back("it has data parallelism without ZeRO alone");
}

}  // namespace

std::string emit(Peer peer, const spec::RunSpec& run, int ranks) {
    const Values values = values_of(run);
    Values out;
    std::vector<std::string> notes;
    for (const Row& row : rows_of(peer)) {
        const auto found = values.find(row.ours);
        if (found == values.end()) continue;
        if (row.only != nullptr)
            if (const auto of = values.find(row.only);
                of == values.end() || of->second == "0" || of->second == "1" || of->second.empty())
                continue;
        const std::span<const Word> words = row.given();
        if (words.empty()) {
            if (row.absent == nullptr || found->second != row.absent) out[row.theirs] = found->second;
            continue;
        }
        const auto word =
            std::find_if(words.begin(), words.end(), [&](const Word& w) { return found->second == w.ours; });
        if (word == words.end())
            notes.push_back(concat(row.theirs, " cannot say ", row.ours, " = ", found->second));
        else if (word->theirs != kAbsent)
            out[row.theirs] = word->theirs;
    }
    const Shape shape = shape_of(run, ranks);
    std::string head = concat("# ", names()[to_size(peer)], ", ", ranks, " ranks: ", name_of(run.model), '\n');
    if (run.offload.params || run.offload.activations)
        notes.push_back("offload of weights and activations is left out");
    if (peer == Peer::megatron) write_megatron(run, shape, out, notes);
    if (peer == Peer::torchtitan) write_torchtitan(run, shape, out, notes);
    if (peer == Peer::nanotron) write_nanotron(run, shape, out, notes);
    if (peer == Peer::deepspeed) write_deepspeed(run, shape, out, notes);
    if (peer == Peer::nanogpt) write_nanogpt(run, shape, out, notes);
    for (const std::string& note : notes) head += concat("# not the same: ", note, '\n');
    switch (peer) {
        case Peer::megatron:
            return concat(head, "WORLD_SIZE=", ranks, '\n', to_arguments(out),
                          "# torchrun --nproc-per-node 8 --nnodes ", (ranks + 7) / 8,
                          " pretrain_gpt.py \"${ARGS[@]}\" ...\n");
        case Peer::torchtitan: return head + to_toml_text(out);
        case Peer::nanotron: return head + to_yaml(out);
        case Peer::deepspeed: return head + to_json_text(out);
        case Peer::nanogpt: return head + to_python(out);
    }
    return "";
}

}  // namespace tutti::peers
