#include "tutti/planner/peers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/toml.h"

namespace tutti::planner {

namespace {

using Values = std::map<std::string, std::string>;  // by path: "parallel.tp" -> "8", "--bf16" -> ""

// --- The tables ------------------------------------------------------------------------------------------------------

constexpr const char* kAbsent = nullptr;

struct Word {
    const char *ours, *theirs;  // theirs: "" for an option without a value, kAbsent: not given
};
// An option of a peer and the key of a config that it is. Without words the value is the same in both, and a value
// equal to `absent` is not written. `only`: a key that must not be 0, 1 or "" for the option to be written.
struct Row {
    const char *ours, *theirs;
    std::array<Word, 4> words = {};
    const char* absent = nullptr;
    const char* only = nullptr;

    std::span<const Word> given() const {
        size_t n = 0;
        while (n < words.size() && words[n].ours != nullptr) ++n;
        return {words.data(), n};
    }
};

constexpr Row kMegatron[] = {
    {"model.layers", "--num-layers"},
    {"model.width", "--hidden-size"},
    {"model.ffn", "--ffn-hidden-size"},
    {"model.heads", "--num-attention-heads"},
    {"model.head_dim", "--kv-channels"},
    {"model.max_positions", "--max-position-embeddings"},
    {"model.vocab", "--vocab-size"},
    {"model.norm_eps", "--norm-epsilon"},
    {"model.family", "--swiglu", {{{"llama", ""}, {"gpt2", kAbsent}}}},
    {"model.family", "--normalization", {{{"llama", "RMSNorm"}, {"gpt2", kAbsent}}}},
    {"model.family", "--position-embedding-type", {{{"llama", "rope"}, {"gpt2", kAbsent}}}},
    {"model.family", "--disable-bias-linear", {{{"llama", ""}, {"gpt2", kAbsent}}}},
    {"model.rope_theta", "--rotary-base", {}, "0"},
    {"model.qkv_bias", "--add-qkv-bias", {{{"true", ""}, {"false", kAbsent}}}},
    {"model.head_norm", "--qk-layernorm", {{{"true", ""}, {"false", kAbsent}}}},
    {"model.tie_embeddings", "--untie-embeddings-and-output-weights", {{{"true", kAbsent}, {"false", ""}}}},
    {"model.moe.experts", "--num-experts", {}, "0"},
    {"model.moe.top_k", "--moe-router-topk", {}, nullptr, "model.moe.experts"},
    {"model.moe.ffn", "--moe-ffn-hidden-size", {}, nullptr, "model.moe.experts"},
    {"model.moe.shared_ffn", "--moe-shared-expert-intermediate-size", {}, "0", "model.moe.experts"},
    {"model.moe.capacity_factor", "--moe-expert-capacity-factor", {}, "0", "model.moe.experts"},
    {"train.seq_len", "--seq-length"},
    {"train.global_batch", "--global-batch-size"},
    {"train.micro_batch", "--micro-batch-size"},
    {"train.steps", "--train-iters"},
    {"precision.compute", "--bf16", {{{"bf16", ""}, {"f32", kAbsent}}}},
    {"parallel.tp", "--tensor-model-parallel-size"},
    {"parallel.sequence_parallel", "--sequence-parallel", {{{"true", ""}, {"false", kAbsent}}}, nullptr, "parallel.tp"},
    {"parallel.cp", "--context-parallel-size"},
    {"parallel.cp_method",
     "--cp-comm-type",
     {{{"ring", "p2p"}, {"all_gather", "all_gather"}, {"ulysses", "a2a"}}},
     nullptr,
     "parallel.cp"},
    {"parallel.pp", "--pipeline-model-parallel-size"},
    {"parallel.ep", "--expert-model-parallel-size", {}, nullptr, "model.moe.experts"},
    {"parallel.etp", "--expert-tensor-parallel-size", {}, nullptr, "model.moe.experts"},
    {"parallel.zero", "--use-distributed-optimizer", {{{"0", kAbsent}, {"1", ""}, {"2", ""}, {"3", ""}}}},
    {"parallel.zero", "--use-megatron-fsdp", {{{"0", kAbsent}, {"1", kAbsent}, {"2", ""}, {"3", ""}}}},
    {"parallel.zero",
     "--data-parallel-sharding-strategy",
     {{{"0", kAbsent}, {"1", kAbsent}, {"2", "optim_grads"}, {"3", "optim_grads_params"}}}},
    {"parallel.dp_replicate", "--num-distributed-optimizer-instances", {}, "1"},
    {"recompute.policy",
     "--recompute-granularity",
     {{{"none", kAbsent}, {"selective", "selective"}, {"full", "full"}}}},
    {"recompute.policy", "--recompute-method", {{{"none", kAbsent}, {"selective", kAbsent}, {"full", "uniform"}}}},
    {"recompute.policy", "--recompute-num-layers", {{{"none", kAbsent}, {"selective", kAbsent}, {"full", "1"}}}},
    {"offload.optimizer", "--optimizer-cpu-offload", {{{"true", ""}, {"false", kAbsent}}}},
    {"optimizer.lr", "--lr"},
    {"optimizer.weight_decay", "--weight-decay"},
    {"optimizer.clip", "--clip-grad"},
    {"optimizer.beta1", "--adam-beta1"},
    {"optimizer.beta2", "--adam-beta2"},
};

constexpr Row kTorchtitan[] = {
    {"train.seq_len", "training.seq_len"},
    {"train.global_batch", "training.global_batch_size"},
    {"train.steps", "training.steps"},
    {"optimizer.clip", "training.max_norm"},
    {"optimizer.lr", "optimizer.lr"},
    {"precision.compute", "training.mixed_precision_param", {{{"bf16", "bfloat16"}, {"f32", "float32"}}}},
    {"parallel.dp_replicate", "parallelism.data_parallel_replicate_degree"},
    {"parallel.dp_shard", "parallelism.data_parallel_shard_degree"},
    {"parallel.zero", "parallelism.fsdp_reshard_after_forward", {{{"3", "always"}, {"2", "never"}}}},
    {"parallel.tp", "parallelism.tensor_parallel_degree"},
    {"parallel.cp", "parallelism.context_parallel_degree"},
    {"parallel.cp_method",
     "parallelism.context_parallel_rotate_method",
     {{{"ring", "alltoall"}, {"all_gather", "allgather"}}},
     nullptr,
     "parallel.cp"},
    {"parallel.pp", "parallelism.pipeline_parallel_degree"},
    {"parallel.ep", "parallelism.expert_parallel_degree"},
    {"recompute.policy",
     "activation_checkpoint.mode",
     {{{"none", "none"}, {"selective", "selective"}, {"full", "full"}}}},
    {"recompute.policy",
     "activation_checkpoint.selective_ac_option",
     {{{"none", kAbsent}, {"selective", "op"}, {"full", kAbsent}}}},
};

constexpr Row kNanotron[] = {
    {"model.layers", "model.model_config.num_hidden_layers"},
    {"model.width", "model.model_config.hidden_size"},
    {"model.ffn", "model.model_config.intermediate_size"},
    {"model.heads", "model.model_config.num_attention_heads"},
    {"model.kv_heads", "model.model_config.num_key_value_heads"},
    {"model.max_positions", "model.model_config.max_position_embeddings"},
    {"model.vocab", "model.model_config.vocab_size"},
    {"model.norm_eps", "model.model_config.rms_norm_eps"},
    {"model.rope_theta", "model.model_config.rope_theta"},
    {"model.tie_embeddings", "model.model_config.tie_word_embeddings"},
    {"model.family", "model.model_config.is_llama_config", {{{"llama", "true"}}}},
    {"precision.compute", "model.dtype", {{{"bf16", "bfloat16"}, {"f32", "float32"}}}},
    {"train.seq_len", "tokens.sequence_length"},
    {"train.micro_batch", "tokens.micro_batch_size"},
    {"train.steps", "tokens.train_steps"},
    {"parallel.tp", "parallelism.tp"},
    {"parallel.sequence_parallel", "parallelism.tp_mode", {{{"true", "REDUCE_SCATTER"}, {"false", "ALL_REDUCE"}}}},
    {"parallel.cp", "parallelism.context_parallel_size"},
    {"parallel.pp", "parallelism.pp"},
    {"parallel.schedule", "parallelism.pp_engine", {{{"1f1b", "1f1b"}, {"gpipe", "afab"}}}},
    {"parallel.zero", "optimizer.zero_stage"},
    {"recompute.policy", "parallelism.recompute_layer", {{{"none", "false"}, {"full", "true"}}}},
    {"optimizer.lr", "optimizer.learning_rate_scheduler.learning_rate"},
    {"optimizer.clip", "optimizer.clip_grad"},
    {"optimizer.weight_decay", "optimizer.weight_decay"},
};

std::span<const Row> rows_of(Peer peer) {
    switch (peer) {
        case Peer::megatron: return kMegatron;
        case Peer::torchtitan: return kTorchtitan;
        case Peer::nanotron: return kNanotron;
    }
    return {};
}

// Beginnings of names of options that change neither the layout nor what a step computes.
constexpr const char* kWithoutEffect[] = {"--save",
                                          "--load",
                                          "--data",
                                          "--log",
                                          "--eval",
                                          "--tensorboard",
                                          "--wandb",
                                          "--tokenizer",
                                          "--vocab-file",
                                          "--merge-file",
                                          "--split",
                                          "--seed",
                                          "--exit",
                                          "--distributed",
                                          "--ckpt",
                                          "--no-load",
                                          "--no-save",
                                          "--lr-",
                                          "--min-lr",
                                          "--init-method",
                                          "--adam-eps",
                                          "--timing",
                                          "--num-workers",
                                          "--mock-data",
                                          "--master",
                                          "--node",
                                          "--rdzv",
                                          "--rank",
                                          "--local",
                                          "--weight-decay-incr",
                                          "--override",
                                          "--use-checkpoint",
                                          "--finetune",
                                          "--make-vocab-size-divisible-by",
                                          "--no-create-attention-mask",
                                          "--no-mmap",
                                          "--manual-gc",
                                          "--attention-dropout",
                                          "--hidden-dropout",
                                          "--train-samples",
                                          "--overlap-",
                                          "--use-mcore-models",
                                          "--transformer-impl",
                                          "--use-flash-attn",
                                          "--attention-backend",
                                          "--use-rotary",
                                          "--rotary-percent",
                                          "--no-masked-softmax",
                                          "--no-rope-fusion",
                                          "--no-position-embedding",
                                          "--moe-token-dispatcher",
                                          "--moe-grouped-gemm",
                                          "--moe-router-load",
                                          "--moe-aux-loss",
                                          "--moe-z-loss",
                                          "--moe-permute",
                                          "--nnodes",
                                          "--nproc",
                                          "--accumulate-allreduce-grads-in-fp32",
                                          "--no-gradient-accumulation-fusion",
                                          "--cross-entropy",
                                          "--tee",
                                          "--max-restarts",
                                          "job.",
                                          "profiling.",
                                          "metrics.",
                                          "checkpoint.",
                                          "comm.",
                                          "lr_scheduler.",
                                          "optimizer.name",
                                          "optimizer.eps",
                                          "optimizer.implementation",
                                          "training.dataset",
                                          "training.compile",
                                          "training.mixed_precision_reduce",
                                          "compile.",
                                          "model.tokenizer",
                                          "model.hf_assets",
                                          "model.converters",
                                          "model.ddp_bucket",
                                          "general.",
                                          "data_stages",
                                          "logging.",
                                          "checkpoints.",
                                          "profiler",
                                          "tokenizer.",
                                          "model.init_method",
                                          "model.make_vocab",
                                          "model.model_config.",
                                          "optimizer.optimizer_factory",
                                          "optimizer.accumulate_grad",
                                          "optimizer.learning_rate_scheduler.",
                                          "parallelism.tp_linear_async",
                                          "tokens.val_check",
                                          "tokens.limit",
                                          "lighteval",
                                          "s3_upload",
                                          "experimental.",
                                          "debug."};

struct Flavor {
    const char *preset, *name, *flavor;
};
constexpr Flavor kFlavors[] = {{"llama3-8b", "llama3", "8B"},     {"llama3-70b", "llama3", "70B"},
                               {"llama3-405b", "llama3", "405B"}, {"qwen3-0.6b", "qwen3", "0.6B"},
                               {"qwen3-4b", "qwen3", "4B"},       {"qwen3-8b", "qwen3", "8B"}};

struct TitanSchedule {
    const char *ours, *theirs;
    int stages_of_rank;  // 0: any
};
constexpr TitanSchedule kTitanSchedules[] = {{"1f1b", "1F1B", 1},
                                             {"gpipe", "GPipe", 1},
                                             {"interleaved", "Interleaved1F1B", 0},
                                             {"interleaved-zb", "InterleavedZeroBubble", 0},
                                             {"zb-v", "ZBVZeroBubble", 2},
                                             {"dualpipe-v", "DualPipeV", 2}};

// --- Texts -----------------------------------------------------------------------------------------------------------

void flatten(const Json& json, const std::string& path, Values& into) {
    if (json.is_object()) {
        for (const Json::Member& m : json.items()) flatten(m.value, path.empty() ? m.key : path + "." + m.key, into);
        return;
    }
    into[path] = json.is_string() ? json.text() : json.dump();
}

Values values_of(const spec::RunSpec& run) {
    Values values;
    flatten(spec::parse_toml(spec::to_toml(run), "run"), "", values);
    return values;
}

std::string quoted_unless_plain(const std::string& value) {
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool plain = value == "true" || value == "false" ||
                       (error == std::errc() && end == value.data() + value.size() && std::isfinite(number));
    return plain ? value : Json(value).dump();
}

std::string to_arguments(const Values& options) {
    std::string text = "ARGS=(\n";
    for (const auto& [name, value] : options) text += concat("    ", name, value.empty() ? "" : " ", value, '\n');
    return text + ")\n";
}

std::string to_toml_text(const Values& options) {
    std::string text, section;
    for (const auto& [path, value] : options) {
        const size_t dot = path.rfind('.');
        if (path.substr(0, dot) != section) {
            section = path.substr(0, dot);
            text += concat(text.empty() ? "[" : "\n[", section, "]\n");
        }
        text += concat(path.substr(dot + 1), " = ", quoted_unless_plain(value), '\n');
    }
    return text;
}

// Nested maps, two blanks a level: all that a nanotron config needs.
std::string to_yaml(const Values& options) {
    std::string text;
    std::vector<std::string> open;
    for (const auto& [path, value] : options) {
        std::vector<std::string> keys;
        std::istringstream in(path);
        for (std::string key; std::getline(in, key, '.');) keys.push_back(key);
        size_t same = 0;
        while (same < open.size() && same + 1 < keys.size() && open[same] == keys[same]) ++same;
        for (size_t i = same; i + 1 < keys.size(); ++i) text += concat(std::string(2 * i, ' '), keys[i], ":\n");
        open.assign(keys.begin(), keys.end() - 1);
        text += concat(std::string(2 * open.size(), ' '), keys.back(), ": ", value, '\n');
    }
    return text;
}

Values from_yaml(std::string_view text) {
    Values values;
    std::vector<std::pair<size_t, std::string>> open;  // indentation, key
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) {
        const size_t indent = line.find_first_not_of(' '), colon = line.find(':');
        if (indent == std::string::npos || line[indent] == '#' || line[indent] == '-' || colon == std::string::npos)
            continue;
        while (!open.empty() && open.back().first >= indent) open.pop_back();
        std::string value = line.substr(colon + 1);
        if (const size_t comment = value.find(" #"); comment != std::string::npos) value.resize(comment);
        value.erase(0, std::min(value.find_first_not_of(' '), value.size()));
        value.erase(value.find_last_not_of(" \r") + 1);
        if (value.size() > 1 && (value[0] == '"' || value[0] == '\'')) value = value.substr(1, value.size() - 2);
        const std::string key = line.substr(indent, colon - indent);
        if (value.empty()) {
            open.emplace_back(indent, key);
            continue;
        }
        std::string path;
        for (const auto& [at, name] : open) path += name + ".";
        values[path + key] = value;
    }
    return values;
}

// The words of a shell script: quotes and comments removed, variables replaced where the script gives them.
class Script {
  public:
    explicit Script(std::string_view text) {
        std::string line;
        std::istringstream lines{std::string(text)};
        std::string logical;
        while (std::getline(lines, line)) {
            if (line.ends_with('\r')) line.pop_back();
            if (const size_t comment = line.find(" #"); comment != std::string::npos) line.resize(comment);
            if (line.starts_with('#')) continue;
            if (line.ends_with('\\')) {
                logical += line.substr(0, line.size() - 1) + " ";
                continue;
            }
            read(logical + line);
            logical.clear();
        }
        read(logical);
    }
    const std::vector<std::string>& words() const { return words_; }
    const Values& variables() const { return variables_; }

  private:
    // NAME=VALUE, with a value that is no list, is a variable. Other words are kept.
    void read(const std::string& line) {
        for (const std::string& word : split(line)) {
            const size_t equals = word.find('=');
            const bool name = equals != std::string::npos && equals > 0 && !word.starts_with('-') &&
                              word.find_first_not_of(kNameLetters) == equals;
            if (!name) {
                words_.push_back(word);
                continue;
            }
            const std::string value = word.substr(equals + 1);
            // A quoted list of options, as older scripts have it: GPT_ARGS="--num-layers 2 --hidden-size 8".
            if (value.find("--") != std::string::npos)
                for (const std::string& inner : split(value)) words_.push_back(inner);
            else
                variables_.try_emplace(word.substr(0, equals), value);
        }
    }
    std::vector<std::string> split(const std::string& line) const {
        std::vector<std::string> words;
        std::string word;
        char quote = 0;
        bool any = false;
        const auto end_word = [&] {
            if (any) words.push_back(expanded(word));
            word.clear();
            any = false;
        };
        int depth = 0;  // of ${...} and $(...)
        for (size_t i = 0; i < line.size(); ++i) {
            const char c = line[i];
            if (quote != 0 && c == quote) {
                quote = 0;
            } else if (quote == 0 && (c == '"' || c == '\'')) {
                quote = c;
                any = true;
            } else if (quote == 0 && depth == 0 && (c == ' ' || c == '\t' || c == ';')) {
                end_word();
            } else if (quote == 0 && depth == 0 && (c == '(' || c == ')') && (i == 0 || line[i - 1] != '$')) {
                // Of an array: NAME=( and NAME+=( are not values.
                if (c == '(' && word.ends_with('=')) word.clear(), any = false;
                end_word();
            } else {
                if (c == '{' && i > 0 && line[i - 1] == '$') ++depth;
                if (c == '(' && i > 0 && line[i - 1] == '$') ++depth;
                if ((c == '}' || c == ')') && depth > 0) --depth;
                word += c;
                any = true;
            }
        }
        end_word();
        return words;
    }
    // $NAME, ${NAME}, ${NAME:-DEFAULT} and $((A * B)) of what is known; others stay as they are.
    std::string expanded(const std::string& word) const {
        std::string text;
        for (size_t i = 0; i < word.size();) {
            if (word[i] != '$' || i + 1 == word.size()) {
                text += word[i++];
                continue;
            }
            if (word.compare(i, 3, "$((") == 0) {
                const size_t close = word.find("))", i);
                if (close == std::string::npos) return word;
                text += product(word.substr(i + 3, close - i - 3));
                i = close + 2;
                continue;
            }
            const bool braces = word[i + 1] == '{';
            const size_t begin = i + (braces ? 2 : 1);
            size_t end = std::min(word.find_first_not_of(kNameLetters, begin), word.size());
            const std::string name = word.substr(begin, end - begin);
            std::string otherwise = concat("$", name);
            if (braces) {
                const size_t close = word.find('}', end);
                if (close == std::string::npos) return word;
                if (word.compare(end, 2, ":-") == 0) otherwise = word.substr(end + 2, close - end - 2);
                end = close + 1;
            }
            const auto known = variables_.find(name);
            text += known == variables_.end() ? otherwise : known->second;
            i = end;
        }
        return text;
    }
    std::string product(const std::string& factors) const {
        int64_t result = 1;
        std::istringstream in(factors);
        for (std::string factor; std::getline(in, factor, '*');) {
            std::erase(factor, ' ');
            if (!factor.empty() && factor[0] != '$' && (std::isalpha(static_cast<unsigned char>(factor[0])) != 0))
                factor = "$" + factor;
            factor = expanded(factor);
            int64_t value = 0;
            const auto [end, error] = std::from_chars(factor.data(), factor.data() + factor.size(), value);
            if (error != std::errc() || end != factor.data() + factor.size()) return concat("$((", factors, "))");
            result *= value;
        }
        return std::to_string(result);
    }

    static constexpr const char* kNameLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    std::vector<std::string> words_;
    Values variables_;
};

bool is_option(const std::string& word) {
    return word.starts_with("--") && word.size() > 2 && std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

Values from_script(const Script& script) {
    Values values;
    const std::vector<std::string>& words = script.words();
    for (size_t i = 0; i < words.size(); ++i) {
        if (!is_option(words[i])) continue;
        const size_t equals = words[i].find('=');
        std::string name = words[i].substr(0, equals), value;
        if (equals != std::string::npos)
            value = words[i].substr(equals + 1);
        else if (i + 1 < words.size() && !is_option(words[i + 1]))
            value = words[i + 1];
        std::replace(name.begin(), name.end(), '_', '-');
        values[name] = value;
    }
    return values;
}

// --- Writing ---------------------------------------------------------------------------------------------------------

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

void write_megatron(const spec::RunSpec& run, const Shape& s, Values& out, std::vector<std::string>& notes) {
    if (run.model.kv_heads != run.model.heads) {
        out["--group-query-attention"] = "";
        out["--num-query-groups"] = std::to_string(run.model.kv_heads);
    }
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
    for (const Flavor& f : kFlavors) {
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
    // Without a pipeline a local batch is a microbatch and global batches accumulate; with one it is divided.
    out["training.local_batch_size"] = std::to_string(s.pp > 1 ? s.global_batch / s.dp : s.micro_batch);
    if (s.pp > 1) {
        out[section + "microbatch_size"] = std::to_string(s.micro_batch);
        for (const TitanSchedule& kind : kTitanSchedules)
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

}  // namespace

std::vector<std::string> peer_names() { return {"megatron", "torchtitan", "nanotron"}; }

Peer peer_named(const std::string& name) {
    const std::vector<std::string> names = peer_names();
    const auto found = std::find(names.begin(), names.end(), name);
    check<UsageError>(found != names.end(), "no trainer is called ", name, "; the nearest is ",
                      spec::nearest(name, names), " of ", joined(names));
    return static_cast<Peer>(found - names.begin());
}

void keep_to(Limits& limits, Peer peer) {
    const auto keep = [](auto& list, auto allowed) {
        if (!list.empty()) std::erase_if(allowed, [&](const auto& value) { return !Limits::in(list, value); });
        check<UsageError>(!allowed.empty(), "--emit-for: --without leaves nothing that this trainer can run");
        list = std::move(allowed);
    };
    using Names = std::vector<std::string>;
    using Numbers = std::vector<int>;
    limits.offload = false;
    limits.plain_context = true;
    switch (peer) {
        case Peer::megatron:
            keep(limits.schedules, Names{"1f1b", "interleaved"});
            keep(limits.zero, Numbers{0, 1});
            break;
        case Peer::torchtitan:
            keep(limits.schedules, Names{"1f1b", "interleaved", "zb-v", "dualpipe-v"});
            keep(limits.zero, Numbers{2, 3});
            keep(limits.etp, Numbers{1});
            break;
        case Peer::nanotron:
            keep(limits.schedules, Names{"1f1b"});
            keep(limits.zero, Numbers{0, 1});
            keep(limits.recompute, Names{"none", "full"});
            keep(limits.dp_replicate, Numbers{1});
            keep(limits.ep, Numbers{1});
            keep(limits.etp, Numbers{1});
            break;
    }
}

std::string emit_for(Peer peer, const spec::RunSpec& run, int ranks) {
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
    std::string head =
        concat("# ", peer_names()[static_cast<size_t>(peer)], ", ", ranks, " ranks: ", name_of(run.model), '\n');
    if (run.offload.params || run.offload.activations)
        notes.push_back("offload of weights and activations is left out");
    if (peer == Peer::megatron) write_megatron(run, shape, out, notes);
    if (peer == Peer::torchtitan) write_torchtitan(run, shape, out, notes);
    if (peer == Peer::nanotron) write_nanotron(run, shape, out, notes);
    for (const std::string& note : notes) head += concat("# not the same: ", note, '\n');
    switch (peer) {
        case Peer::megatron:
            return concat(head, "WORLD_SIZE=", ranks, '\n', to_arguments(out),
                          "# torchrun --nproc-per-node 8 --nnodes ", (ranks + 7) / 8,
                          " pretrain_gpt.py \"${ARGS[@]}\" ...\n");
        case Peer::torchtitan: return head + to_toml_text(out);
        case Peer::nanotron: return head + to_yaml(out);
    }
    return "";
}

// --- Reading ---------------------------------------------------------------------------------------------------------

namespace {

class Reading {
  public:
    Reading(Peer peer, Values given, const std::string& source)
        : peer_(peer), given_(std::move(given)), source_(source) {}

    PeerRun run() {
        for (const Row& row : rows_of(peer_)) read(row);
        if (peer_ == Peer::megatron) read_megatron();
        if (peer_ == Peer::torchtitan) read_torchtitan();
        if (peer_ == Peer::nanotron) read_nanotron();
        for (const auto& [name, value] : given_) {
            if (known_.contains(name)) continue;
            const bool without = std::any_of(std::begin(kWithoutEffect), std::end(kWithoutEffect),
                                             [&](const char* begin) { return name.starts_with(begin); });
            (without ? result_.ignored : result_.unknown).push_back(name);
        }
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
    std::optional<int64_t> number(const std::string& name) {
        const std::optional<std::string> text = option(name);
        if (!text) return std::nullopt;
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
        check<UsageError>(
            error == std::errc() && end == text->data() + text->size(), source_, ": ", name, " ", *text,
            ": a whole number is needed",
            text->find('$') != std::string::npos ? "; the script does not set this variable: write the value" : "");
        return value;
    }
    // All rows of one key together: the value that agrees with most of them, the first of equals.
    void read(const Row& row) {
        const std::span<const Word> words = row.given();
        const std::optional<std::string> text = option(row.theirs);
        if (words.empty()) {
            if (!text) return;
            check<UsageError>(text->find('$') == std::string::npos, source_, ": ", row.theirs, " ", *text,
                              ": the script does not set this variable: write the value");
            return set(row.ours, *text);
        }
        if (set_.contains(row.ours)) return;
        std::pair<int, std::string> best{-1, ""};
        bool any = false;
        for (const Word& candidate : words) {
            int agreeing = 0;
            for (const Row& other : rows_of(peer_)) {
                if (std::string_view(other.ours) != row.ours) continue;
                const std::optional<std::string> value = option(other.theirs);
                any = any || value.has_value();
                for (const Word& w : other.given())
                    if (std::string_view(w.ours) == candidate.ours)
                        agreeing +=
                            w.theirs == kAbsent ? (value ? 0 : 1) : (value && lower(*value) == lower(w.theirs) ? 1 : 0);
            }
            if (agreeing > best.first) best = {agreeing, candidate.ours};
        }
        const bool absent_means =
            std::any_of(words.begin(), words.end(), [](const Word& w) { return w.theirs == kAbsent; });
        if (any || absent_means) set(row.ours, best.second);
    }
    static std::string lower(std::string text) {
        for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return text;
    }

    void read_megatron() {
        const auto heads = number("--num-attention-heads"), groups = number("--num-query-groups");
        option("--group-query-attention");
        if (heads) set("model.kv_heads", std::to_string(groups.value_or(*heads)));
        const auto width = number("--hidden-size"), layers = number("--num-layers");
        if (heads && width && !given_.contains("--kv-channels")) set("model.head_dim", std::to_string(*width / *heads));
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
        if (layers && !given_.contains("--norm-epsilon")) set("model.norm_eps", "1e-5");
        if (given_.contains("--swiglu") && !given_.contains("--rotary-base")) set("model.rope_theta", "10000");
        const int64_t pp = number("--pipeline-model-parallel-size").value_or(1);
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
        const bool half = option("--fp16").has_value();
        if (!given_.contains("--bf16") && half) {
            result_.set.erase(std::remove(result_.set.begin(), result_.set.end(), "precision.compute=f32"),
                              result_.set.end());
            result_.set.push_back("precision.compute=bf16");
            result_.notes.push_back("fp16 is priced as bf16: the same bytes and rates");
        }
    }
    void read_torchtitan() {
        const std::string section = "parallelism.pipeline_parallel_";
        const auto name = option("model.name"), flavor = option("model.flavor");
        for (const Flavor& f : kFlavors)
            if (name == f.name && flavor == f.flavor) set("model.preset", f.preset);
        if (flavor && !set_.contains("model.preset"))
            result_.notes.push_back(concat("the sizes of flavor ", *flavor, " are not known here: give --model"));
        const int64_t pp = number(section + "degree").value_or(1);
        const auto local = number("training.local_batch_size"), piece = number(section + "microbatch_size");
        if (local) set("train.micro_batch", std::to_string(pp > 1 ? piece.value_or(1) : *local));
        const auto schedule = option(section + "schedule");
        const auto of_stage = number(section + "layers_per_stage");
        for (const TitanSchedule& kind : kTitanSchedules) {
            if (pp == 1 || lower(schedule.value_or("1F1B")) != lower(kind.theirs)) continue;
            set("parallel.schedule", kind.ours);
            if (kind.stages_of_rank == 0 && of_stage && set_.contains("model.preset")) {
                const int64_t layers = spec::preset(preset()).layers;
                set("parallel.virtual_stages", std::to_string((layers + pp * *of_stage - 1) / (pp * *of_stage)));
            }
        }
    }
    void read_nanotron() {
        const auto heads = number("model.model_config.num_attention_heads"),
                   width = number("model.model_config.hidden_size");
        if (heads && width) set("model.head_dim", std::to_string(*width / *heads));
        const int64_t dp = number("parallelism.dp").value_or(1), micro = number("tokens.micro_batch_size").value_or(1),
                      times = number("tokens.batch_accumulation_per_replica").value_or(1);
        set("train.global_batch", std::to_string(dp * micro * times));
        result_.ranks =
            static_cast<int>(dp * number("parallelism.tp").value_or(1) * number("parallelism.pp").value_or(1) *
                             number("parallelism.context_parallel_size").value_or(1));
    }
    std::string preset() const {
        for (const std::string& s : result_.set)
            if (s.starts_with("model.preset=")) return s.substr(13);
        return "";
    }

    Peer peer_;
    Values given_;
    const std::string& source_;
    std::set<std::string> known_, set_;
    PeerRun result_;
};

}  // namespace

PeerRun read_peer(Peer peer, std::string_view text, const std::string& source_name) {
    if (peer == Peer::torchtitan) {
        Values values;
        flatten(spec::parse_toml(text, source_name), "", values);
        return Reading(peer, std::move(values), source_name).run();
    }
    if (peer == Peer::nanotron) return Reading(peer, from_yaml(text), source_name).run();
    const Script script(text);
    PeerRun run = Reading(peer, from_script(script), source_name).run();
    const auto count = [&](std::initializer_list<const char*> names, const Values& values) -> int64_t {
        for (const char* name : names) {
            const auto found = values.find(name);
            int64_t value = 0;
            if (found != values.end() &&
                std::from_chars(found->second.data(), found->second.data() + found->second.size(), value).ec ==
                    std::errc())
                return value;
        }
        return 0;
    };
    const Values options = from_script(script);
    int64_t world = count({"WORLD_SIZE", "world_size", "NUM_GPUS", "NGPUS"}, script.variables());
    const int64_t of_node = count({"--nproc-per-node"}, options), nodes = count({"--nnodes"}, options);
    if (world == 0 && of_node > 0) world = of_node * std::max<int64_t>(1, nodes);
    if (world == 0)
        world = count({"GPUS_PER_NODE", "NPROC_PER_NODE"}, script.variables()) *
                std::max<int64_t>(1, count({"NNODES", "NUM_NODES", "SLURM_NNODES"}, script.variables()));
    run.ranks = static_cast<int>(world);
    return run;
}

}  // namespace tutti::planner
