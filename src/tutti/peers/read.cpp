// peers/read.cpp: another trainer's text as keys of a config.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <set>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/strings.h"
#include "tutti/peers/peers.h"
#include "tutti/peers/tables.h"
#include "tutti/peers/text.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/toml.h"

namespace tutti::peers {

namespace {

class Reading {
  public:
    Reading(Peer peer, Values given, const std::string& source)
        : peer_(peer), given_(std::move(given)), source_(source) {
        for (const auto& [name, value] : given_) written_.insert(name);
        for (const Default& d : tables_of(peer).defaults)
            if (d.with == nullptr || given_.contains(d.with)) given_.try_emplace(d.theirs, d.value);
    }

    TheirRun run() {
        if (const auto sets = option("scheduler.params.warmup_max_lr")) set("optimizer.lr", *sets);  // DeepSpeed's
        if (peer_ == Peer::torchtitan) read_torchtitan_decay();
        if (peer_ == Peer::nanotron) read_nanotron_decay();
        for (const Row& row : tables_of(peer_).rows) read(row);
        if (peer_ == Peer::megatron) read_megatron();
        if (peer_ == Peer::torchtitan) read_torchtitan();
        if (peer_ == Peer::nanotron) read_nanotron();
        if (peer_ == Peer::deepspeed) read_deepspeed();
        if (peer_ == Peer::nanogpt) read_nanogpt();
        for (const auto& [name, value] : given_) {
            if (known_.contains(name)) continue;
            (tables_of(peer_).ignores(name) ? result_.ignored : result_.unknown).push_back(name);
        }
        const bool any = std::any_of(written_.begin(), written_.end(), [&](const std::string& name) {
            return known_.contains(name) || tables_of(peer_).ignores(name);
        });
        const char* const trainer = tables_of(peer_).name;
        check<UsageError>(any, source_, ": has no option of ", trainer, " that is known here; is it the right file? ",
                          "`tutti config --from ", trainer, "` lists them");
        return std::move(result_);
    }

  private:
    void set(const std::string& key, const std::string& value) {
        if (set_.insert(key).second) result_.set.push_back(key + "=" + value);
    }
    std::optional<std::string> option(const std::string& name) {
        known_.insert(name);
        const auto found = given_.find(name);
        return found == given_.end() ? std::nullopt : std::optional(found->second);
    }
    void check_is_known(const std::string& name, const std::string& value) const {
        check<UsageError>(value.find("$((") == std::string::npos, source_, ": ", name, " ", value,
                          ": required a product of whole numbers that 64 bits hold: write the value");
        check<UsageError>(value.find('$') == std::string::npos, source_, ": ", name, " ", value,
                          ": the script does not set this variable: write the value");
    }
    template <class T = int64_t>
    std::optional<T> number(const std::string& name) {
        const std::optional<std::string> text = option(name);
        if (!text) return std::nullopt;
        const std::optional<T> value = parse_number<T>(*text);
        check_is_known(name, *text);
        check<UsageError>(value.has_value(), source_, ": ", name, " ", *text, ": a ",
                          std::is_integral_v<T> ? "whole number" : "number", " is needed");
        return value;
    }
    // All rows of one key together: the value that agrees with most of them, the first of equals.
    void read(const Row& row) {
        const std::span<const Word> words = row.given();
        const std::optional<std::string> text = option(row.theirs);
        if (words.empty()) {
            if (!text) return;
            check_is_known(row.theirs, *text);
            if (std::string_view(row.ours) == "model.rope_theta" && is_set("model.family=gpt2")) return;
            // torchtitan's word for its default, local_batch_size times the data-parallel ranks.
            if (std::string_view(row.theirs) == "training.global_batch_size" && *text == "-1") return;
            return set(row.ours, *text);
        }
        // A value that the table does not have is named, whatever other options say of the key.
        if (text && std::none_of(words.begin(), words.end(), [&](const Word& w) { return is(w, *text); })) {
            result_.unknown.push_back(concat(row.theirs, " ", *text));
            return;
        }
        if (set_.contains(row.ours)) return;
        std::pair<int, std::string> best{-1, ""};
        bool any = false;
        for (const Word& candidate : words) {
            int agreeing = 0;
            for (const Row& other : tables_of(peer_).rows) {
                if (std::string_view(other.ours) != row.ours) continue;
                const std::optional<std::string> value = option(other.theirs);
                any = any || value.has_value();
                for (const Word& w : other.given())
                    if (std::string_view(w.ours) == candidate.ours)
                        agreeing += w.theirs == kAbsent ? !value : value && is(w, *value);
            }
            if (agreeing > best.first) best = {agreeing, candidate.ours};
        }
        const bool absent_means =
            std::any_of(words.begin(), words.end(), [](const Word& w) { return w.theirs == kAbsent; });
        if (any || absent_means) set(row.ours, best.second);
        if (std::string_view(row.ours) == "model.family") note_other_family(best.second);
    }
    // Options of a model between the families, which the majority of the options overrules.
    void note_other_family(const std::string& family) {
        std::vector<std::string> others;
        for (const Row& row : tables_of(peer_).rows) {
            if (std::string_view(row.ours) != "model.family") continue;
            const std::optional<std::string> value = option(row.theirs);
            const bool agrees = std::ranges::any_of(row.given(), [&](const Word& w) {
                return family == w.ours && (w.theirs == kAbsent ? !value : value && is(w, *value));
            });
            if (!agrees)
                others.push_back(
                    concat(value ? "" : "no ", row.theirs, value.value_or("").empty() ? "" : " " + *value));
        }
        if (!others.empty())
            result_.notes.push_back(concat("the model is taken for ", family, "; ", joined(others),
                                           others.size() == 1 ? " is" : " are", " not of that family"));
    }
    bool is_set(const std::string& key_and_value) const {
        return std::ranges::find(result_.set, key_and_value) != result_.set.end();
    }
    // Of decimal numbers: without the last digits of binary ones.
    static std::string rounded(double value) {
        std::array<char, 32> text{};
        std::snprintf(text.data(), text.size(), "%.12g", value);
        return text.data();
    }
    static bool is(const Word& word, const std::string& value) {
        return word.theirs != kAbsent && (*word.theirs == 0 || lower_case(value) == lower_case(word.theirs));
    }

    // The rate falls to --lr-decay-iters, of which --lr-warmup-fraction is a share.
    void read_megatron_schedule() {
        const auto steps = number("--train-iters"), decay = number("--lr-decay-iters");
        const auto share = number<double>("--lr-warmup-fraction");
        if (share && (decay || steps))
            set("optimizer.warmup_steps", rounded(std::round(*share * static_cast<double>(decay ? *decay : *steps))));
        else if (!share && !given_.contains("--lr-warmup-samples"))
            set("optimizer.warmup_steps", "0");
        if (steps && decay) note_end_of_decay("--lr-decay-iters", *decay, *steps);
        const auto falls = option("--lr-wsd-decay-iters"), style = option("--lr-wsd-decay-style");
        if (!is_set("optimizer.schedule=wsd")) return;
        if (falls) set("optimizer.decay_steps", *falls);
        if (style.value_or("exponential") != "linear")
            result_.notes.push_back(concat("--lr-wsd-decay-style ", style.value_or("is exponential by default"),
                                           ": here the decay of wsd is linear"));
    }
    void read_megatron_dropout() {
        const bool given = written_.contains("--attention-dropout");
        if (number<double>("--attention-dropout").value_or(0) > 0)
            result_.notes.push_back(concat("--attention-dropout is ", *option("--attention-dropout"),
                                           given ? "" : " by default",
                                           ": the weights of attention are not dropped here"));
    }
    // The channels that are rotated; GPT-2 has no RoPE.
    void read_megatron_rotary(std::optional<int64_t> head_dim) {
        const auto share = number<double>("--rotary-percent");
        if (share && *share < 1 && head_dim && !is_set("model.family=gpt2"))
            set("model.rope_dims", std::to_string(static_cast<int64_t>(*share * static_cast<double>(*head_dim))));
    }
    void note_end_of_decay(const char* option, int64_t decay, int64_t steps) {
        if (decay != steps)
            result_.notes.push_back(concat(option, ": there the rate is least from step ", decay,
                                           " on, here at the end, train.steps = ", steps));
    }

    // wsd alone has a rate that stays before it falls, and falls linearly. `decay` steps of the last fall.
    void read_decay(const char* of, int64_t decay, int64_t steps, int64_t warmup, const std::string& style) {
        if (decay >= steps - warmup) return;
        if (decay <= 0) return set("optimizer.schedule", "constant");
        if (lower_case(style) == "linear") {
            set("optimizer.schedule", "wsd");
            set("optimizer.decay_steps", std::to_string(decay));
            return;
        }
        result_.notes.push_back(concat(of, ": there the rate stays until step ", steps - decay, " and falls by ", style,
                                       "; here it falls from the end of the warm-up on, and optimizer.schedule = "
                                       "\"wsd\" falls linearly"));
    }
    // The steps of the decay are rounded as by Python.
    void read_torchtitan_decay() {
        const auto share = number<double>("lr_scheduler.decay_ratio");
        const auto steps = number("training.steps"), warmup = number("lr_scheduler.warmup_steps");
        if (share && steps)
            read_decay("lr_scheduler.decay_ratio",
                       static_cast<int64_t>(std::nearbyint(*share * static_cast<double>(*steps))), *steps,
                       warmup.value_or(0), option("lr_scheduler.decay_type").value_or("linear"));
    }
    void read_nanotron_decay() {
        const std::string section = "optimizer.learning_rate_scheduler.";
        const auto start = number(section + "lr_decay_starting_step"), falls = number(section + "lr_decay_steps"),
                   steps = number("tokens.train_steps"), warmup = number(section + "lr_warmup_steps");
        if (!steps) return;
        const int64_t first = start.value_or(warmup.value_or(0));
        if (start)
            read_decay("lr_decay_starting_step", *steps - first, *steps, warmup.value_or(0),
                       option(section + "lr_decay_style").value_or("linear"));
        if (falls) note_end_of_decay("lr_decay_steps", first + *falls, *steps);
    }

    // With Megatron's defaults.
    void read_megatron_recipe() {
        const auto format = option("--fp8-format"), of_fp8 = option("--fp8-recipe"),
                   amax = option("--fp8-amax-compute-algo");
        const auto history = number("--fp8-amax-history-len"), first = number("--num-layers-at-start-in-bf16"),
                   last = number("--num-layers-at-end-in-bf16");
        const bool ends = option("--first-last-layers-bf16").has_value(),
                   gathers = option("--fp8-param-gather").has_value();
        for (const char* name :
             {"--fp8-margin", "--fp8-interval", "--no-fp8-wgrad", "--fp8-dot-product-attention", "--tp-only-amax-red"})
            if (option(name)) result_.notes.push_back(concat(name, ": recipes have no such choice here"));
        if (!format) return;
        const std::string recipe = of_fp8.value_or("delayed");
        const auto* const known = std::find_if(std::begin(kMegatronRecipes), std::end(kMegatronRecipes),
                                               [&](const Word& w) { return recipe == w.theirs; });
        if (known == std::end(kMegatronRecipes)) return result_.unknown.push_back("--fp8-recipe " + recipe);
        set("precision.recipe", known->ours);
        set("precision.formats", *format);
        if (recipe == "delayed") {
            set("precision.amax_history", std::to_string(history.value_or(1)));
            set("precision.amax_of", amax.value_or("most_recent"));
        }
        set("precision.bf16_first", std::to_string(ends ? first.value_or(1) : 0));
        set("precision.bf16_last", std::to_string(ends ? last.value_or(1) : 0));
        if (gathers)
            read_gather(
                recipe == "mxfp8",
                option("--use-megatron-fsdp") && option("--data-parallel-sharding-strategy") == "optim_grads_params",
                "--fp8-param-gather");
    }
    // Weights are gathered as codes by ZeRO-3, and where one set of codes serves both products.
    void read_gather(bool two_sets, bool zero_3, const char* asked) {
        if (!two_sets && zero_3)
            set("precision.gather", "weights");
        else
            result_.notes.push_back(concat(asked, ": weights are gathered in bf16 here, ",
                                           two_sets ? "since two sets of codes are as many bytes"
                                                    : "since only parallel.zero = 3 gathers them as codes"));
    }

    void read_megatron() {
        const auto heads = number("--num-attention-heads"), groups = number("--num-query-groups");
        const bool grouped = option("--group-query-attention").has_value();
        if (heads) set("model.kv_heads", std::to_string(grouped ? groups.value_or(1) : *heads));
        if (groups && !grouped)
            result_.notes.push_back("--num-query-groups has no effect there without --group-query-attention");
        const auto width = number("--hidden-size"), layers = number("--num-layers");
        auto head_dim = number("--kv-channels");
        if (heads && width && *heads > 0 && !head_dim) {
            head_dim = *width / *heads;
            set("model.head_dim", std::to_string(*head_dim));
        }
        read_megatron_rotary(head_dim);
        read_megatron_dropout();
        if (width && !given_.contains("--ffn-hidden-size")) {
            const bool gated = given_.contains("--swiglu");
            set("model.ffn", std::to_string(gated ? 4 * *width * 2 / 3 / 64 * 64 : 4 * *width));
            result_.notes.push_back("--ffn-hidden-size is not given: Megatron's default");
        }
        if (layers && !given_.contains("--vocab-size")) {
            set("model.vocab", "50304");
            result_.notes.push_back("--vocab-size is not given (the tokenizer decides): 50304 assumed");
        }
        if (layers && !given_.contains("--max-position-embeddings"))
            if (const auto seq = number("--seq-length")) set("model.max_positions", std::to_string(*seq));
        read_megatron_recipe();
        if (option("--lr")) read_megatron_schedule();
        if (const auto split = option("--split"); split && given_.contains("--eval-interval")) {
            double parts[2] = {}, all = 0;
            const std::vector<std::string_view> shares = tutti::split(*split, ',');
            for (size_t i = 0; i < shares.size(); ++i) {
                const double share = std::strtod(std::string(shares[i]).c_str(), nullptr);
                if (i < 2) parts[i] = share;
                all += share;
            }
            if (parts[1] > 0) set("data.valid_fraction", rounded(parts[1] / all));
        }
        const int64_t pp = std::max<int64_t>(1, number("--pipeline-model-parallel-size").value_or(1));
        int64_t v = number("--num-virtual-stages-per-pipeline-rank").value_or(1);
        if (const auto of_stage = number("--num-layers-per-virtual-pipeline-stage");
            of_stage && layers && *of_stage > 0)
            v = *layers / pp / *of_stage;
        if (pp > 1) set("parallel.schedule", v > 1 ? "interleaved" : "1f1b");
        if (pp > 1 && v > 1) set("parallel.virtual_stages", std::to_string(v));
        const bool embedding = option("--account-for-embedding-in-pipeline-split").has_value(),
                   loss = option("--account-for-loss-in-pipeline-split").has_value();
        if (embedding && loss && layers && pp * v > 1) {
            const int64_t of_stage = (*layers + 2) / (pp * v);
            std::string stages = std::to_string(of_stage - 1);
            for (int64_t stage = 1; stage + 1 < pp * v; ++stage) stages += concat(",", of_stage);
            set("parallel.stage_layers", concat(stages, ",", of_stage - 1));
        }
    }
    void read_torchtitan_recipe() {
        const std::string converters = option("model.converters").value_or("");
        const bool gathers = option(kTitanGather) == "true";
        option(kTitanAllScales);
        if (option("quantize.linear.float8.filter_fqns"))
            result_.notes.push_back(
                "quantize.linear.float8.filter_fqns: blocks that it lists are those of precision.bf16_first and "
                "precision.bf16_last");
        for (const TitanRecipe& word : kTitanRecipes) {
            const std::string name = option(concat(word.section, ".recipe_name")).value_or(word.name);
            if (converters.find(concat('"', word.section, '"')) == std::string::npos) continue;
            if (name != word.name) return result_.unknown.push_back(concat(word.section, ".recipe_name ", name));
            set("precision.recipe", word.ours);
            if (gathers) read_gather(false, true, kTitanGather);
        }
    }

    void read_torchtitan() {
        const std::string section = "parallelism.pipeline_parallel_";
        const auto name = option("model.name"), flavor = option("model.flavor");
        for (const Flavor& f : kTitanFlavors)
            if (name == f.name && flavor == f.flavor) set("model.preset", f.preset);
        if (flavor && !set_.contains("model.preset"))
            result_.notes.push_back(concat("the sizes of flavor ", *flavor, " are not known here: give --model"));
        read_torchtitan_recipe();
        if (const auto lr = number<double>("optimizer.lr")) {
            const auto factor = number<double>("lr_scheduler.min_lr_factor"),
                       former = number<double>("lr_scheduler.lr_min");
            set("optimizer.min_lr", rounded(*lr * former.value_or(factor.value_or(0))));
        }
        const int64_t pp = std::max<int64_t>(1, number(section + "degree").value_or(1));
        const auto local = number("training.local_batch_size"), piece = number(section + "microbatch_size");
        if (local) set("train.micro_batch", std::to_string(pp > 1 ? piece.value_or(1) : *local));
        const int64_t dp = number("parallelism.data_parallel_replicate_degree").value_or(1) *
                           number("parallelism.data_parallel_shard_degree").value_or(-1);
        if (local && dp > 0) set("train.global_batch", std::to_string(dp * *local));  // its default
        const auto schedule = option(section + "schedule");
        const auto of_stage = number(section + "layers_per_stage");
        for (const TitanSchedule& kind : kTitanSchedules) {
            if (pp == 1 || lower_case(schedule.value_or("1F1B")) != lower_case(kind.theirs)) continue;
            set("parallel.schedule", kind.ours);
            if (kind.stages_of_rank == 0 && of_stage.value_or(0) > 0 && set_.contains("model.preset")) {
                const int64_t layers = spec::preset(result_.preset()).layers;
                set("parallel.virtual_stages", std::to_string((layers + pp * *of_stage - 1) / (pp * *of_stage)));
            }
        }
    }
    void read_nanotron() {
        const auto heads = number("model.model_config.num_attention_heads"),
                   width = number("model.model_config.hidden_size");
        if (heads && width && *heads > 0) set("model.head_dim", std::to_string(*width / *heads));
        if (const auto lr = option("optimizer.learning_rate_scheduler.learning_rate"))
            set("optimizer.min_lr", *lr);  // without min_decay_lr
        const int64_t dp = number("parallelism.dp").value_or(1), micro = number("tokens.micro_batch_size").value_or(1),
                      times = number("tokens.batch_accumulation_per_replica").value_or(1);
        set("train.global_batch", std::to_string(dp * micro * times));
        result_.ranks =
            static_cast<int>(dp * number("parallelism.tp").value_or(1) * number("parallelism.pp").value_or(1) *
                             number("parallelism.context_parallel_size").value_or(1));
    }
    void read_deepspeed() {
        const auto global = number("train_batch_size"), micro = number("train_micro_batch_size_per_gpu"),
                   times = number("gradient_accumulation_steps");
        if (global && micro && times && *micro * *times > 0)
            result_.ranks =
                static_cast<int>(*global / (*micro * *times) * number("tensor_parallel.autotp_size").value_or(1));
        if (number("tensor_parallel.autotp_size").value_or(1) > 1) set("parallel.sequence_parallel", "false");
        if (!global && micro && times)
            result_.notes.push_back("train_batch_size is not given: set train.global_batch for your ranks");
        if (const auto betas = option("optimizer.params.betas")) {
            const std::optional<Json> list = Json::try_parse(*betas);
            check<UsageError>(list && list->is_array() && list->size() == 2, source_, ": optimizer.params.betas ",
                              *betas, ": two numbers are needed");
            for (const size_t i : {0, 1}) set(concat("optimizer.beta", i + 1), (*list)[i].dump());
        }
        option("optimizer.params.torch_adam");
        option("scheduler.params.warmup_min_lr");
        option("scheduler.params.warmup_min_ratio");
        if (lower_case(option("optimizer.params.adam_w_mode").value_or("true")) == "false" &&
            option("optimizer.type") == "Adam")
            result_.notes.push_back("adam_w_mode = false: its decay is added to the gradient, here it is decoupled");
        read_deepspeed_schedule();
        result_.notes.push_back("a DeepSpeed config has no model, sequence length or number of steps: give them");
    }
    // WarmupLR and WarmupDecayLR set the rate themselves, WarmupCosineLR scales that of the optimizer.
    void read_deepspeed_schedule() {
        const auto type = option("scheduler.type"), most = option("scheduler.params.warmup_max_lr"),
                   warm_up = option("scheduler.params.warmup_type"), lr = option("optimizer.params.lr");
        const double ratio = number<double>("scheduler.params.cos_min_ratio").value_or(1e-4);  // its default
        if (!type) return;
        if (warm_up != "linear")
            result_.notes.push_back("warmup_type is not linear: there the rate grows with the logarithm of the step");
        if (type == "WarmupCosineLR") {
            set("optimizer.min_lr", rounded(number<double>("optimizer.params.lr").value_or(0.001) * ratio));
            return;
        }
        if (type == "WarmupDecayLR") set("optimizer.min_lr", "0");
        if (!most && lr) {
            result_.notes.push_back(
                concat("scheduler.params.warmup_max_lr is not given: there the rate is its default ",
                       "of 0.001, here optimizer.params.lr = ", *lr));
        }
    }
    void read_nanogpt() {
        const int64_t heads = *number("n_head"), width = *number("n_embd");
        set("model.kv_heads", std::to_string(heads));
        set("model.head_dim", std::to_string(width / std::max<int64_t>(1, heads)));
        set("model.ffn", std::to_string(4 * width));
        set("model.vocab", std::to_string(kNanogptVocab));
        set("model.max_positions", *option("block_size"));
        set("train.global_batch", std::to_string(*number("gradient_accumulation_steps") * *number("batch_size")));
        set("model.family", "gpt2");
        set("model.norm_eps", "1e-5");
        set("model.tie_embeddings", "true");
        set("parallel.zero", "0");
        const std::string folder = concat("data/", option("dataset").value_or("openwebtext"));
        set("data.train", concat("[\"", folder, "/train.bin\"]"));
        set("data.valid", concat("[\"", folder, "/val.bin\"]"));
        const int64_t decay = *number("lr_decay_iters");
        if (is_set("optimizer.schedule=cosine")) note_end_of_decay("lr_decay_iters", decay, *number("max_iters"));
        if (option("bias") == "False") result_.notes.push_back("bias = False: gpt2 has biases here");
    }

    Peer peer_;
    Values given_;
    const std::string& source_;
    std::set<std::string> written_;  // names in the text; given_ has defaults too
    std::set<std::string> known_, set_;
    TheirRun result_;
};

}  // namespace

std::string TheirRun::preset() const {
    constexpr std::string_view kKey = "model.preset=";
    for (const std::string& each : set)
        if (each.starts_with(kKey)) return each.substr(kKey.size());
    return "";
}

TheirRun read(Peer peer, std::string_view text, const std::string& source_name) {
    if (peer == Peer::torchtitan) {
        Values values;
        flatten(spec::parse_toml(text, source_name), "", values);
        return Reading(peer, std::move(values), source_name).run();
    }
    if (peer == Peer::nanotron) {
        Values values = from_yaml(text);
        std::erase_if(values, [](const auto& value) { return value.second == "null"; });  // its defaults
        return Reading(peer, std::move(values), source_name).run();
    }
    if (peer == Peer::nanogpt) return Reading(peer, from_python(text), source_name).run();
    if (peer == Peer::deepspeed) {
        std::string json;  // without the comments that emit() puts on top
        std::istringstream lines{std::string(text)};
        for (std::string line; std::getline(lines, line);)
            if (!line.starts_with('#')) json += line + '\n';
        Values values;
        try {
            flatten(Json::parse(json), "", values);
        } catch (const JsonError& error) {
            throw UsageError(concat(source_name, ": required a DeepSpeed config, JSON: ", error.what()));
        }
        std::erase_if(values, [](const auto& value) { return value.second == "auto"; });  // filled in by a caller
        return Reading(peer, std::move(values), source_name).run();
    }
    const Script script(text);
    const Values options = script.options();
    TheirRun run = Reading(peer, options, source_name).run();
    const auto count = [&](std::initializer_list<const char*> names, const Values& values) -> int64_t {
        for (const char* name : names) {
            const auto found = values.find(name);
            if (found == values.end()) continue;
            if (const std::optional<int64_t> value = parse_number<int64_t>(found->second)) return *value;
        }
        return 0;
    };
    const auto times_nodes = [](int64_t ranks, int64_t nodes) {
        return spec::product({ranks, std::max<int64_t>(1, nodes)});
    };
    int64_t world = count({"WORLD_SIZE", "world_size", "NUM_GPUS", "NGPUS"}, script.variables());
    if (world == 0) world = times_nodes(count({"--nproc-per-node"}, options), count({"--nnodes"}, options));
    if (world == 0)
        world = times_nodes(count({"GPUS_PER_NODE", "NPROC_PER_NODE"}, script.variables()),
                            count({"NNODES", "NUM_NODES", "SLURM_NNODES"}, script.variables()));
    check<UsageError>(world >= 0 && world <= std::numeric_limits<int>::max(), source_name,
                      ": required a number of ranks, got ",
                      world == INT64_MAX ? "more than 64 bits hold" : std::to_string(world));
    run.ranks = static_cast<int>(world);
    return run;
}

}  // namespace tutti::peers
