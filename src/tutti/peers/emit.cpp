// peers/emit.cpp: a run as another trainer's own text.
#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/peers/peers.h"
#include "tutti/peers/tables.h"
#include "tutti/peers/text.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/learning_rate.h"
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

// A run as the options of one trainer.
class Writing {
  public:
    Writing(Peer peer, const spec::RunSpec& run, int ranks)
        : peer_(peer),
          run_(run),
          ranks_(ranks),
          pp_(run.parallel.pp),
          v_(run.parallel.schedule.starts_with("interleaved") ? run.parallel.virtual_stages : 1),
          dp_(spec::data_parallel_ranks(run.parallel, ranks)) {}

    std::string text() {
        const Values values = values_of(run_);
        for (const Row& row : tables_of(peer_).rows) write(row, values);
        if (run_.offload.params || run_.offload.activations) note("offload of weights and activations is left out");
        std::string (*to_text)(const Values&) = nullptr;
        switch (peer_) {
            case Peer::megatron: write_megatron(), to_text = to_arguments; break;
            case Peer::torchtitan: write_torchtitan(), to_text = to_toml_text; break;
            case Peer::nanotron: write_nanotron(), to_text = to_yaml; break;
            case Peer::deepspeed: write_deepspeed(), to_text = to_json_text; break;
            case Peer::nanogpt: write_nanogpt(), to_text = to_python; break;
        }
        std::string text = concat("# ", tables_of(peer_).name, ", ", ranks_, " ranks: ", name_of(run_.model), '\n');
        for (const std::string& each : notes_) text += concat("# not the same: ", each, '\n');
        if (peer_ != Peer::megatron) return text + to_text(out_);
        return concat(text, "WORLD_SIZE=", ranks_, '\n', to_text(out_), "# torchrun --nproc-per-node 8 --nnodes ",
                      (ranks_ + 7) / 8, " pretrain_gpt.py \"${ARGS[@]}\" ...\n");
    }

  private:
    void note(const std::string& difference) { notes_.push_back(difference); }

    void write(const Row& row, const Values& values) {
        const auto found = values.find(row.ours);
        if (found == values.end()) return;
        if (row.only != nullptr)
            if (const auto of = values.find(row.only);
                of == values.end() || of->second == "0" || of->second == "1" || of->second.empty())
                return;
        const std::span<const Word> words = row.given();
        if (words.empty()) {
            if (row.absent == nullptr || found->second != row.absent) out_[row.theirs] = found->second;
            return;
        }
        const auto word =
            std::find_if(words.begin(), words.end(), [&](const Word& w) { return found->second == w.ours; });
        if (word == words.end())
            note(concat(row.theirs, " cannot say ", row.ours, " = ", found->second));
        else if (word->theirs != kAbsent)
            out_[row.theirs] = word->theirs;
    }

    void write_megatron_recipe() {
        const std::optional<spec::Recipe> recipe = spec::recipe_of(run_.precision);
        if (!recipe) return;
        const spec::PrecisionSpec& p = run_.precision;
        for (const Word& word : kMegatronRecipes)
            if (p.recipe == word.ours) out_["--fp8-recipe"] = word.theirs;
        out_["--fp8-format"] = recipe->dy.format == DType::e4m3 ? "e4m3" : "hybrid";
        if (recipe->delayed) {
            out_["--fp8-amax-history-len"] = std::to_string(p.amax_history);
            out_["--fp8-amax-compute-algo"] = p.amax_of;
        }
        if (p.bf16_first + p.bf16_last > 0 && recipe->delayed) {
            note("it keeps no first and last layers in bf16 with delayed scaling");
        } else if (p.bf16_first + p.bf16_last > 0) {
            out_["--first-last-layers-bf16"] = "";
            out_["--num-layers-at-start-in-bf16"] = std::to_string(p.bf16_first);
            out_["--num-layers-at-end-in-bf16"] = std::to_string(p.bf16_last);
        }
        if (spec::gathers_codes_of_weights(p)) out_["--fp8-param-gather"] = "";
    }

    void write_torchtitan_recipe() {
        const spec::PrecisionSpec& p = run_.precision;
        if (p.recipe == "none") return;
        const auto* const word = std::find_if(std::begin(kTitanRecipes), std::end(kTitanRecipes),
                                              [&](const TitanRecipe& w) { return p.recipe == w.ours; });
        if (word == std::end(kTitanRecipes)) return note(concat("it has no recipe ", p.recipe));
        out_["model.converters"] = concat("[\"", word->section, "\"]");
        out_[concat(word->section, ".recipe_name")] = word->name;
        if (spec::gathers_codes_of_weights(p)) out_[kTitanGather] = out_[kTitanAllScales] = "true";
        if (p.bf16_first + p.bf16_last > 0)
            note(concat("list the first ", p.bf16_first, " and last ", p.bf16_last, " layers in ", word->section,
                        ".filter_fqns, which keep their products in bf16 here"));
    }

    void write_megatron() {
        if (run_.model.kv_heads != run_.model.heads) {
            out_["--group-query-attention"] = "";
            out_["--num-query-groups"] = std::to_string(run_.model.kv_heads);
        }
        if (run_.model.rope_dims > 0 && run_.model.kv_latent == 0)
            out_["--rotary-percent"] =
                spec::toml_text(static_cast<double>(run_.model.rope_dims) / static_cast<double>(run_.model.head_dim));
        out_["--attention-dropout"] = "0.0";  // there 0.1 is the default
        if (run_.optimizer.schedule == "wsd") {
            out_["--lr-wsd-decay-iters"] = std::to_string(spec::decay_steps(run_.optimizer, run_.train.steps));
            out_["--lr-wsd-decay-style"] = "linear";
        }
        write_megatron_recipe();
        if (pp_ > 1 && v_ > 1) out_["--num-virtual-stages-per-pipeline-rank"] = std::to_string(v_);
        // Embedding and loss count as layers, as in Llama 3.
        const int64_t layers = run_.model.layers, stages = pp_ * v_;
        if (pp_ > 1 && layers % stages != 0 && (layers + 2) % stages == 0) {
            out_["--account-for-embedding-in-pipeline-split"] = "";
            out_["--account-for-loss-in-pipeline-split"] = "";
        } else if (layers % stages != 0) {
            note(concat(layers, " layers on ", stages,
                        " stages: give --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers"));
        }
        if (pp_ > 1 && run_.parallel.schedule != "1f1b" && run_.parallel.schedule != "interleaved")
            note(concat("it has no schedule ", run_.parallel.schedule));
        if (run_.parallel.cp_ulysses > 1) note("--cp-comm-type a2a+p2p with --hierarchical-context-parallel-sizes");
    }

    void write_torchtitan() {
        const std::string section = "parallelism.pipeline_parallel_";
        const Flavor* flavor = nullptr;
        for (const Flavor& f : kTitanFlavors) {
            spec::ModelSpec model = spec::preset(f.preset);
            model.max_positions = run_.model.max_positions;
            model.preset = run_.model.preset;
            if (model == run_.model) flavor = &f;
        }
        if (flavor != nullptr) {
            out_["model.name"] = flavor->name;
            out_["model.flavor"] = flavor->flavor;
        } else {
            note(concat("no flavor has the sizes of ", name_of(run_.model), ": add one to its model registry"));
        }
        write_torchtitan_recipe();
        if (run_.optimizer.lr > 0)
            out_["lr_scheduler.min_lr_factor"] = spec::toml_text(run_.optimizer.min_lr / run_.optimizer.lr);
        if (run_.optimizer.schedule == "wsd")
            out_["lr_scheduler.decay_ratio"] =
                spec::toml_text(static_cast<double>(spec::decay_steps(run_.optimizer, run_.train.steps)) /
                                static_cast<double>(run_.train.steps));
        // Without a pipeline a local batch is a microbatch and global batches accumulate; with one it is divided.
        out_["training.local_batch_size"] =
            std::to_string(pp_ > 1 ? run_.train.global_batch / dp_ : run_.train.micro_batch);
        if (pp_ > 1) {
            out_[section + "microbatch_size"] = std::to_string(run_.train.micro_batch);
            for (const TitanSchedule& kind : kTitanSchedules)
                if (run_.parallel.schedule == kind.ours) out_[section + "schedule"] = kind.theirs;
            if (!out_.contains(section + "schedule")) note(concat("it has no schedule ", run_.parallel.schedule));
            if (v_ > 1)
                out_[section + "layers_per_stage"] = std::to_string((run_.model.layers + pp_ * v_ - 1) / (pp_ * v_));
        }
        if (run_.parallel.zero < 2 && dp_ > run_.parallel.dp_replicate)
            note("FSDP shards gradients too: this is its nearest to ZeRO-" + std::to_string(run_.parallel.zero));
    }

    void write_nanotron() {
        if (run_.optimizer.schedule == "wsd")
            out_["optimizer.learning_rate_scheduler.lr_decay_starting_step"] = std::to_string(std::max(
                run_.optimizer.warmup_steps, run_.train.steps - spec::decay_steps(run_.optimizer, run_.train.steps)));
        out_["parallelism.dp"] = std::to_string(dp_);
        out_["tokens.batch_accumulation_per_replica"] =
            std::to_string(run_.train.global_batch / (dp_ * run_.train.micro_batch));
        if (run_.model.family != spec::Family::llama) note("its models are llama, qwen2 and starcoder2");
        if (run_.parallel.zero > 1) note("it has ZeRO-0 and ZeRO-1");
    }

    void write_deepspeed() {
        out_["gradient_accumulation_steps"] = std::to_string(run_.train.global_batch / (dp_ * run_.train.micro_batch));
        const std::string lr = spec::toml_text(run_.optimizer.lr);
        if (run_.optimizer.schedule == "linear" && run_.optimizer.min_lr > 0)
            note("WarmupDecayLR ends at 0, not at optimizer.min_lr");
        if (run_.optimizer.schedule == "cosine")
            out_["scheduler.params.cos_min_ratio"] = spec::toml_text(run_.optimizer.min_lr / run_.optimizer.lr);
        else
            out_["scheduler.params.warmup_max_lr"] = lr;
        out_["scheduler.params.warmup_type"] = "linear";
        out_["optimizer.params.betas"] =
            concat("[", spec::toml_text(run_.optimizer.beta1), ", ", spec::toml_text(run_.optimizer.beta2), "]");
        if (run_.parallel.tp > 1 && run_.parallel.sequence_parallel)
            note("its tensor parallelism does not divide the norms' sequences: parallel.sequence_parallel = false");
        if (pp_ > 1 || run_.parallel.cp > 1 || run_.parallel.ep > 1)
            note("pipelines, sequences and experts are divided by its code, not by its config");
        if (run_.parallel.dp_replicate > 1) note("replicas of shard groups: MiCS, zero_optimization.mics_shard_size");
    }

    void write_nanogpt() {
        out_["gradient_accumulation_steps"] = std::to_string(run_.train.global_batch / run_.train.micro_batch);
        out_["lr_decay_iters"] = std::to_string(run_.train.steps);
        out_["bias"] = "True";
        if (run_.model.family != spec::Family::gpt2) note("its model is gpt2");
        if (run_.model.vocab != kNanogptVocab)
            note(concat("a vocabulary of ", run_.model.vocab, ": it takes that of the data set, else ", kNanogptVocab));
        if (dp_ != ranks_ || run_.parallel.zero > 0) note("it has data parallelism without ZeRO alone");
    }

    const Peer peer_;
    const spec::RunSpec& run_;
    const int ranks_;
    const int64_t pp_, v_, dp_;
    Values out_;
    std::vector<std::string> notes_;
};

}  // namespace

std::string emit(Peer peer, const spec::RunSpec& run, int ranks) { return Writing(peer, run, ranks).text(); }

}  // namespace tutti::peers
