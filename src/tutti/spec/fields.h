// spec/fields.h: every key of the config file, described once: section, key, member, range, help. Reading, printing,
// --set, range checks, --help and docs/config.md are visitors of for_each_field(); a new option is one line here.
#pragma once

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// The values that a field may have by itself; rules between fields are in validate.cpp.
struct Range {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool low_open = false, high_open = false;
    std::vector<std::string> choices;  // of a text: those that this build has
    std::vector<std::string> to_come;  // others that are known, which validate() refuses by name
    std::string text() const;          // ">= 1", "[0, 1)", "cpu | cuda"; "" when anything goes
};

struct Field {
    std::string_view section;
    std::string_view key;  // with a dot in a sub-table: "rope_scaling.factor"
    Range range;
    std::string_view help;
    std::string name() const;  // "[train] steps"
    std::string path() const;  // "train.steps"
};

// The value as TOML writes it. Doubles have the fewest digits that read back to the same bits.
std::string toml_text(int64_t value);
std::string toml_text(double value);
std::string toml_text(bool value);
std::string toml_text(const std::string& value);
std::string toml_text(const std::vector<std::string>& value);
std::string toml_text(Family value);

// What is wrong with the value alone: "[train] steps = 0: must be >= 1". Doubles must be finite.
std::optional<std::string> range_problem(const Field& field, int64_t value);
std::optional<std::string> range_problem(const Field& field, double value);
std::optional<std::string> range_problem(const Field& field, bool value);
std::optional<std::string> range_problem(const Field& field, const std::string& value);
std::optional<std::string> range_problem(const Field& field, const std::vector<std::string>& value);
std::optional<std::string> range_problem(const Field& field, Family value);

namespace range {
inline Range any() { return {}; }
inline Range at_least(double low) { return {.low = low, .choices = {}, .to_come = {}}; }
inline Range above(double low) { return {.low = low, .low_open = true, .choices = {}, .to_come = {}}; }
inline Range between(double low, double high) { return {.low = low, .high = high, .choices = {}, .to_come = {}}; }
inline Range below_one() { return {.low = 0, .high = 1, .high_open = true, .choices = {}, .to_come = {}}; }
inline Range one_of(std::initializer_list<std::string> choices, std::initializer_list<std::string> to_come = {}) {
    return {.choices = choices, .to_come = to_come};
}
}  // namespace range

// visit(field, value) for every key in the order of the file. Run is RunSpec or const RunSpec.
template <class Run, class Visit>
void for_each_field(Run& run, const Visit& visit) {
    using namespace range;
    std::string_view section;
    const auto key = [&](std::string_view name, auto& value, Range values, std::string_view help) {
        visit(Field{section, name, std::move(values), help}, value);
    };
    // The upper limits keep parameter counts, FLOPs and byte counts inside 63 bits.
    section = "model";
    auto& m = run.model;
    key("preset", m.preset, any(), "where the other fields of [model] start from; \"\": give them all");
    key("hf", m.hf, any(), "or: a Hugging Face directory, whose weights and config.json the run starts from");
    key("family", m.family, one_of({"gpt2", "llama", "lfm2", "mlp"}), "architecture");
    key("vocab", m.vocab, between(0, 2147483647), "rows of the embedding; mlp: 0");
    key("width", m.width, between(1, 1048576), "C, size of the residual stream");
    key("layers", m.layers, between(1, 100000), "L, transformer blocks; mlp: linear layers");
    key("heads", m.heads, between(0, 65536), "H, query heads; mlp: 0");
    key("kv_heads", m.kv_heads, between(0, 65536), "key and value heads, a divisor of heads; mlp: 0");
    key("head_dim", m.head_dim, between(0, 65536), "D; gpt2: heads * head_dim = width; mlp: 0");
    key("ffn", m.ffn, between(0, 16777216), "F, inner size of the MLP; mlp: 0");
    key("qkv_bias", m.qkv_bias, any(), "llama: biases on the query, key and value projections (Qwen2)");
    key("output_bias", m.output_bias, any(), "llama: bias on the output projection of attention");
    key("mlp_bias", m.mlp_bias, any(), "llama: biases in the MLP");
    key("head_norm", m.head_norm, any(), "llama: RMSNorm of each query and key head (Qwen3); lfm2: true");
    key("window", m.window, between(0, 2147483647), "llama: newest keys that a query sees (Mistral); 0: all");
    key("window_layers", m.window_layers, any(),
        "the layers that have the window (Qwen), as \"0,2-5\"; \"\": all layers");
    key("conv_layers", m.conv_layers, any(),
        "lfm2: the layers with a gated short convolution in place of attention, as \"0-1,3-4\"; \"\": none");
    key("conv_kernel", m.conv_kernel, between(0, 16),
        "lfm2: tokens that the convolution sees, its own included; 0 without conv_layers");
    key("conv_bias", m.conv_bias, any(), "lfm2: biases on the convolution and the projections around it");
    key("max_positions", m.max_positions, between(0, 2147483647),
        "longest seq_len; gpt2 learns this many positions; mlp: 0");
    key("norm_eps", m.norm_eps, at_least(0), "epsilon of LayerNorm and RMSNorm; mlp: 0");
    key("rope_theta", m.rope_theta, at_least(0), "base of the RoPE frequencies; gpt2 and mlp: 0");
    key("rope_scaling.type", m.rope_scaling.type, one_of({"llama3", "linear", "yarn"}), "for contexts beyond the old");
    key("rope_scaling.factor", m.rope_scaling.factor, at_least(0), "long-context scaling of RoPE; 0: off");
    key("rope_scaling.low_freq_factor", m.rope_scaling.low_freq_factor, above(0),
        "llama3: wavelengths above original_max_positions / this are scaled by factor");
    key("rope_scaling.high_freq_factor", m.rope_scaling.high_freq_factor, above(0),
        "llama3: wavelengths below original_max_positions / this are kept");
    key("rope_scaling.beta_fast", m.rope_scaling.beta_fast, above(0),
        "yarn: frequencies that turn more often than this in original_max_positions are kept");
    key("rope_scaling.beta_slow", m.rope_scaling.beta_slow, above(0),
        "yarn: frequencies that turn less often than this are divided by factor");
    key("rope_scaling.attention_factor", m.rope_scaling.attention_factor, at_least(0),
        "yarn: multiplies cosines and sines; 0: 0.1 ln(factor) + 1");
    key("rope_scaling.original_max_positions", m.rope_scaling.original_max_positions, between(1, 2147483647),
        "llama3, yarn: positions before scaling");
    key("tie_embeddings", m.tie_embeddings, any(), "the output head reuses the embedding matrix; mlp: false");
    key("dropout", m.dropout, below_one(), "after the embedding and after the attention and MLP projections; mlp: 0");
    key("init_std", m.init_std, at_least(0), "standard deviation of the initial weights");

    auto& e = m.moe;
    key("moe.experts", e.experts, between(0, 65536), "E, experts of a layer; 0: no mixture of experts");
    key("moe.top_k", e.top_k, between(0, 65536), "experts of a token");
    key("moe.ffn", e.ffn, between(0, 16777216), "inner size of an expert");
    key("moe.layers", e.layers, any(), "the layers that have experts, as \"2-23\"; \"\": all layers");
    key("moe.shared_ffn", e.shared_ffn, between(0, 16777216), "inner size of an expert of all tokens; 0: none");
    key("moe.shared_gate", e.shared_gate, any(), "the shared expert's output is gated by a sigmoid (Qwen2)");
    key("moe.score", e.score, one_of({"softmax", "sigmoid"}), "of the router's logits");
    key("moe.normalise", e.normalise, any(), "the weights of a token's experts are divided by their sum");
    key("moe.scale", e.scale, above(0), "what the weights are multiplied by");
    key("moe.expert_bias", e.expert_bias, any(),
        "a bias on the scores, for the choice alone, which optimizer.expert_bias_rate moves against the load");
    key("moe.groups", e.groups, between(1, 65536), "equal groups of experts; 1: none");
    key("moe.top_groups", e.top_groups, between(1, 65536), "groups that a token's experts are in");
    key("moe.capacity_factor", e.capacity_factor, at_least(0),
        "an expert takes this times T k / E choices of a microbatch, others are dropped; 0, and in evaluation: all are "
        "taken");
    key("moe.drop", e.drop, one_of({"probability", "position"}),
        "with a capacity: the least probable choices are dropped, or the last ones");
    key("moe.aux_loss", e.aux_loss, one_of({"none", "microbatch", "sequence", "global", "all_layers"}),
        "what the loads are evened out over: a microbatch, each sequence, all ranks' microbatches of a step so far, or "
        "a microbatch and all layers together, as transformers does");
    key("moe.aux_coef", e.aux_coef, at_least(0), "factor of that loss");
    key("moe.z_coef", e.z_coef, at_least(0), "factor of the mean squared ln sum exp of the router's logits");

    section = "data";
    auto& d = run.data;
    key("train", d.train, any(),
        "text, JSONL or token files (Megatron prefix, nanoGPT, llm.c or llmq .bin); with weights (\"0.7 PATH\") a "
        "blend");
    key("valid", d.valid, any(), "held-out files, same kinds");
    key("valid_fraction", d.valid_fraction, below_one(), "or: the share taken from the end of the training data");
    key("tokenizer", d.tokenizer, any(),
        "bytes, a tokenizer.json (byte-level BPE), a sentencepiece *.model, or a directory with one");
    key("format", d.format, one_of({"auto", "text", "jsonl", "megatron", "nanogpt", "llmc", "llmq"}),
        "auto: by extension and magic number");
    key("documents", d.documents, one_of({"packed", "respected"}),
        "respected: attention, positions and targets stay within a document");
    key("eod", d.eod, any(), "token that ends a document: id or text; \"\": the tokenizer's, GPT-2's in u16 files");
    key("text_field", d.text_field, any(),
        "JSONL: field of the text; or prompt and completion, whose prompt is masked");

    section = "train";
    auto& t = run.train;
    key("steps", t.steps, between(1, 1e15), "optimizer updates");
    key("seq_len", t.seq_len, between(1, 2147483647), "T, tokens per sample");
    key("global_batch", t.global_batch, between(1, 2147483647), "samples per step over all ranks");
    key("micro_batch", t.micro_batch, between(1, 2147483647), "samples per forward on one rank");
    key("seed", t.seed, at_least(0), "of initial weights, data order and dropout");
    key("eval_every", t.eval_every, at_least(0), "steps; 0: only at the end, when there is validation data");
    key("eval_batches", t.eval_batches, at_least(1), "micro batches per evaluation");
    key("max_skipped", t.max_skipped, at_least(1), "stop after this many non-finite steps in a row");
    key("threads", t.threads, between(0, 4096), "CPU threads of a rank; 0: cores / ranks");
    key("device", t.device, one_of({"auto", "cpu", "cuda"}), "where the tensors are; auto: a GPU if there is one");
    key("packed_weights", t.packed_weights, one_of({"auto", "always", "never"}),
        "weights stay packed for the CPU's products from one microbatch to the next: 4 bytes a weight where bf16 has "
        "instructions, 8 elsewhere; auto: in bf16 where it has, but for zero = 3");
    key("cuda_graphs", t.cuda_graphs, any(),
        "record a microbatch once and let the GPU repeat it: for small models, on one rank of a GPU");

    section = "optimizer";
    auto& o = run.optimizer;
    key("name", o.name, one_of({"adamw", "sgd"}), "update rule");
    key("lr", o.lr, at_least(0), "learning rate after the warm-up");
    key("min_lr", o.min_lr, at_least(0), "learning rate at the end of cosine, linear and wsd");
    key("schedule", o.schedule, one_of({"cosine", "linear", "constant", "wsd"}), "learning rate after the warm-up");
    key("warmup_steps", o.warmup_steps, at_least(0), "steps of linear rise, at most steps");
    key("decay_steps", o.decay_steps, at_least(0), "wsd: steps of the final decay; 0: a tenth of steps");
    key("beta1", o.beta1, below_one(), "adamw: decay of the first moment");
    key("beta2", o.beta2, below_one(), "adamw: decay of the second moment");
    key("eps", o.eps, above(0), "adamw: added to the root of the second moment");
    key("momentum", o.momentum, below_one(), "sgd");
    key("weight_decay", o.weight_decay, at_least(0), "on parameters with two dims or more");
    key("expert_bias_rate", o.expert_bias_rate, at_least(0),
        "how far a step moves the bias of an expert towards an even load, whatever lr is");
    key("clip", o.clip, at_least(0), "largest global gradient norm; 0: off");

    section = "parallel";
    auto& p = run.parallel;
    key("dp_replicate", p.dp_replicate, between(1, 1048576), "data-parallel replicas (HSDP)");
    key("dp_shard", p.dp_shard, between(-1, 1048576), "data-parallel shards; -1: the ranks that other axes leave");
    key("zero", p.zero, between(0, 3), "ZeRO stage over dp_shard");
    key("strategy", p.strategy, one_of({"collective", "parameter_server"}),
        "parameter_server: rank 0 updates for all, to learn from; needs zero = 0");
    key("accumulate", p.accumulate, one_of({"auto", "full", "shard"}),
        "gradients between microbatches: full (reduced once a step), shard (reduced each time; zero 2 and 3, their "
        "auto). Under full every zero gives the same bits");
    key("reductions", p.reductions, between(1, 1000),
        "sums of gradients over ranks (zero = 1 to 3) that may be under way at once beside the backward; each one more "
        "keeps the gradients of one more unit");
    key("tp", p.tp, between(1, 1048576), "tensor parallel");
    key("sequence_parallel", p.sequence_parallel, any(), "the Megatron kind, rides on tp");
    key("tp_overlap", p.tp_overlap, between(1, 1024),
        "pieces of a tensor-parallel product, each communicated while the next one is computed, with the same bits; "
        "1: off");
    key("cp", p.cp, between(1, 1048576), "context parallel");
    key("cp_method", p.cp_method, one_of({"ring", "all_gather", "ulysses"}),
        "how attention crosses cp: keys travel around a ring, or are gathered; ulysses: heads are exchanged for "
        "tokens");
    key("cp_ulysses", p.cp_ulysses, between(0, 1048576),
        "ranks of cp that exchange heads, a divisor of cp: the others exchange keys; 0: all with ulysses, else 1");
    key("pp", p.pp, between(1, 1048576), "pipeline positions");
    key("schedule", p.schedule, any(),
        "pipeline schedule: naive, gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v, v-half, v-min, "
        "interleaved-zb, chimera, dualpipe, dualpipe-v, auto (searched for), FILE.csv, or pipedream (asynchronous, to "
        "learn from)");
    key("virtual_stages", p.virtual_stages, between(1, 100000),
        "stages per pipeline position, for interleaved, looped-bfs, interleaved-zb and auto");
    key("microbatch_group", p.microbatch_group, between(0, 2147483647),
        "microbatches that interleaved and interleaved-zb take through a chunk before the next; 0: min(pp, "
        "microbatches)");
    key("live_chunks", p.live_chunks, between(0, 2147483647),
        "for auto: chunks of a rank whose activations may live at once; 0: no limit");
    key("stage_layers", p.stage_layers, any(), "layers of each stage, such as \"11,11,10\"; \"\": balanced by cost");
    key("unsharded_stages", p.unsharded_stages, between(0, 100000),
        "for zero = 3: stages of a rank whose weights are gathered whole, from their first use until so many others "
        "come before the next use; less traffic, more memory. 0: unit by unit, in each pass");
    key("ep", p.ep, between(1, 1048576),
        "expert parallel: ranks that share out the experts of a layer, of those of tp, cp and dp_shard together");
    key("etp", p.etp, between(1, 1048576), "expert tensor parallel: ranks that share out each expert");

    section = "recompute";
    key("policy", run.recompute.policy, any(), "none, selective, full, every:N (each N-th block) or sqrt");

    section = "offload";
    key("optimizer", run.offload.optimizer, any(), "masters and moments in host memory; of a CPU rank: in a file");
    key("params", run.offload.params, any(), "weights in host memory, gathered unit by unit; needs parallel.zero = 3");
    key("activations", run.offload.activations, any(), "what a block saves for its backward in host memory");
    key("dir", run.offload.dir, any(), "where a CPU rank offloads to; \"\": OUT/offload");

    section = "precision";
    key("compute", run.precision.compute, one_of({"bf16", "f32", "tf32"}),
        "forward and backward; master weights are f32. tf32: f32, with matrix products in TF32 (GPUs)");
    key("reduce", run.precision.reduce, one_of({"f32"}, {"bf16"}), "type of gradients on the wire");
    key("fp8", run.precision.fp8, any(), "recipe for matrix products: none");

    section = "checkpoint";
    key("dir", run.checkpoint.dir, any(), "\"\": checkpoints/ in the run directory");
    key("every", run.checkpoint.every, at_least(0), "steps; 0: only at the end");
    key("keep", run.checkpoint.keep, at_least(1), "newest checkpoints that are kept");
    key("async", run.checkpoint.async, any(), "write while training goes on");
    key("last_wait_s", run.checkpoint.last_wait_s, at_least(0),
        "seconds in which the last save of a run is tried again when it fails");

    section = "log";
    key("every", run.log.every, at_least(1), "steps between lines");
    key("tensorboard", run.log.tensorboard, any(), "event files in tensorboard/ of the run directory");
    key("trace", run.log.trace, any(), "trace.json in the run directory: what every rank did when in some steps");
    key("trace_first", run.log.trace_first, between(0, 1e15),
        "first step that is traced; 0: the third one after the start or a resume");
    key("trace_steps", run.log.trace_steps, between(1, 10000), "how many steps are traced");
    key("sample_tokens", run.log.sample_tokens, between(0, 1000000),
        "length of a text that the model writes into the report when the run ends; 0: none");

    section = "comm";
    key("engine", run.comm.engine, one_of({"auto", "mpi", "tcp"}),
        "how ranks that a launcher started as processes meet: auto: MPI for mpirun and, where a library is found, "
        "srun; "
        "TCP for torchrun and Kubernetes. Without a launcher ranks are threads");
    key("gpu", run.comm.gpu, one_of({"auto", "nccl", "host"}),
        "how ranks on GPUs communicate: nccl: NCCL, one GPU per rank; host: through the host's memory, many times "
        "slower; auto: NCCL unless ranks share a GPU");
    key("order", run.comm.order, one_of({"tree", "fast"}),
        "of sums over NCCL: tree: one fixed order, the bits of every other engine; fast: NCCL's own, which depends on "
        "the machine, and 16-bit values are rounded on the way");
    key("timeout_s", run.comm.timeout_s, above(0), "seconds, for every blocking wait");
    key("progress_thread", run.comm.progress_thread, any(),
        "one more thread of each rank, which communicates while the rank computes; it wants a core of its own");
}

}  // namespace tutti::spec
