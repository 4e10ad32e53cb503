// spec/field_list.cpp: every key of the config file, in the order of the file. A new key is a member of a struct in
// run_spec.h or model_spec.h and a line here.
#include "tutti/base/error.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/variants.h"

namespace tutti::spec {

namespace {

Range any() { return {}; }
Range at_least(double low) { return {.low = low, .choices = {}}; }
Range above(double low) { return {.low = low, .low_open = true, .choices = {}}; }
Range between(double low, double high) { return {.low = low, .high = high, .choices = {}}; }
Range below_one() { return {.low = 0, .high = 1, .high_open = true, .choices = {}}; }
Range one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }
Range power_of_two_or(std::vector<std::string> choices) {
    return {.choices = std::move(choices), .or_power_of_two = true};
}
}  // namespace

void list_fields(RunSpec& run, const FieldVisitor& visit) {
    using enum Identity;
    std::string_view section;
    Identity usual = never;  // of a key that says nothing
    const auto key = [&](std::string_view name, auto& value, Range values, std::string_view help,
                         std::optional<Identity> identity = std::nullopt) {
        visit(Field{section, name, std::move(values), help, identity.value_or(usual), false}, &value);
    };
    // Of a key that a stage may set.
    const auto stage_key = [&](std::string_view name, auto& value, Range values, std::string_view help,
                               std::optional<Identity> identity = std::nullopt) {
        visit(Field{section, name, std::move(values), help, identity.value_or(usual), true}, &value);
    };
    // The upper limits keep parameter counts, FLOPs and byte counts inside 63 bits.
    section = "model";
    usual = unless_default;
    auto& m = run.model;
    key("preset", m.preset, any(), "named model that gives the defaults of the other keys of [model]; \"\": give all",
        never);
    key("hf", m.hf, any(),
        "in place of a preset: a Hugging Face directory; the run starts from its config.json and weights", never);
    key("family", m.family, one_of({"gpt2", "llama", "lfm2", "mlp"}), "architecture", always);
    key("vocab", m.vocab, between(0, 2147483647), "rows of the embedding; mlp: 0", always);
    key("width", m.width, between(1, 1048576), "C, size of the residual stream", always);
    key("layers", m.layers, between(1, 100000), "L, transformer blocks; mlp: linear layers", always);
    key("heads", m.heads, between(0, 65536), "H, query heads; mlp: 0", always);
    key("kv_heads", m.kv_heads, between(0, 65536), "key and value heads, a divisor of heads; mlp: 0", always);
    key("head_dim", m.head_dim, between(0, 65536), "D; gpt2: heads * head_dim = width; mlp: 0", always);
    key("kv_latent", m.kv_latent, between(0, 65536),
        "llama: channels of the latent from which keys and values are made (DeepSeek-V2); their heads share "
        "a rotated key of rope_dims channels; 0: none");
    key("q_latent", m.q_latent, between(0, 65536), "llama: channels of the latent of queries; 0: none");
    key("value_dim", m.value_dim, between(0, 65536), "llama: Dv, channels of a value; 0: head_dim");
    key("ffn", m.ffn, between(0, 16777216), "F, inner size of the MLP; mlp: 0", always);
    key("qkv_bias", m.qkv_bias, any(), "llama: biases on the query, key and value projections (Qwen2)");
    key("output_bias", m.output_bias, any(), "llama: bias on the output projection of attention");
    key("mlp_bias", m.mlp_bias, any(), "llama: biases in the MLP");
    key("head_norm", m.head_norm, any(), "llama: RMSNorm of each query and key head (Qwen3); lfm2: true");
    key("window", m.window, between(0, 2147483647),
        "llama: sliding window, the newest keys that a query attends to (Mistral); 0: all keys");
    key("window_layers", m.window_layers, any(), "layers with the window (Qwen), as \"0,2-5\"; \"\": all layers");
    key("variant", m.variant, one_of(variant_choices()),
        "llama: model_type of Hugging Face whose names and config.json files of weights have; auto: found by the other "
        "keys");
    key("norms", m.norms, one_of({"pre", "post", "sandwich"}),
        "llama: RMS norms before attention and MLP, behind them (OLMo 2, EXAONE 4), or both (Gemma 2, GLM-4)");
    key("norm_offset", m.norm_offset, any(), "llama: weights of norms are stored less 1 (Gemma)");
    key("width_norm", m.width_norm, any(),
        "llama: RMSNorm of all queries, and of all keys, of a token together (OLMo 2)");
    key("gate", m.gate, one_of({"silu", "gelu", "clamped", "relu2"}),
        "llama: activation of the gated MLP; gelu: by tanh (Gemma); clamped: min(x, l) sigmoid(1.702 min(x, l)) (u + "
        "1) of gate x and up u, which is cut at -l and l = gate_limit (gpt-oss); relu2: the square of ReLU, in an MLP "
        "and experts without a gate (Nemotron-H)");
    key("gate_limit", m.gate_limit, at_least(0), "llama: l of gate = \"clamped\"");
    key("sinks", m.sinks, any(),
        "llama: a trained score of each head that takes part in its softmax, without a value (gpt-oss)");
    key("embedding_sqrt", m.embedding_sqrt, any(),
        "llama: embeddings times sqrt(width), rounded to the compute type (Gemma)");
    key("embedding_scale", m.embedding_scale, at_least(0), "llama: embeddings times this (Granite); 0: as they are");
    key("residual_scale", m.residual_scale, at_least(0),
        "llama: what attention and MLP add to the residual stream, times this (Granite); 0: as it is");
    key("logit_divisor", m.logit_divisor, at_least(0), "llama: logits divided by this (Granite); 0: as they are");
    key("logit_cap", m.logit_cap, at_least(0), "llama: c, logits are c tanh(z / c) (Gemma 2); 0: no cap");
    key("score_scale", m.score_scale, at_least(0),
        "llama: factor of attention scores q.k (Gemma 2, Granite); 0: head_dim^(-1/2)");
    key("score_cap", m.score_cap, at_least(0), "llama: c, attention scores are c tanh(s / c) (Gemma 2); 0: no cap");
    key("rope_dims", m.rope_dims, between(0, 65536),
        "llama: channels of a head that RoPE rotates, the first ones (Phi-3, GLM), with kv_latent the last ones; 0: "
        "all");
    key("rope_adjacent", m.rope_adjacent, any(),
        "llama: RoPE rotates pairs of adjacent channels (GLM), not of the two halves");
    key("nope_layers", m.nope_layers, any(), "llama: layers without RoPE (SmolLM3), as \"3,7\"; \"\": none");
    stage_key(
        "window_rope_theta", m.window_rope_theta, at_least(0),
        "llama: rope_theta of the layers with the window, without rope_scaling (Gemma 3, OLMo 3); 0: as in the others");
    key("query_growth", m.query_growth, at_least(0),
        "llama: b, queries times 1 + b ln(1 + floor(position / rope_scaling.original_max_positions)) (Ministral 3)");
    key("conv_layers", m.conv_layers, any(),
        "lfm2: layers with a gated short convolution in place of attention, as \"0-1,3-4\"; \"\": none");
    key("conv_kernel", m.conv_kernel, between(0, 16),
        "kernel size of the convolutions of conv_layers, delta_layers and scans in tokens, the current one included; 0 "
        "without such layers");
    key("conv_bias", m.conv_bias, any(),
        "biases on the convolutions; lfm2: also on the projections around them; delta_layers have none");
    key("delta_layers", m.delta_layers, any(),
        "llama: layers with the gated delta rule in place of attention (Qwen3-Next), as \"0-2,4-6\"; \"\": none");
    key("delta_key_heads", m.delta_key_heads, between(0, 65536),
        "llama: heads of queries and keys of delta_layers; 0 without such layers, like the next three");
    key("delta_value_heads", m.delta_value_heads, between(0, 65536),
        "llama: heads of values, each with a state; a multiple of delta_key_heads");
    key("delta_key_dim", m.delta_key_dim, between(0, 65536), "llama: channels of such a head's queries and keys");
    key("delta_value_dim", m.delta_value_dim, between(0, 65536), "llama: channels of such a head's values");
    key("scan_layers", m.scan_layers, any(),
        "llama: layers with Mamba-2's scan in place of attention (Granite 4), as \"0-4,6\"; \"\": none but those of "
        "pattern");
    key("scan_beside", m.scan_beside, any(), "llama: scan_layers have attention, too, and add both (Falcon-H1)");
    key("scan_heads", m.scan_heads, between(0, 65536),
        "llama: heads of the scan, each with a state; 0 without scans, like the next three");
    key("scan_head_dim", m.scan_head_dim, between(0, 65536), "llama: P, channels of such a head");
    key("scan_groups", m.scan_groups, between(0, 65536),
        "llama: groups of these heads, each with one B and C; a divisor of scan_heads");
    key("scan_state", m.scan_state, between(0, 65536), "llama: N, channels of B and C");
    key("scan_step_min", m.scan_step_min, at_least(0), "llama: least step of the scan (Nemotron-H); 0: none");
    key("scan_step_max", m.scan_step_max, at_least(0), "llama: greatest step; 0: none");
    key("scan_norm", m.scan_norm, one_of({"gated", "before_gate", "none"}),
        "llama: RMS norm of each group of the scan's gated output, of the output before its gate, or none (Falcon-H1)");
    key("pattern", m.pattern, any(),
        "llama: a letter for each layer, which is that part alone behind one norm (Nemotron-H): M scan, * attention, - "
        "MLP, E experts; \"\": each layer has a mixer and an MLP or experts");
    key("multipliers", m.multipliers, any(),
        "llama: factors of keys, attention's input and output, the scan's input and output, its z, x, B, C and dt, the "
        "MLP's gate and output (Falcon-H1), as \"1,0.5,...\"; \"\": all 1");
    key("attention_gate", m.attention_gate, any(),
        "llama: attention's output times the sigmoid of a projection of its input (Qwen3-Next)");
    key("max_positions", m.max_positions, between(0, 2147483647),
        "largest seq_len; gpt2 learns this many positions; mlp: 0", always);
    key("norm_eps", m.norm_eps, at_least(0), "epsilon of LayerNorm and RMSNorm; mlp: 0", always);
    stage_key("rope_theta", m.rope_theta, at_least(0), "base of the RoPE frequencies; gpt2 and mlp: 0", always);
    stage_key("rope_scaling.type", m.rope_scaling.type, one_of({"llama3", "linear", "yarn", "longrope"}),
              "method that extends RoPE to longer contexts");
    stage_key("rope_scaling.factor", m.rope_scaling.factor, at_least(0),
              "how many times longer the context gets; 0: off", always);
    stage_key("rope_scaling.low_freq_factor", m.rope_scaling.low_freq_factor, above(0),
              "llama3: wavelengths above original_max_positions / this are scaled by factor", always);
    stage_key("rope_scaling.high_freq_factor", m.rope_scaling.high_freq_factor, above(0),
              "llama3: wavelengths below original_max_positions / this are kept", always);
    stage_key("rope_scaling.beta_fast", m.rope_scaling.beta_fast, above(0),
              "yarn: frequencies with more rotations than this in original_max_positions are kept");
    stage_key("rope_scaling.beta_slow", m.rope_scaling.beta_slow, above(0),
              "yarn: frequencies with fewer rotations than this are divided by factor");
    stage_key(
        "rope_scaling.attention_factor", m.rope_scaling.attention_factor, at_least(0),
        "yarn, longrope: multiplies cosines and sines; 0: yarn 0.1 ln(factor) + 1, longrope sqrt(1 + ln(factor) / "
        "ln(original_max_positions))");
    key("rope_scaling.truncate", m.rope_scaling.truncate, any(),
        "yarn: kept and divided frequencies begin at whole pairs of channels; false: in between (gpt-oss)");
    stage_key(
        "rope_scaling.mscale", m.rope_scaling.mscale, at_least(0),
        "yarn: with m(x) = 0.1 x ln(factor) + 1 cosines and sines are multiplied by m(mscale) / m(mscale_all_dim), "
        "where "
        "both are given and attention_factor is not");
    stage_key("rope_scaling.mscale_all_dim", m.rope_scaling.mscale_all_dim, at_least(0),
              "yarn: also multiplies the scores of latent attention by m(mscale_all_dim)^2");
    stage_key("rope_scaling.short_factors", m.rope_scaling.short_factors, any(),
              "longrope: divisors of the frequencies, \"1,1.25\", in runs of up to original_max_positions tokens");
    stage_key("rope_scaling.long_factors", m.rope_scaling.long_factors, any(), "longrope: the same in longer runs");
    stage_key("rope_scaling.original_max_positions", m.rope_scaling.original_max_positions, between(1, 2147483647),
              "llama3, yarn, longrope: context length before scaling", always);
    key("tie_embeddings", m.tie_embeddings, any(), "the output head reuses the embedding matrix; mlp: false", always);
    key("dropout", m.dropout, below_one(),
        "dropout probability after the embedding and the attention and MLP projections; mlp: 0", always);
    key("init_std", m.init_std, at_least(0), "standard deviation of the initial weights", always);

    key("mtp_depth", m.mtp_depth, between(0, 16),
        "llama: D, blocks behind the last layer that predict further tokens (DeepSeek-V3); 0: the next token only");
    key("mtp_weight", m.mtp_weight, at_least(0),
        "llama: w, w / D times the losses of these predictions is added to the loss that is trained");

    auto& e = m.moe;
    key("moe.experts", e.experts, between(0, 4096), "E, experts of a layer; 0: no mixture of experts");
    key("moe.top_k", e.top_k, between(0, 65536), "experts that process each token");
    key("moe.ffn", e.ffn, between(0, 16777216), "inner size of an expert");
    key("moe.layers", e.layers, any(), "layers with experts, as \"2-23\"; \"\": all layers");
    key("moe.shared_ffn", e.shared_ffn, between(0, 16777216),
        "inner size of the shared expert, which processes every token; 0: none");
    key("moe.shared_gate", e.shared_gate, any(), "a sigmoid gates the output of the shared expert (Qwen2)");
    key("moe.score", e.score, one_of({"softmax", "sigmoid"}), "function that turns router logits into scores");
    key("moe.normalise", e.normalise, any(), "divide the weights of a token's experts by their sum");
    key("moe.scale", e.scale, above(0), "factor of the weights of a token's experts");
    key("moe.expert_bias", e.expert_bias, any(),
        "choose experts by score + bias, weight them by score; optimizer.expert_bias_rate adjusts the bias to balance "
        "loads");
    key("moe.router_bias", e.router_bias, any(), "a trained bias on the router's logits (gpt-oss)");
    key("moe.bias", e.bias, any(), "biases on the three projections of each expert (gpt-oss)");
    key("moe.groups", e.groups, between(1, 65536), "equal groups of experts; 1: none");
    key("moe.top_groups", e.top_groups, between(1, 65536), "groups from which a token's experts are chosen");
    key("moe.latent", e.latent, between(0, 1048576),
        "channels of a projection of the tokens on which the experts work, and from which another one returns "
        "(Nemotron "
        "3); 0: width");
    key("moe.group_best", e.group_best, between(0, 65536),
        "a group is chosen by the sum of this many of its best scores: 1 in DeepSeek-V2, 2 in V3; 0: top_k / "
        "top_groups");
    key("moe.capacity_factor", e.capacity_factor, at_least(0),
        "an expert accepts at most this times T k / E choices of a microbatch and drops the others; 0: no limit, as in "
        "evaluation");
    key("moe.drop", e.drop, one_of({"probability", "position"}),
        "with a capacity: drop the least probable choices, or the last ones");
    key("moe.aux_loss", e.aux_loss, one_of({"none", "microbatch", "sequence", "global", "all_layers"}),
        "loss that balances expert loads over a microbatch, each sequence, all ranks' microbatches of a step so far "
        "(global), or a microbatch and all layers together, as in transformers (all_layers)");
    key("moe.aux_coef", e.aux_coef, at_least(0), "factor of aux_loss");
    key("moe.z_coef", e.z_coef, at_least(0), "factor of the z-loss: the mean squared ln sum exp of the router logits");

    section = "data";
    usual = never;
    auto& d = run.data;
    stage_key(
        "train", d.train, any(),
        "text, JSONL or token files (Megatron prefix, nanoGPT, llm.c or llmq .bin); weights (\"0.7 PATH\") make a "
        "blend");
    stage_key("valid", d.valid, any(), "files for validation, of the same kinds");
    stage_key("valid_fraction", d.valid_fraction, below_one(),
              "in place of valid: share of the training data, from its end, for validation");
    key("tokenizer", d.tokenizer, any(),
        "bytes, a tokenizer.json (byte-level BPE), a sentencepiece *.model, or a directory with one; not given: that "
        "of "
        "model.hf");
    stage_key("format", d.format, one_of(data_formats()), "format of the files; auto: by extension and magic number");
    stage_key("documents", d.documents, one_of({"packed", "respected"}),
              "respected: attention, positions and targets stay within a document", unless_default);
    stage_key("eod", d.eod, any(),
              "token that ends a document, by id or text; \"\": the tokenizer's, GPT-2's in u16 files", unless_default);
    stage_key("text_field", d.text_field, any(),
              "JSONL: field with the text of a record; records with prompt and completion have a masked prompt");

    section = "train";
    auto& t = run.train;
    key("steps", t.steps, between(1, 1e15), "optimizer updates");
    stage_key("seq_len", t.seq_len, between(1, 2147483647), "T, tokens per sample", always);
    stage_key("global_batch", t.global_batch, between(1, 2147483647), "samples per step over all ranks", always);
    stage_key("micro_batch", t.micro_batch, between(1, 2147483647), "samples per forward on one rank");
    key("seed", t.seed, at_least(0), "seed of initial weights, data order and dropout", always);
    key("eval_every", t.eval_every, at_least(0),
        "steps between evaluations; 0: only at the end, if there is validation data");
    key("eval_batches", t.eval_batches, at_least(1), "global batches of validation windows per evaluation, at most");
    key("max_skipped", t.max_skipped, at_least(1), "stop after this many non-finite steps in a row");
    key("threads", t.threads, between(0, 4096), "CPU threads of a rank; 0: cores / ranks");
    key("device", t.device, one_of(device_choices()), "device that computes; auto: a GPU if there is one");
    key("packed_weights", t.packed_weights, one_of({"auto", "always", "never"}),
        "keep weights packed for the CPU's matrix products between microbatches: 4 bytes a weight where the CPU has "
        "bf16 instructions, 8 elsewhere; auto: for bf16 on such a CPU, unless zero = 3");
    key("cuda_graphs", t.cuda_graphs, any(),
        "record a microbatch as a CUDA graph and replay it: for small models, one rank per GPU");
    key("gemm_tuning", t.gemm_tuning, any(),
        "file written by tutti bench step --tune on the same GPU, driver and cuBLASLt: matrix products use the "
        "algorithms measured there; \"\": the algorithm that cuBLASLt's heuristic ranks first");
    key("attention", t.attention, one_of({"own", "cudnn", "fastest", "tensor", "plain"}),
        "kernels of attention on a GPU. own: the fastest of Tutti's that takes a request; cudnn: NVIDIA's cuDNN, and "
        "own for what it does not take; fastest: by the times in attention_tuning; tensor, plain: Tutti's own without "
        "the faster ones");
    key("attention_tuning", t.attention_tuning, any(),
        "file written by tutti bench attention --tune on the same GPU, driver and cuDNN; for attention = fastest");

    section = "optimizer";
    auto& o = run.optimizer;
    key("name", o.name, one_of({"adamw", "sgd", "lion", "muon"}),
        "update rule; muon: orthogonalised momentum for the matrices of layers, adamw for the rest", always);
    stage_key("lr", o.lr, at_least(0), "learning rate after the warm-up");
    stage_key("min_lr", o.min_lr, at_least(0), "learning rate at the end of cosine, linear and wsd");
    stage_key("schedule", o.schedule, one_of({"cosine", "linear", "constant", "wsd"}),
              "course of the learning rate after the warm-up; wsd: warm-up, stable, decay");
    stage_key("warmup_steps", o.warmup_steps, at_least(0),
              "steps in which the learning rate rises linearly, at most steps");
    stage_key("decay_steps", o.decay_steps, at_least(0), "wsd: steps of the final decay; 0: a tenth of steps");
    key("beta1", o.beta1, below_one(), "adamw: decay of the first moment; lion: weight of the momentum in a step");
    key("beta2", o.beta2, below_one(), "adamw: decay of the second moment; lion: decay of the momentum");
    key("eps", o.eps, above(0), "adamw: added to the root of the second moment");
    key("momentum", o.momentum, below_one(), "sgd: momentum");
    key("muon_momentum", o.muon_momentum, below_one(), "muon: momentum (Nesterov's)");
    key("muon_scale", o.muon_scale, one_of({"match_adamw", "shape"}),
        "muon: size of a step; match_adamw: 0.2 sqrt(max(rows, columns)), so that lr and weight_decay of adamw carry "
        "over; shape: sqrt(max(1, rows / columns))");
    key("muon_coefficients", o.muon_coefficients, one_of({"simple", "quintic", "polar_express"}),
        "muon: the Newton-Schulz iteration");
    key("m", o.m, one_of({"f32", "bf16", "u8"}),
        "storage of adamw's first moment and of the momentum of other rules; u8: a byte a value, with a scale for each "
        "256 values");
    key("v", o.v, one_of({"f32", "bf16", "u8"}), "adamw: storage of the second moment; bf16 is rounded stochastically");
    key("u8_embedding", o.u8_embedding, any(),
        "u8 for the tables of words and positions, too; they keep f32 otherwise");
    key("weight_decay", o.weight_decay, at_least(0), "weight decay of parameters with two dims or more");
    key("expert_bias_rate", o.expert_bias_rate, at_least(0),
        "change of an expert's bias per step towards an even load (model.moe.expert_bias), independent of lr");
    key("clip", o.clip, at_least(0), "largest global gradient norm; 0: off");
    key("group", o.groups, any(),
        "tables [[optimizer.group]] with other numbers for parameters by name: match, an expression that is found in "
        "the name (\"norm|bias\"); weight_decay; lr_scale, a factor of lr. The first group that matches counts",
        unless_default);

    section = "parallel";
    auto& p = run.parallel;
    stage_key("dp_replicate", p.dp_replicate, between(1, 1048576), "data-parallel replicas (HSDP)");
    stage_key("dp_shard", p.dp_shard, between(-1, 1048576),
              "data-parallel shards; -1: the ranks that other axes leave");
    stage_key("zero", p.zero, between(0, 3), "ZeRO stage over dp_shard");
    stage_key("strategy", p.strategy, one_of({"collective", "parameter_server"}),
              "parameter_server: rank 0 updates the weights for all ranks, for teaching; needs zero = 0");
    stage_key("accumulate", p.accumulate, one_of({"auto", "full", "shard"}),
              "gradients between microbatches: full, reduced once a step, with the same bits under every zero; shard, "
              "reduced "
              "after each microbatch (zero 2 and 3); auto: shard for zero 2 and 3, else full");
    stage_key(
        "reductions", p.reductions, between(1, 1000),
        "gradient reductions (zero = 1 to 3) in flight at once during the backward; each one holds the gradients of a "
        "unit in memory; whole gradients of a pipeline's later stages have no limit");
    stage_key("tp", p.tp, between(1, 1048576), "tensor-parallel ranks");
    stage_key("sequence_parallel", p.sequence_parallel, any(), "Megatron's sequence parallelism over the ranks of tp");
    stage_key(
        "tp_overlap", p.tp_overlap, between(1, 1024),
        "pieces of a tensor-parallel product, each communicated while the next one is computed, with the same bits; "
        "1: off");
    stage_key("cp", p.cp, between(1, 1048576), "context-parallel ranks");
    stage_key("cp_method", p.cp_method, one_of({"ring", "all_gather", "ulysses"}),
              "attention over cp: pass keys around a ring, gather all keys, or exchange heads for tokens (ulysses)");
    stage_key(
        "cp_ulysses", p.cp_ulysses, between(0, 1048576),
        "ranks of cp that exchange heads for tokens, a divisor of cp; cp / cp_ulysses ranks exchange keys; 0: cp with "
        "ulysses, else 1");
    stage_key("pp", p.pp, between(1, 1048576), "pipeline-parallel ranks");
    static const std::string schedules =
        concat("pipeline schedule: ", joined(schedule::kinds(), ", ", &schedule::Kind::name),
               ", auto (found by search), FILE.csv, or pipedream (asynchronous, for teaching)");
    stage_key("schedule", p.schedule, any(), schedules);
    stage_key("virtual_stages", p.virtual_stages, between(1, 100000),
              "stages per pipeline rank, for interleaved, looped-bfs, interleaved-zb and auto");
    stage_key(
        "microbatch_group", p.microbatch_group, between(0, 2147483647),
        "interleaved, interleaved-zb: microbatches that pass a chunk before the rank proceeds to the next chunk; 0: "
        "min(pp, microbatches)");
    stage_key("live_chunks", p.live_chunks, between(0, 2147483647),
              "auto: largest number of chunks of a rank with live activations; 0: no limit");
    stage_key("stage_layers", p.stage_layers, any(),
              "layers of each stage, such as \"11,11,10\"; \"\": balanced by cost");
    stage_key(
        "unsharded_stages", p.unsharded_stages, between(0, 100000),
        "zero = 3: largest number of a rank's stages that stay unsharded at once; a stage is resharded when this many "
        "others run before its next use. More: less traffic, more memory. 0: unshard unit by unit in each pass");
    stage_key(
        "ep", p.ep, between(1, 1048576),
        "expert-parallel ranks, which divide the experts of a layer; taken from the ranks of tp, cp and dp_shard");
    stage_key("etp", p.etp, between(1, 1048576), "expert-tensor-parallel ranks, which divide each expert");

    section = "recompute";
    stage_key(
        "policy", run.recompute.policy, any(),
        "none, selective (norms and activation functions), full (each block), every:N (N blocks at a time) or sqrt "
        "(sqrt(layers) blocks at a time)");

    section = "offload";
    stage_key("optimizer", run.offload.optimizer, any(),
              "hold master weights and moments in host memory; on CPU ranks: in a file");
    stage_key("params", run.offload.params, any(),
              "hold weights in host memory, gathered unit by unit; needs parallel.zero = 3");
    stage_key("activations", run.offload.activations, any(), "hold the tensors saved for the backward in host memory");
    key("dir", run.offload.dir, any(), "directory of the files of CPU ranks; \"\": OUT/offload");

    section = "precision";
    key("compute", run.precision.compute, one_of({"bf16", "f16", "f32", "tf32"}),
        "type of the forward and backward; master weights are f32. tf32: f32, with matrix products in TF32 (GPUs)",
        always);
    key("master", run.precision.master, one_of({"f32", "none"}),
        "master weights of bf16 weights; none: the weights are updated in place, rounded stochastically");
    key("gradients", run.precision.gradients, one_of({"f32", "bf16"}),
        "storage of gradients; bf16: a microbatch's is computed in f32, added and rounded once");
    key("reduce", run.precision.reduce, one_of({"auto", "f32", "bf16"}),
        "type in which gradients are communicated, summed in f32; auto: that of their storage");
    key("recipe", run.precision.recipe, one_of(recipe_names()),
        "8-bit products of the linear layers of blocks: one scale a tensor, of its own largest magnitude (tensor) or "
        "of "
        "earlier steps (delayed); one for 1 x 128 activations and 128 x 128 weights (block); one for 32 values "
        "(mxfp8)");
    key("formats", run.precision.formats, one_of({"auto", "hybrid", "e4m3"}),
        "hybrid: E5M2 for gradients, else E4M3; e4m3: E4M3 for all; auto: hybrid for tensor and delayed, else e4m3");
    key("scales", run.precision.scales, one_of({"pow2", "f32"}),
        "scales are powers of two, or any numbers (tensor, delayed), as in Transformer Engine");
    key("scale_over", run.precision.scale_over, one_of({"tensor", "rank"}),
        "a scale of the recipe tensor is that of the whole tensor, or of a rank's part: without communication, and "
        "dependent on the layout");
    key("bf16_first", run.precision.bf16_first, at_least(0), "first blocks that keep their products in bf16");
    key("bf16_last", run.precision.bf16_last, at_least(0), "last blocks that keep their products in bf16");
    key("amax_history", run.precision.amax_history, between(1, 65536),
        "delayed: steps whose largest magnitudes are kept");
    key("amax_of", run.precision.amax_of, one_of({"max", "most_recent"}),
        "delayed: the scale follows from the largest or the latest of them");
    key("gather", run.precision.gather, one_of({"none", "weights", "sequences", "all"}),
        "what is gathered as 8-bit codes in place of numbers of compute, with the same bits and half the bytes: "
        "weights "
        "under parallel.zero = 3, activations and gradients under sequence_parallel, or all of them; of the layers of "
        "the recipe");
    key("emulate", run.precision.emulate, any(),
        "multiply decoded codes in bf16 where a GPU has no such products: the same values, slower; CPUs always do");
    key("fp8", run.precision.fp8, any(), "earlier name of recipe");
    key("loss_scale", run.precision.loss_scale, power_of_two_or({"auto", "dynamic"}),
        "factor of all gradients, which the update divides by; dynamic: halved when gradients overflow; auto: dynamic "
        "for f16, else 1");
    key("loss_scale_initial", run.precision.loss_scale_initial, at_least(1),
        "dynamic: first loss scale, a power of two");
    key("loss_scale_least", run.precision.loss_scale_least, at_least(1), "dynamic: least loss scale, a power of two");
    key("loss_scale_interval", run.precision.loss_scale_interval, at_least(1),
        "dynamic: steps without a skipped one after which the loss scale doubles");
    key("loss_scale_hysteresis", run.precision.loss_scale_hysteresis, at_least(1),
        "dynamic: skipped steps since the loss scale last doubled, from which on each halves it");

    section = "checkpoint";
    key("dir", run.checkpoint.dir, any(), "directory; \"\": checkpoints/ in the run directory");
    key("every", run.checkpoint.every, at_least(0), "steps between checkpoints; 0: only at the end");
    key("keep", run.checkpoint.keep, at_least(1), "number of newest checkpoints to keep");
    key("memory_every", run.checkpoint.memory_every, at_least(0),
        "steps between copies of the state in the hosts' memory, under `tutti launch`; 0: none");
    key("async", run.checkpoint.async, any(), "write checkpoints, and copies in memory, while training continues");
    key("last_wait_s", run.checkpoint.last_wait_s, at_least(0),
        "seconds for which a failed final save of a run is retried, or until a signal");

    section = "log";
    key("every", run.log.every, at_least(1), "steps between lines of the log");
    key("tensorboard", run.log.tensorboard, any(), "write event files to tensorboard/ of the run directory");
    key("trace", run.log.trace, any(),
        "write a timeline of every rank in some steps to trace.json of the run directory");
    key("trace_first", run.log.trace_first, between(0, 1e15),
        "first traced step; 0: the third after the start or a resume");
    key("trace_steps", run.log.trace_steps, between(1, 10000), "number of traced steps");
    key("sample_tokens", run.log.sample_tokens, between(0, 1000000),
        "tokens of a sample that the trained model writes into the report; 0: none");

    section = "comm";
    key("backend", run.comm.backend, one_of({"auto", "mpi", "tcp"}),
        "communication between processes; auto: MPI under mpirun and, where an MPI library is found, srun; TCP under "
        "torchrun and Kubernetes. Without a launcher, ranks are threads");
    key("gpu", run.comm.gpu, one_of(device_communication_choices()),
        "communication between GPUs: nccl: NCCL, one GPU per rank; host: through host memory, many times slower; auto: "
        "NCCL unless ranks share a GPU");
    key("order", run.comm.order, one_of({"tree", "fast", "auto"}),
        "order of additions in reductions over NCCL; tree: fixed, the same bits as every other backend; fast: NCCL's "
        "own order, which depends on the machine and rounds 16-bit values between additions; auto: tree, but fast in "
        "groups whose hosts do not each have the same power of two of consecutive ranks, where the tree sends more "
        "bytes between hosts");
    key("max_ctas", run.comm.max_ctas, between(0, 128),
        "multiprocessors that NCCL may use for one operation (its CTAs), rounded down to a power of two, which its "
        "messages take; 0: NCCL's own choice. A message takes at most 4");
    key("spare_multiprocessors", run.comm.spare_multiprocessors, any(),
        "matrix products that overlap with communication leave max_ctas multiprocessors of the GPU to NCCL: the "
        "backward of "
        "a data-parallel layout, with zero = 3 and tp_overlap the forward too. The choice is fixed for the run, so "
        "bits do not depend on timing; they differ from the bits without this option");
    key("timeout_s", run.comm.timeout_s, above(0), "seconds after which a blocking wait fails");
    key("secret", run.comm.secret, any(),
        "what a rank of another host must know to join a run over TCP: the path of a file; auto: TUTTI_SECRET, a file "
        "named by TUTTI_SECRET_FILE, or OUT/comm.secret, which rank 0 makes; none: any program that reaches the port "
        "of rank 0 can join");
    key("progress_thread", run.comm.progress_thread, any(),
        "a thread per rank that communicates while the rank computes; needs a core of its own");

    section = "stage";
    key("", run.stages, any(),
        "tables [[stage]], one after the other: until, its last step (the last stage ends with train.steps), and what "
        "changes from there on, such as train.seq_len = 8192; what a stage does not set stays as it was");
}

}  // namespace tutti::spec
