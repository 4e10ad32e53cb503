// published/traits.cpp: the table of systems. Counts are read from code and profiles of each system, not fitted to
// rows.
#include "tutti/published/traits.h"

#include <algorithm>
#include <optional>

#include "tutti/base/strings.h"

namespace tutti::published {
namespace {

using simulate::Attention;

// Fused kernels of Transformer Engine; f32 softmax of logits in three passes.
Traits megatron_core() { return {.name = "megatron-core", .logit_bytes = 56}; }
// Megatron-LM v1 to v3: scores, softmax and dropout through memory; DDP after the backward; gradients of weights are
// added by a kernel of their own (main_grad.add_: a 16-bit one read, the sum read and written); NCCL 2.7 to 2.12 take
// 40 to 85 us an all-reduce on A100, twice what later ones take.
Traits megatron_2020() {
    return {.name = "megatron-2020",
            .attention = Attention::unfused,
            .launches = 55,
            .logit_bytes = 56,
            .accumulate_bytes = 6,
            .sequence_parallel = false,
            .dropout = true,
            .overlaps_tp = false,
            .overlaps_dp = false,
            .overlaps_hops = false,
            .prefetches = false,
            .bucket_bytes = -1,
            .collective_latencies = 2,
            .hops = 2};
}
// Of December 2024: DistributedDataParallel's buckets hold 25 MiB of 16-bit gradients, and get_fp32_accum_hook reduces
// their f32 sums; parts of ZeRO-1 are of unequal sizes, which NCCL has no reduce-scatter for; the sweep's site has 33
// us a ring step.
Traits nanotron(bool tp) {
    return {.name = "nanotron",
            .attention = Attention::flash2,
            .launches = tp ? 125.0 : 75.0,
            .pass_factor = 1.4,
            .logit_bytes = 40,
            .optimizer_bytes = 40,
            .accumulate_bytes = 10,
            .overlaps_tp = false,
            .overlaps_dp = false,
            .overlaps_hops = false,
            .bucket_bytes = 2 * 25.0 * 1024 * 1024,
            .scatters_as_all_reduce = true,
            .hops = 3,
            .tp_stall = 0.24e-3,
            .held_logit_bytes = 10,  // in 16 bits, in f32, and their softmax, which becomes the gradient
            .reserved_bytes = 0.25e9,
            .bucket_copy_bytes = 2,
            .gate_bytes = 8,  // its SiLU is no part of a fused kernel and saves its output
            .host_runs_ahead = true,
            .embeds_whole = true,
            .stages_by_cost = true,
            .allocator_retries = true};
}
// PyTorch operation by operation: cross entropy of f32 logits; FSDP prefetches one layer, and keeps the weights of a
// pipeline's stage after a forward (torchtitan/distributed/fsdp.py).
Traits eager_fsdp() {
    return {.name = "pytorch-eager",
            .attention = Attention::flash2,
            .launches = 60,
            .eager = true,
            .logit_bytes = 28,
            .overlaps_tp = false,
            .gathers_once = true,
            .held_activations = 1.15,
            .held_logit_bytes = 14,  // in 16 bits and, in f32, themselves or their gradient, log-softmax, its gradient
            .reserved_bytes = 2.5e9,
            .weights_are_masters = true,
            .new_gathers = true,
            .checkpoints_products = true};
}
// llm-foundry's MPT: FlashAttention 1 (Triton), fused norms of Composer.
Traits composer() {
    Traits traits = eager_fsdp();
    traits.name = "composer";
    traits.attention = Attention::flash1;
    traits.launches = 40;
    traits.eager = false;
    traits.pass_factor = 1.4;
    return traits;
}
// torchtitan: torch.compile fuses norms, rotations and activations of a block; FSDP2.
Traits compiled_fsdp() {
    Traits traits = eager_fsdp();
    traits.name = "pytorch-compiled";
    traits.gathers_context = true;  // PyTorch's context_parallel: rotate_method "allgather", its default in torchtitan
    traits.launches = 18;
    traits.eager = false;
    traits.pass_factor = 0.8;
    traits.logit_bytes = 24;
    traits.held_activations = 1;
    traits.reserved_bytes = 2e9;
    return traits;
}
// XLA on GPU: fusions of whole norms and residuals; latency-hiding scheduler.
Traits xla() {
    return {.name = "xla",
            .launches = 12,
            .pass_factor = 0.7,
            .logit_bytes = 20,
            .gathers_once = true,
            .held_activations = 0.9,
            .reserved_bytes = 1.5e9};
}

bool is_deepspeed(const std::string& software) { return has(software, {"deepspeed", "neox"}); }

// Programs of PyTorch alone, and not of Megatron's layers.
bool is_pytorch(const std::string& software) {
    return has(software, {"eager", "compile", "torchtitan", "fsdp", "ddp", "pytorch", "deepspeed", "lit-gpt", "litgpt",
                          "transformers", "accelerate", "olmo", "internlm", "paddle"}) &&
           !has(software, {"megatron", "mcore", "nemo"});
}

}  // namespace

bool has(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* w) { return text.find(w) != std::string::npos; });
}

namespace {

// FlashAttention is of May 2022, and has no kernel for V100 (its README): where a row does not name it, scores of these
// years and devices go through memory.
bool is_unfused(const Named& n) {
    return has(n.attention, {"unfused"}) ||
           (n.attention.empty() && !is_pytorch(n.software) && (n.volta || has(n.software, {"2019", "2022"})));
}

// Policies of their recipes, where the row gives none.
Traits of_jax(const Named& n) {
    Traits traits = xla();
    if (n.recompute.starts_with("minimal"))
        traits.recompute = "norms";  // MaxText's policy that keeps all products
    else if (!n.recompute.starts_with("full") && n.recompute != "none")
        traits.recompute = has(n.model + n.software, {"paxml"}) ? "full" : "op-level";
    return traits;
}

Traits of_megatron_2020(const Named& n) {
    const std::string& s = n.software;
    Traits traits = megatron_2020();
    // Gradients of fp16 are summed and reduced in 16 bits, unless --accumulate-allreduce-grads-in-fp32 asks for f32,
    // which bf16 always does (megatron/arguments.py).
    if (n.bf16) traits.accumulate_bytes = 10;
    if (!n.bf16 && !is_deepspeed(s) && !has(s, {"fsdp"})) traits.gradient_bytes = 2;
    // DeepSpeed's runtime/pipe/engine.py sends and receives in the order of its instructions, gradients whole until
    // e2fdd254e of September 2021 (is_grad_partitioned; GPT-NeoX has a fork of before). Its ZeRO-3 of 2021 gathers
    // weight by weight (runtime/zero/partition_parameters.py), FSDP of that year a layer ahead.
    if (is_deepspeed(s)) {
        traits.blocking_hops = true;
        traits.whole_gradients = has(s, {"2020", "2021", "neox"});
        traits.gathers_a_layer = 4;
    }
    if (has(s, {"fsdp"})) traits.prefetches = true;
    // CUDA_LAUNCH_BLOCKING=1, as runs hung without it: train/tr11-176B-ml/chronicles-prequel.md.
    if (has(n.family + s, {"bigscience", "jean zay"})) traits.launches_block = true;
    // Sequence parallelism came with selective recomputation, and products that add to the sums of gradients
    // (Korthikanti 2022).
    if (has(s, {"2022 (selene)"})) {
        traits.accumulate_bytes = 0;
        traits.sequence_parallel = has(n.recompute, {"selective"});
    }
    return traits;
}

Traits of_pytorch(const std::string& s) {
    Traits traits;
    if (has(s, {"eager", "no compile", "compile off"}) || !has(s, {"compile", "torchtitan"})) {
        traits = eager_fsdp();                              // where compilation is not asked for
        traits.eager = !has(s, {"fused", "liger"});         // Liger-Kernel fuses norms, rotations and gates
        traits.sequence_parallel = has(s, {"torchtitan"});  // its plan splits norms; InternLM's default does not
        return traits;
    }
    traits = compiled_fsdp();
    traits.overlaps_tp = has(s, {"async"});
    // A compiled loss, usual since 2025, keeps the 16-bit logits, which its forward reads twice and its backward once,
    // and their gradient.
    if (has(s, {"2025", "2026"})) {
        traits.held_logit_bytes = 4;
        traits.logit_bytes = 8;
    }
    return traits;
}

// Megatron-Core and what has its layers.
Traits of_megatron_core(const std::string& s) {
    Traits traits = megatron_core();
    if (has(s, {"hai-llm"})) {
        traits.name = "hai-llm";  // DeepSeek-V3's report: DualPipe hides dispatch, which sends one copy a node
        traits.one_copy = true;
        traits.hidden_dispatch = 0.7;
        traits.expert_launches = 60;
        traits.logit_bytes = 24;
    } else if (has(s, {"megascale"})) {
        traits.name = "megascale";
        traits.attention = Attention::flash2;
    } else if (has(s, {"llama team", "meta"})) {
        // Llama Team 2024, 3.3.2: asynchronous messages of pipelines, keys gathered, ZeRO-2
        traits.name = "llama-3";
        traits.attention = Attention::flash2;  // FlashAttention-3 came after the run
        traits.overlaps_tp = false;
        traits.gathers_context = true;
    } else if (s.starts_with("megatron-lm 0.14")) {
        traits.overlaps_hops = false;
    } else if (s == "megatron-lm") {  // 2023, without flags
        traits.attention = Attention::flash2;
        traits.overlaps_dp = traits.overlaps_hops = false;
    }
    // --tp-comm-overlap (116ffddc58, October 2023) is off where it is not given; recipes of NeMo give it.
    if (has(s, {"megatron-lm", "megatron-core", "mcore"}) && !has(s, {"nemo", "dgxc", "bridge", "overlap"}))
        traits.overlaps_tp = false;
    // NeMo's recipes gather weights of 8-bit products as codes: fp8_params of dgxc-benchmarking, fp8_param_gather of
    // Megatron-Bridge's training/mixed_precision.py and of MLPerf's pretrain.py.
    if (has(s, {"nemo", "dgxc"}) && !has(s, {"automodel"})) {
        traits.gathers_codes = true;
        traits.bucket_values = 128.0 * 1024 * 1024;  // comm_overlap.py of NeMo and Megatron-Bridge
    }
    // Transformer Engine's fused cross entropy, dispatchers that send one copy a node: 2025.
    if (has(s, {"25.", "26.", "moe_dev"})) {
        traits.one_copy = true;
        traits.logit_bytes = 24;
    }
    if (has(s, {"deepep", "hybridep"})) traits.one_copy = true;
    if (has(s, {"automodel"})) {
        // FakeBalancedGate of nemo_automodel/components/moe/layers.py, in all its benchmarks: token t takes the experts
        // from t top_k on, so that they share a rank or two and a node.
        traits.next_experts = true;
        traits.gathers_once = true;  // reshard_after_forward=not pp_enabled in components/moe/parallelizer.py
        // torch/distributed/pipelining/schedules.py: after each action its messages are sent, and waited for.
        traits.overlaps_hops = false;
        traits.logit_bytes = 12;  // F.cross_entropy of 16-bit logits: fp32_upcast: false in its benchmarks
    }
    return traits;
}

Traits of_system(const Named& n) {
    const std::string& s = n.software;
    if (has(n.model, {"paxml", "maxtext"}) || has(s, {"paxml", "maxtext", "jax", "xla", "t5x", "levanter"}))
        return of_jax(n);
    if (has(s, {"2020", "2021", "alpa"}) || (is_unfused(n) && (!is_pytorch(s) || has(s, {"2019", "2022"}))))
        return of_megatron_2020(n);
    if (has(s, {"nanotron"}) || has(n.family, {"nanotron"})) return nanotron(n.tp);
    if (has(s, {"llm-foundry"})) {
        Traits traits = composer();
        traits.gradient_bytes = has(s, {"pure"}) ? 2 : 4;  // the type of its mixed-precision mode
        return traits;
    }
    if (is_pytorch(s)) return of_pytorch(s);
    // llmc/fused_classifier.cuh reads logits twice and writes their gradient in their place.
    if (has(s, {"llm.c"})) return {.name = "llm.c", .launches = 18, .logit_bytes = 6};
    return of_megatron_core(s);
}

// The kernel that a row names: "FlashAttention-2", "flash_attn v2", "fa2" by letters and digits alone, without
// "attention" and "v".
std::optional<Attention> attention_named(const std::string& text) {
    std::string kernel;
    for (const char c : text)
        if (is_alphanumeric(c)) kernel += c;
    for (const char* word : {"attention", "attn", "v"})
        if (const size_t at = kernel.find(word); at != std::string::npos) kernel.erase(at, std::string(word).size());
    const auto is = [&](std::initializer_list<const char*> names) {
        return std::any_of(names.begin(), names.end(), [&](const char* name) { return kernel == name; });
    };
    // FlexAttention has 0.9 of FlashAttention-2's speed (pytorch.org, "FlexAttention", August 2024).
    if (is({"flash2", "fa2", "flex"})) return Attention::flash2;
    if (is({"flash1", "fa1", "flash", "fa"})) return Attention::flash1;
    if (is({"flash3", "fa3", "flash4", "fa4", "cudnn"})) return Attention::newest;
    return std::nullopt;
}

}  // namespace

Traits traits_of(const Named& n) {
    const std::string& s = n.software;
    Traits traits = of_system(n);
    // runtime/zero/stage3.py releases weights after a pass unless fewer than stage3_max_reuse_distance values are used
    // before them, 1e9 where it is not set: a third load of large layers, section 4.1 of ZeRO-Infinity (2104.07857).
    if (is_deepspeed(s)) traits.keeps_values = 1e9;
    if (has(n.model, {"tokendrop", "token drop"})) traits.expert_launches = 90;  // equal loads: one padded product
    // Recorded graphs: named by the row; recipes of NeMo 26.06 and later record the layers of experts on Blackwell.
    traits.graphs = has(s, {"cuda graphs"}) || (n.blackwell && n.experts && has(s, {"26.06", "26.08"}));
    if (is_unfused(n) && (is_pytorch(s) || traits.name == "xla")) traits.attention = Attention::unfused;
    if (const auto named = attention_named(n.attention)) traits.attention = *named;
    return traits;
}

}  // namespace tutti::published
