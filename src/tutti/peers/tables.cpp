// peers/tables.cpp: the tables of Megatron-LM, torchtitan, nanotron, DeepSpeed and nanoGPT. The last two were
// read in deepspeedai/DeepSpeed@edaa72212 (docs/_pages/config-json.md, runtime/lr_schedules.py, runtime/zero/config.py,
// ops/adam/fused_adam.py) and karpathy/nanoGPT@3adf61e1 (train.py).
#include "tutti/peers/tables.h"

#include <algorithm>
#include <sstream>

namespace tutti::peers {

namespace {

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
    {"model.family", "--normalization", {{{"llama", "RMSNorm"}, {"gpt2", kAbsent}, {"gpt2", "LayerNorm"}}}},
    {"model.family",
     "--position-embedding-type",
     {{{"llama", "rope"}, {"gpt2", kAbsent}, {"gpt2", "learned_absolute"}}}},
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
    {"precision.compute", "--bf16", {{{"bf16", ""}, {"f32", kAbsent}, {"f16", kAbsent}}}},
    {"precision.compute", "--fp16", {{{"bf16", kAbsent}, {"f32", kAbsent}, {"f16", ""}}}},
    {"precision.reduce", "--grad-reduce-in-bf16", {{{"auto", kAbsent}, {"bf16", ""}, {"f32", kAbsent}}}},
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
    {"optimizer.eps", "--adam-eps"},
    {"optimizer.min_lr", "--min-lr"},
    {"optimizer.warmup_steps", "--lr-warmup-iters"},
    {"optimizer.schedule",
     "--lr-decay-style",
     {{{"cosine", "cosine"}, {"linear", "linear"}, {"constant", "constant"}, {"wsd", "WSD"}}}},
    {"model.init_std", "--init-method-std"},
    {"model.dropout", "--hidden-dropout"},
    {"train.seed", "--seed"},
    {"train.eval_every", "--eval-interval", {}, "0"},
    {"train.eval_batches", "--eval-iters"},
    {"log.every", "--log-interval"},
    {"checkpoint.every", "--save-interval"},
};

constexpr Row kTorchtitan[] = {
    {"train.seq_len", "training.seq_len"},
    {"train.global_batch", "training.global_batch_size"},
    {"train.steps", "training.steps"},
    {"optimizer.clip", "training.max_norm"},
    {"optimizer.lr", "optimizer.lr"},
    {"optimizer.beta1", "optimizer.beta1"},
    {"optimizer.beta2", "optimizer.beta2"},
    {"optimizer.eps", "optimizer.eps"},
    {"optimizer.weight_decay", "optimizer.weight_decay"},
    {"optimizer.warmup_steps", "lr_scheduler.warmup_steps"},
    {"optimizer.schedule",
     "lr_scheduler.decay_type",
     {{{"cosine", "cosine"}, {"linear", "linear"}, {"wsd", "linear"}}}},
    {"precision.reduce",
     "training.mixed_precision_reduce",
     {{{"auto", "float32"}, {"bf16", "bfloat16"}, {"f32", "float32"}}}},
    {"log.every", "metrics.log_freq"},
    {"checkpoint.every", "checkpoint.interval"},
    {"precision.compute", "training.mixed_precision_param", {{{"bf16", "bfloat16"}, {"f32", "float32"}}}},
    {"parallel.dp_replicate", "parallelism.data_parallel_replicate_degree"},
    {"parallel.dp_shard", "parallelism.data_parallel_shard_degree"},
    {"parallel.zero", "parallelism.fsdp_reshard_after_forward", {{{"3", "always"}, {"2", "never"}, {"3", "default"}}}},
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
    {"precision.compute", "model.dtype", {{{"bf16", "bfloat16"}, {"f32", "float32"}, {"f16", "float16"}}}},
    {"train.seq_len", "tokens.sequence_length"},
    {"train.micro_batch", "tokens.micro_batch_size"},
    {"train.steps", "tokens.train_steps"},
    {"parallel.tp", "parallelism.tp"},
    {"parallel.sequence_parallel", "parallelism.tp_mode", {{{"true", "REDUCE_SCATTER"}, {"false", "ALL_REDUCE"}}}},
    {"parallel.cp", "parallelism.context_parallel_size"},
    {"parallel.pp", "parallelism.pp"},
    {"parallel.ep", "parallelism.expert_parallel_size", {}, nullptr, "model.moe.experts"},
    {"parallel.schedule", "parallelism.pp_engine", {{{"1f1b", "1f1b"}, {"gpipe", "afab"}}}},
    {"parallel.zero", "optimizer.zero_stage"},
    {"recompute.policy", "parallelism.recompute_layer", {{{"none", "false"}, {"full", "true"}}}},
    {"optimizer.lr", "optimizer.learning_rate_scheduler.learning_rate"},
    {"optimizer.clip", "optimizer.clip_grad"},
    {"optimizer.weight_decay", "optimizer.weight_decay"},
    {"optimizer.beta1", "optimizer.optimizer_factory.adam_beta1"},
    {"optimizer.beta2", "optimizer.optimizer_factory.adam_beta2"},
    {"optimizer.eps", "optimizer.optimizer_factory.adam_eps"},
    {"optimizer.min_lr", "optimizer.learning_rate_scheduler.min_decay_lr"},
    {"optimizer.warmup_steps", "optimizer.learning_rate_scheduler.lr_warmup_steps"},
    {"optimizer.schedule",
     "optimizer.learning_rate_scheduler.lr_decay_style",
     {{{"cosine", "cosine"}, {"linear", "linear"}, {"wsd", "linear"}}}},
    {"precision.gradients", "optimizer.accumulate_grad_in_fp32", {{{"f32", "true"}, {"bf16", "false"}}}},
    {"train.seed", "general.seed"},
    {"log.every", "logging.iteration_step_info_interval"},
    {"checkpoint.every", "checkpoints.checkpoint_interval"},
};

constexpr Row kDeepSpeed[] = {
    {"train.global_batch", "train_batch_size"},
    {"train.micro_batch", "train_micro_batch_size_per_gpu"},
    {"train.steps", "scheduler.params.total_num_steps"},
    {"precision.compute", "bf16.enabled", {{{"bf16", "true"}, {"f32", "false"}, {"f16", "false"}}}},
    {"precision.compute", "fp16.enabled", {{{"f16", "true"}, {"bf16", "false"}, {"f32", "false"}}}},
    {"precision.gradients", "data_types.grad_accum_dtype", {{{"f32", "fp32"}, {"bf16", "bf16"}}}},
    {"precision.reduce", "communication_data_type", {{{"auto", kAbsent}, {"f32", "fp32"}, {"bf16", "bf16"}}}},
    {"parallel.zero", "zero_optimization.stage"},
    {"parallel.tp", "tensor_parallel.autotp_size", {}, "1"},
    {"offload.optimizer",
     "zero_optimization.offload_optimizer.device",
     {{{"true", "cpu"}, {"false", kAbsent}, {"false", "none"}}}},
    {"offload.params",
     "zero_optimization.offload_param.device",
     {{{"true", "cpu"}, {"false", kAbsent}, {"false", "none"}}}},
    {"optimizer.name", "optimizer.type", {{{"adamw", "AdamW"}, {"adamw", "Adam"}, {"lion", "Lion"}, {"muon", "Muon"}}}},
    {"optimizer.lr", "optimizer.params.lr"},
    {"optimizer.eps", "optimizer.params.eps"},
    {"optimizer.weight_decay", "optimizer.params.weight_decay"},
    {"optimizer.clip", "gradient_clipping"},
    {"optimizer.warmup_steps", "scheduler.params.warmup_num_steps"},
    {"optimizer.schedule",
     "scheduler.type",
     {{{"cosine", "WarmupCosineLR"}, {"linear", "WarmupDecayLR"}, {"constant", "WarmupLR"}}}},
    {"log.every", "steps_per_print"},
};

constexpr Row kNanogpt[] = {
    {"model.layers", "n_layer"},
    {"model.heads", "n_head"},
    {"model.width", "n_embd"},
    {"model.dropout", "dropout"},
    {"train.seq_len", "block_size"},
    {"train.micro_batch", "batch_size"},
    {"train.steps", "max_iters"},
    {"train.eval_every", "eval_interval"},
    {"train.eval_batches", "eval_iters"},
    {"precision.compute", "dtype", {{{"bf16", "bfloat16"}, {"f32", "float32"}, {"f16", "float16"}}}},
    {"optimizer.lr", "learning_rate"},
    {"optimizer.min_lr", "min_lr"},
    {"optimizer.schedule", "decay_lr", {{{"cosine", "True"}, {"constant", "False"}}}},
    {"optimizer.warmup_steps", "warmup_iters"},
    {"optimizer.weight_decay", "weight_decay"},
    {"optimizer.beta1", "beta1"},
    {"optimizer.beta2", "beta2"},
    {"optimizer.clip", "grad_clip"},
    {"log.every", "log_interval"},
};

constexpr Remark kMegatronRemarks[] = {
    {"--num-query-groups", "model.kv_heads, with --group-query-attention; the default there is 1"},
    {"--group-query-attention", "model.kv_heads"},
    {"--lr-warmup-fraction", "optimizer.warmup_steps = this * train.steps"},
    {"--lr-decay-iters", "train.steps: the schedule ends with the run"},
    {"--num-virtual-stages-per-pipeline-rank", "parallel.virtual_stages, with parallel.schedule = \"interleaved\""},
    {"--num-layers-per-virtual-pipeline-stage", "parallel.virtual_stages = layers / pp / this"},
    {"--account-for-embedding-in-pipeline-split", "parallel.stage_layers"},
    {"--account-for-loss-in-pipeline-split", "parallel.stage_layers"},
    {"--fp8-recipe", "precision.recipe: delayed; tensorwise is tensor; blockwise is block; mxfp8"},
    {"--fp8-format", "precision.formats"},
    {"--fp8-amax-history-len", "precision.amax_history; the default there is 1"},
    {"--fp8-amax-compute-algo", "precision.amax_of; the default there is most_recent"},
    {"--first-last-layers-bf16", "precision.bf16_first, precision.bf16_last; without it 0"},
    {"--num-layers-at-start-in-bf16", "precision.bf16_first"},
    {"--num-layers-at-end-in-bf16", "precision.bf16_last"},
    {"--fp8-param-gather", "precision.gather = \"weights\", with parallel.zero = 3"},
    {"--fp8-margin", "none: 0"},
    {"--fp8-interval", "none: 1"},
    {"--no-fp8-wgrad", "none: weight gradients multiply codes too"},
    {"--fp8-dot-product-attention", "none: attention is in precision.compute"},
    {"--tp-only-amax-red", "none: a maximum over all ranks that have parts of a tensor"},
    {"--loss-scale", "precision.loss_scale; without it both choose the scale as they go"},
    {"--save", "--out DIR of tutti train"},
    {"--load", "none: the same command continues"},
    {"--data-path", "data.train: the same prefix, read in place"},
    {"--split", "data.valid_fraction"},
    {"--tokenizer-model", "data.tokenizer"},
    {"--attention-dropout", "none: the weights of attention are not dropped"},
    {"--rotary-percent", "model.rope_dims = this * model.head_dim"},
    {"--lr-wsd-decay-iters", "optimizer.decay_steps"},
    {"--lr-wsd-decay-style", "none: linear; the default there is exponential"},
    {"--overlap-grad-reduce", "none: always"},
    {"--overlap-param-gather", "none: always"},
    {"--accumulate-allreduce-grads-in-fp32", "precision.gradients = \"f32\", the default"},
    {"--exit-signal-handler", "none: SIGTERM always saves a checkpoint"},
    {"--distributed-timeout-minutes", "comm.timeout_s"},
    {"--make-vocab-size-divisible-by", "none: model.vocab is as given; tp divides any"},
    {"--moe-token-dispatcher-type", "none: one dispatcher, by all-to-all"},
    {"--moe-grouped-gemm", "none: always"},
    {"--moe-router-load-balancing-type", "model.moe.aux_loss"},
    {"--moe-aux-loss-coeff", "model.moe.aux_coef"},
    {"--moe-z-loss-coeff", "model.moe.z_coef"},
    {"--use-mcore-models", "none"},
    {"--transformer-impl", "none: one implementation"},
    {"--use-flash-attn", "none: attention is fused always"},
    {"--tensorboard-dir", "log.tensorboard"},
    {"--wandb-project", "python -m tutti.export RUN --to wandb"},
    {"--log-throughput", "none: always"},
};

constexpr Remark kTorchtitanRemarks[] = {
    {"model.name", "model.preset, with model.flavor"},
    {"model.flavor", "model.preset"},
    {"training.local_batch_size", "train.micro_batch without a pipeline; with one, global_batch / data-parallel ranks"},
    {"parallelism.pipeline_parallel_microbatch_size", "train.micro_batch"},
    {"parallelism.pipeline_parallel_schedule", "parallel.schedule"},
    {"parallelism.pipeline_parallel_layers_per_stage", "parallel.virtual_stages = layers / pp / this"},
    {"lr_scheduler.min_lr_factor", "optimizer.min_lr = this * optimizer.lr"},
    {"lr_scheduler.decay_ratio", "optimizer.decay_steps = this * train.steps, with optimizer.schedule = \"wsd\""},
    {"training.dataset", "data.train: files"},
    {"training.compile", "none: nothing is compiled at run time"},
    {"model.converters", "precision.recipe: quantize.linear.float8 is tensor, quantize.linear.mx is mxfp8"},
    {"quantize.linear.float8.recipe_name", "precision.recipe: tensorwise is tensor"},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", "precision.gather = \"weights\""},
    {"quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
     "none: one maximum for all weights after the update, always"},
    {"quantize.linear.float8.filter_fqns", "precision.bf16_first, precision.bf16_last"},
    {"quantize.linear.mx.recipe_name", "precision.recipe: mxfp8_cublas is mxfp8"},
    {"model.hf_assets_path", "model.hf, and data.tokenizer"},
    {"checkpoint.enable", "checkpoint.every = 0: at the end alone"},
    {"checkpoint.folder", "checkpoint.dir"},
    {"metrics.enable_tensorboard", "log.tensorboard"},
    {"metrics.enable_wandb", "python -m tutti.export RUN --to wandb"},
    {"profiling.enable_profiling", "log.trace"},
    {"comm.init_timeout_seconds", "comm.timeout_s"},
};

constexpr Remark kNanotronRemarks[] = {
    {"optimizer.learning_rate_scheduler.lr_decay_starting_step",
     "optimizer.decay_steps = train.steps - this, with optimizer.schedule = \"wsd\""},
    {"optimizer.learning_rate_scheduler.lr_decay_steps", "none: the schedule ends with the run"},
    {"parallelism.dp", "none: ranks / (tp cp pp)"},
    {"tokens.batch_accumulation_per_replica", "train.global_batch = this * micro_batch * dp"},
    {"parallelism.tp_linear_async_communication", "parallel.tp_overlap"},
    {"data_stages", "data.train of a [[stage]] each"},
    {"tokenizer.tokenizer_name_or_path", "data.tokenizer"},
    {"checkpoints.checkpoints_path", "--out DIR of tutti train, or checkpoint.dir"},
    {"checkpoints.resume_checkpoint_path", "none: the same command continues"},
    {"profiler", "log.trace"},
};

constexpr Remark kDeepSpeedRemarks[] = {
    {"gradient_accumulation_steps", "train.global_batch = this * micro_batch * data-parallel ranks"},
    {"optimizer.params.betas", "optimizer.beta1, optimizer.beta2"},
    {"fp16.loss_scale", "precision.loss_scale; 0 there is \"dynamic\" here"},
    {"scheduler.params.warmup_max_lr", "optimizer.lr: the schedule sets it"},
    {"scheduler.params.warmup_type", "none: linear; there the default is log"},
    {"scheduler.params.cos_min_ratio", "optimizer.min_lr = this * optimizer.lr"},
    {"optimizer.params.adam_w_mode", "none: the decay is decoupled (AdamW), as there by default"},
    {"zero_optimization.mics_shard_size", "parallel.dp_shard, with parallel.dp_replicate"},
    {"zero_optimization.zero_hpz_partition_size",
     "none: there weights alone have a copy in each node; parallel.dp_shard divides the whole state"},
    {"zero_optimization.overlap_comm", "none: always"},
    {"zero_optimization.reduce_bucket_size", "none: a unit is a block"},
    {"zero_optimization.stage3_prefetch_bucket_size", "none: the next unit is gathered while one computes"},
    {"zero_optimization.offload_optimizer.pin_memory", "none: always"},
    {"activation_checkpointing.partition_activations", "recompute.policy; tp divides what is saved"},
    {"activation_checkpointing.cpu_checkpointing", "offload.activations"},
    {"pipeline.stages", "parallel.pp"},
    {"flops_profiler.enabled", "none: tutti rehearse --kernels"},
    {"wall_clock_breakdown", "log.trace"},
    {"tensorboard.enabled", "log.tensorboard"},
    {"wandb.enabled", "python -m tutti.export RUN --to wandb"},
};

constexpr Remark kNanogptRemarks[] = {
    {"gradient_accumulation_steps", "train.global_batch = this * batch_size; nanoGPT divides it by the ranks"},
    {"lr_decay_iters", "train.steps: the schedule ends with the run"},
    {"bias", "none: gpt2 has biases"},
    {"init_from", "model.hf; resume: the same command continues"},
    {"dataset", "data.train: the same train.bin, read in place"},
    {"out_dir", "--out DIR of tutti train"},
    {"always_save_checkpoint", "checkpoint.every"},
    {"compile", "none: nothing is compiled at run time"},
    {"device", "train.device"},
    {"backend", "comm.backend"},
    {"wandb_log", "python -m tutti.export RUN --to wandb"},
};

constexpr Default kMegatronDefaults[] = {
    {"--norm-epsilon", "1e-5", "--num-layers"},  {"--rotary-base", "10000", "--num-layers"},
    {"--weight-decay", "0.01", "--lr"},          {"--adam-beta2", "0.999", "--lr"},
    {"--lr-decay-style", "linear", "--lr"},      {"--min-lr", "0.0", "--lr"},
    {"--hidden-dropout", "0.1", "--num-layers"}, {"--attention-dropout", "0.1", "--num-layers"},
};

// Of its job config: a file that trains gives optimizer.lr.
constexpr Default kTorchtitanDefaults[] = {
    {"training.steps", "10000", "optimizer.lr"},
    {"training.seq_len", "2048", "optimizer.lr"},
    {"training.local_batch_size", "8", "optimizer.lr"},
    {"lr_scheduler.warmup_steps", "200", "optimizer.lr"},
    {"lr_scheduler.decay_type", "linear", "optimizer.lr"},
    {"parallelism.context_parallel_rotate_method", "allgather", "parallelism.context_parallel_degree"},
};

constexpr const char* kNanotronRate = "optimizer.learning_rate_scheduler.learning_rate";
constexpr Default kNanotronDefaults[] = {
    {"optimizer.learning_rate_scheduler.lr_warmup_steps", "0", kNanotronRate},
    {"optimizer.learning_rate_scheduler.lr_decay_style", "linear", kNanotronRate},
};

// The numbers of train.py.
constexpr Default kNanogptDefaults[] = {
    {"n_layer", "12"},        {"n_head", "12"},
    {"n_embd", "768"},        {"block_size", "1024"},
    {"batch_size", "12"},     {"gradient_accumulation_steps", "40"},
    {"max_iters", "600000"},  {"eval_interval", "2000"},
    {"eval_iters", "200"},    {"lr_decay_iters", "600000"},
    {"bias", "False"},        {"dropout", "0.0"},
    {"dtype", "bfloat16"},    {"learning_rate", "6e-4"},
    {"min_lr", "6e-5"},       {"decay_lr", "True"},
    {"warmup_iters", "2000"}, {"weight_decay", "0.1"},
    {"beta1", "0.9"},         {"beta2", "0.95"},
    {"grad_clip", "1.0"},     {"log_interval", "1"},
};

// Of FusedAdam and of the schedules.
constexpr Default kDeepSpeedDefaults[] = {
    {"optimizer.params.lr", "0.001", "optimizer.type"},
    {"optimizer.params.betas", "[0.9, 0.999]", "optimizer.type"},
    {"optimizer.params.eps", "1e-8", "optimizer.type"},
    {"optimizer.params.weight_decay", "0.0", "optimizer.type"},
    {"scheduler.params.warmup_num_steps", "1000", "scheduler.type"},
};

// Beginnings of names of options that change neither the layout nor what a step computes, besides rows and remarks.
constexpr const char* kMegatronIgnored =
    "--save --load --data --log --eval --tensorboard --wandb --tokenizer --vocab-file --merge-file --exit "
    "--distributed --ckpt --no-load --no-save --lr- --min-lr --init-method --timing --num-workers --mock-data "
    "--master --node --rdzv --rank --local --weight-decay-incr --override --use-checkpoint --finetune --loss-scale "
    "--initial-loss-scale --min-loss-scale --hysteresis --profile --empty-unused-memory-level --tiktoken-pattern "
    "--no-create-attention-mask --no-mmap --manual-gc --train-samples --overlap- --attention-backend --use-rotary "
    "--no-masked-softmax --no-rope-fusion --no-position-embedding --moe-permute --nnodes --nproc "
    "--no-gradient-accumulation-fusion --cross-entropy --tee --max-restarts";
constexpr const char* kTorchtitanIgnored =
    "job. profiling. metrics. checkpoint. comm. lr_scheduler. optimizer.name optimizer.implementation "
    "training.dataset compile. model.tokenizer experimental. debug.";
constexpr const char* kNanotronIgnored =
    "general. data_stages logging. checkpoints. profiler tokenizer. model.init_method model.make_vocab "
    "model.ddp_bucket model.model_config. optimizer.optimizer_factory optimizer.learning_rate_scheduler. "
    "tokens.val_check tokens.limit lighteval s3_upload experimental.";
constexpr const char* kDeepSpeedIgnored =
    "zero_optimization. activation_checkpointing pipeline. flops_profiler tensorboard wandb fp16. bf16. aio. "
    "comms_logger zero_allow checkpoint. compile seed";
constexpr const char* kNanogptIgnored = "wandb eval_only device seed";

constexpr Tables kTables[] = {
    {"megatron", kMegatron, kMegatronRemarks, kMegatronDefaults, kMegatronIgnored},
    {"torchtitan", kTorchtitan, kTorchtitanRemarks, kTorchtitanDefaults, kTorchtitanIgnored},
    {"nanotron", kNanotron, kNanotronRemarks, kNanotronDefaults, kNanotronIgnored},
    {"deepspeed", kDeepSpeed, kDeepSpeedRemarks, kDeepSpeedDefaults, kDeepSpeedIgnored},
    {"nanogpt", kNanogpt, kNanogptRemarks, kNanogptDefaults, kNanogptIgnored},
};

}  // namespace

std::span<const Tables> all_tables() { return kTables; }
const Tables& tables_of(Peer peer) { return kTables[static_cast<size_t>(peer)]; }

bool Tables::ignores(std::string_view option) const {
    if (std::ranges::any_of(remarks, [&](const Remark& remark) { return option == remark.theirs; })) return true;
    std::istringstream beginnings{std::string(ignored)};
    for (std::string beginning; beginnings >> beginning;)
        if (option.starts_with(beginning)) return true;
    return false;
}

}  // namespace tutti::peers
