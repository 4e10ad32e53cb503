"""Hugging Face directories, both ways, for each family: what transformers wrote, Tutti computes with; what Tutti wrote,
transformers loads.

    python test_hf.py build/release/tests/peer/tutti_peer_dump build/release/tutti [unittest options]

Run by ctest with label `peer`. Prints each difference that it measured beside the bound.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import peer

DUMP, TUTTI = None, None  # the two programs, from the command line
SEQ_LEN, SEQUENCES, SEED = 70, 3, 4321
BOUND = 1e-4

# Sizes are odd on purpose. The window of 9 is shorter than every text here.
SIZES = dict(vocab_size=211, hidden_size=48, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.15, bos_token_id=None,
             eos_token_id=None)
SCALED = dict(rope_theta=10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=128)
LINEAR = dict(rope_theta=10000.0, rope_type="linear", factor=4.0)
YARN = dict(rope_theta=10000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
# The feed-forward is int(2 * 112 / 3) = 74, times the multiplier, rounded up to a multiple of 16. No token is padding,
# whose row of the embedding torch would neither draw nor train.
LFM2 = dict(SIZES, norm_eps=1e-5, pad_token_id=None, block_multiple_of=16,
            rope_parameters=dict(rope_theta=10000.0, rope_type="default"))
LFM2_MOE = dict(SIZES, norm_eps=1e-5, pad_token_id=None,
                rope_parameters=dict(rope_theta=10000.0, rope_type="default"))
NO_PADDING = dict(SIZES, rms_norm_eps=1e-4, pad_token_id=None)
# More tokens than a chunk of 64 has no text here; tests of kernels and layers have longer ones.
DELTA = dict(NO_PADDING, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
             linear_conv_kernel_dim=4)
# Steps of some tenths, so that states stay of the size of values.
GRANITE4 = dict(NO_PADDING, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=4,
                embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=0.22, attention_multiplier=0.2,
                shared_intermediate_size=40)
NEMOTRON = {key: value for key, value in dict(NO_PADDING, head_dim=16, mamba_num_heads=6, mamba_head_dim=8, n_groups=2,
                                              ssm_state_size=8, layer_norm_epsilon=1e-4, time_step_min=0.3).items()
            if key not in ("rms_norm_eps", "num_hidden_layers")}
NEMOTRON_EXPERTS = dict(NEMOTRON, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                        moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5)
FALCON = dict(NO_PADDING, head_dim=16, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=8,
              embedding_multiplier=3.0, lm_head_multiplier=0.3, key_multiplier=0.25, attention_in_multiplier=0.75,
              attention_out_multiplier=0.9375, ssm_in_multiplier=1.25, ssm_out_multiplier=0.625,
              mlp_multipliers=[0.875, 0.5], ssm_multipliers=[0.5, 0.75, 1.25, 1.5, 0.875])
MAMBA2 = dict(vocab_size=211, hidden_size=48, num_hidden_layers=3, num_heads=12, head_dim=8, n_groups=2, state_size=8,
              conv_kernel=4, layer_norm_epsilon=1e-4, residual_in_fp32=False, initializer_range=0.15, pad_token_id=None,
              bos_token_id=None, eos_token_id=None)
EVERY_LAYER_HAS_EXPERTS = {key: value for key, value in DELTA.items() if key != "intermediate_size"}
MODELS = {
    "gpt2": ("GPT2", dict(vocab_size=211, n_embd=48, n_layer=3, n_head=6, n_positions=96, n_inner=100,
                          initializer_range=0.15, bos_token_id=None, eos_token_id=None)),
    "gpt2_untied": ("GPT2", dict(vocab_size=211, n_embd=48, n_layer=2, n_head=3, n_positions=96,
                                 initializer_range=0.15, tie_word_embeddings=False, bos_token_id=None,
                                 eos_token_id=None)),
    "llama": ("Llama", dict(SIZES, rms_norm_eps=1e-5)),
    "llama_tied_scaled": ("Llama", dict(SIZES, tie_word_embeddings=True, rope_parameters=SCALED)),
    "llama_biases_linear": ("Llama", dict(SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LINEAR,
                                          num_key_value_heads=3)),
    "llama_yarn": ("Llama", dict(SIZES, rope_parameters=YARN, head_dim=24)),
    "mistral": ("Mistral", dict(SIZES, sliding_window=9)),
    "mistral_full": ("Mistral", dict(SIZES, sliding_window=None, num_key_value_heads=6)),
    "qwen2": ("Qwen2", dict(SIZES, tie_word_embeddings=True)),
    "qwen2_window": ("Qwen2", dict(SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=0)),
    "qwen2_window_above": ("Qwen2", dict(SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=2)),
    "qwen3_window_between": ("Qwen3", dict(SIZES, head_dim=16, use_sliding_window=True, sliding_window=7,
                                           layer_types=["full_attention", "sliding_attention", "full_attention"])),
    "qwen3": ("Qwen3", dict(SIZES, head_dim=16, tie_word_embeddings=True)),
    "mixtral": ("Mixtral", dict(SIZES, num_local_experts=5, num_experts_per_tok=2)),
    "mixtral_balanced": ("Mixtral", dict(SIZES, num_local_experts=8, num_experts_per_tok=3, sliding_window=9,
                                         output_router_logits=True, router_aux_loss_coef=0.05)),
    "qwen2_moe": ("Qwen2Moe", dict(SIZES, moe_intermediate_size=40, shared_expert_intermediate_size=56, num_experts=7,
                                   num_experts_per_tok=3)),
    "qwen2_moe_sparse": ("Qwen2Moe", dict(SIZES, moe_intermediate_size=40, shared_expert_intermediate_size=56,
                                          num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                                          decoder_sparse_step=2, output_router_logits=True,
                                          router_aux_loss_coef=0.1)),
    "qwen3_moe": ("Qwen3Moe", dict(SIZES, head_dim=16, moe_intermediate_size=24, num_experts=9, num_experts_per_tok=4,
                                   norm_topk_prob=True, mlp_only_layers=[1])),
    "qwen3_moe_balanced": ("Qwen3Moe", dict(SIZES, head_dim=16, moe_intermediate_size=24, num_experts=9,
                                            num_experts_per_tok=4, output_router_logits=True,
                                            router_aux_loss_coef=0.2)),
    "qwen2_moe_window": ("Qwen2Moe", dict(SIZES, moe_intermediate_size=40, shared_expert_intermediate_size=56, num_experts=7,
                                          num_experts_per_tok=3, use_sliding_window=True, sliding_window=9,
                                          max_window_layers=2)),
    "qwen3_moe_window": ("Qwen3Moe", dict(SIZES, head_dim=16, moe_intermediate_size=24, num_experts=9,
                                          num_experts_per_tok=4, use_sliding_window=True, sliding_window=9)),
    "lfm2_moe": ("Lfm2Moe", dict(LFM2_MOE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40,
                                 num_dense_layers=1, layer_types=["conv", "full_attention", "conv"])),
    "lfm2_moe_unnormalised": ("Lfm2Moe", dict(LFM2_MOE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
                                              num_dense_layers=0, norm_topk_prob=False, use_expert_bias=False,
                                              routed_scaling_factor=1.5,
                                              layer_types=["full_attention", "conv", "conv"])),
    "lfm2": ("Lfm2", dict(LFM2, full_attn_idxs=[1])),
    "lfm2_biases": ("Lfm2", dict(LFM2, conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False,
                                 layer_types=["full_attention", "conv", "conv"])),
    "lfm2_attention_alone": ("Lfm2", dict(LFM2, block_ffn_dim_multiplier=1.5)),
    # Rows of spec/variants.h, each new thing away from its default. The multipliers and caps bite.
    "gemma": ("Gemma", dict(NO_PADDING, head_dim=16, num_key_value_heads=1)),
    "gemma2": ("Gemma2", dict(NO_PADDING, head_dim=16, query_pre_attn_scalar=12, sliding_window=9,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma3": ("Gemma3Text", dict(NO_PADDING, num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=10,
                                  sliding_window=9, final_logit_softcapping=5.0, attn_logit_softcapping=None,
                                  layer_types=["sliding_attention", "full_attention"] * 2,
                                  rope_parameters=dict(
                                      sliding_attention=dict(rope_type="default", rope_theta=100.0),
                                      full_attention=dict(rope_type="linear", factor=8.0, rope_theta=5000.0)))),
    "phi3": ("Phi3", dict(NO_PADDING, tie_word_embeddings=False, sliding_window=9, original_max_position_embeddings=128,
                          rope_parameters=dict(rope_type="longrope", rope_theta=1000.0, partial_rotary_factor=0.75,
                                               short_factor=[1.0, 1.5, 2.0], long_factor=[1.25, 3.0, 6.0]))),
    "phi3_plain": ("Phi3", dict(NO_PADDING, sliding_window=None)),
    "olmo2": ("Olmo2", dict(NO_PADDING, rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    "olmo3": ("Olmo3", dict(NO_PADDING, sliding_window=9,
                            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                            rope_parameters=dict(
                                sliding_attention=dict(rope_type="default", rope_theta=500.0),
                                full_attention=dict(rope_type="yarn", rope_theta=500.0, factor=4.0,
                                                    original_max_position_embeddings=16, beta_fast=4.0,
                                                    attention_factor=1.2)))),
    "smollm3": ("SmolLM3", dict(NO_PADDING, no_rope_layers=[1, 0, 1])),
    "granite": ("Granite", dict(NO_PADDING, embedding_multiplier=3.0, logits_scaling=4.0, residual_multiplier=0.22,
                                attention_multiplier=0.2, tie_word_embeddings=True)),
    "glm": ("Glm", dict(NO_PADDING, head_dim=12, attention_bias=True, partial_rotary_factor=0.5)),
    "glm4": ("Glm4", dict(NO_PADDING, head_dim=8, attention_bias=True, partial_rotary_factor=0.5)),
    "ministral3": ("Ministral3", dict(NO_PADDING, head_dim=16, sliding_window=None, tie_word_embeddings=False,
                                      rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                                           original_max_position_embeddings=16, beta_fast=4.0,
                                                           mscale=1.0, mscale_all_dim=0.5,
                                                           llama_4_scaling_beta=0.1))),
    "seed_oss": ("SeedOss", dict(NO_PADDING, head_dim=16, attention_bias=True, attention_out_bias=True)),
    "exaone4": ("Exaone4", dict(NO_PADDING, sliding_window=9, sliding_window_pattern=3,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters=SCALED)),
    "exaone4_full": ("Exaone4", dict(NO_PADDING, sliding_window=None, sliding_window_pattern=None,
                                     layer_types=["full_attention"] * 3)),
    "gpt_oss": ("GptOss", dict(NO_PADDING, head_dim=16, num_local_experts=5, num_experts_per_tok=2, swiglu_limit=0.75,
                               sliding_window=9, rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=8.0,
                                                                      original_max_position_embeddings=16, beta_fast=4.0,
                                                                      beta_slow=1.0, truncate=False))),
    "gpt_oss_layers": ("GptOss", dict(NO_PADDING, head_dim=8, num_local_experts=6, num_experts_per_tok=3, swiglu_limit=7.0,
                                      sliding_window=5, attention_bias=False, intermediate_size=40,
                                      layer_types=["full_attention", "sliding_attention", "full_attention"],
                                      rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0,
                                                           original_max_position_embeddings=32))),
    "gpt_oss_balanced": ("GptOss", dict(NO_PADDING, head_dim=24, num_local_experts=4, num_experts_per_tok=2,
                                        swiglu_limit=1.5, sliding_window=9, num_key_value_heads=3,
                                        output_router_logits=True, router_aux_loss_coef=0.3,
                                        rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    "qwen3_next": ("Qwen3Next", dict(DELTA, head_dim=16, layer_types=["linear_attention", "full_attention",
                                                                     "linear_attention"],
                                     num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
                                     shared_expert_intermediate_size=40, mlp_only_layers=[1],
                                     rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                                          partial_rotary_factor=0.5))),
    "qwen3_next_groups": ("Qwen3Next", dict(DELTA, head_dim=8, num_hidden_layers=2, linear_num_key_heads=1,
                                            linear_num_value_heads=3, linear_key_head_dim=9, linear_value_head_dim=7,
                                            linear_conv_kernel_dim=3, layer_types=["linear_attention", "full_attention"],
                                            num_experts=4, num_experts_per_tok=3, norm_topk_prob=False,
                                            moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    "qwen3_next_balanced": ("Qwen3Next", dict(DELTA, head_dim=24, num_key_value_heads=6, linear_num_value_heads=2,
                                              layer_types=["full_attention", "linear_attention", "linear_attention"],
                                              num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                                              shared_expert_intermediate_size=12, output_router_logits=True,
                                              router_aux_loss_coef=0.3, tie_word_embeddings=True)),
    "qwen3_5": ("Qwen3_5Text", dict(DELTA, head_dim=16, layer_types=["linear_attention", "full_attention",
                                                                    "linear_attention"],
                                    rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                                         partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
                                                         mrope_interleaved=True))),
    "qwen3_5_tied": ("Qwen3_5Text", dict(DELTA, head_dim=32, num_hidden_layers=5, linear_num_key_heads=3,
                                         linear_num_value_heads=3, linear_key_head_dim=20, linear_value_head_dim=4,
                                         tie_word_embeddings=True)),
    "qwen3_5_groups": ("Qwen3_5Text", dict(DELTA, head_dim=8, num_hidden_layers=2, linear_num_key_heads=1,
                                           linear_num_value_heads=4, linear_conv_kernel_dim=2,
                                           layer_types=["full_attention", "linear_attention"])),
    "qwen3_5_moe": ("Qwen3_5MoeText", dict(EVERY_LAYER_HAS_EXPERTS, head_dim=16, num_experts=5, num_experts_per_tok=2,
                                           moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                           layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "qwen3_5_moe_groups": ("Qwen3_5MoeText", dict(EVERY_LAYER_HAS_EXPERTS, head_dim=8, num_hidden_layers=2, num_experts=4,
                                                  num_experts_per_tok=3, moe_intermediate_size=16,
                                                  shared_expert_intermediate_size=8, linear_num_key_heads=2,
                                                  linear_num_value_heads=6, linear_key_head_dim=5,
                                                  layer_types=["full_attention", "linear_attention"])),
    "qwen3_5_moe_balanced": ("Qwen3_5MoeText", dict(EVERY_LAYER_HAS_EXPERTS, head_dim=16, num_experts=7,
                                                    num_experts_per_tok=3, moe_intermediate_size=12,
                                                    shared_expert_intermediate_size=20, output_router_logits=True,
                                                    router_aux_loss_coef=0.3, num_key_value_heads=3,
                                                    layer_types=["linear_attention", "linear_attention",
                                                                 "full_attention"])),
    "granite4": ("GraniteMoeHybrid", dict(GRANITE4, num_local_experts=5, num_experts_per_tok=2, intermediate_size=24,
                                          layer_types=["mamba", "attention", "mamba"], tie_word_embeddings=True)),
    "granite4_dense": ("GraniteMoeHybrid", dict(GRANITE4, num_local_experts=0, mamba_n_groups=3, mamba_d_conv=3,
                                                mamba_conv_bias=False, position_embedding_type="rope",
                                                time_step_limit=[0.3, 1.0], layer_types=["attention", "mamba", "mamba"],
                                                rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    "granite4_balanced": ("GraniteMoeHybrid", dict(GRANITE4, num_local_experts=4, num_experts_per_tok=3,
                                                   intermediate_size=16, mamba_expand=1, mamba_n_heads=3,
                                                   position_embedding_type="rope",
                                                   attention_bias=True, output_router_logits=True,
                                                   router_aux_loss_coef=0.3, layer_types=["mamba", "mamba", "attention"])),
    "nemotron_h": ("NemotronH", dict(NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"])),
    "nemotron_h_experts": ("NemotronH", dict(NEMOTRON_EXPERTS, moe_latent_size=20, n_group=2, topk_group=1,
                                             layers_block_type=["linear_attention", "moe", "full_attention", "mlp"])),
    "nemotron_h_plain": ("NemotronH", dict(NEMOTRON_EXPERTS, n_groups=3, conv_kernel=3, use_conv_bias=False,
                                           norm_topk_prob=False, num_experts_per_tok=3,
                                           layers_block_type=["moe", "linear_attention", "linear_attention",
                                                              "full_attention", "moe"])),
    "mamba2": ("Mamba2", dict(MAMBA2, time_step_limit=[0.3, 1.0])),
    "mamba2_plain": ("Mamba2", dict(MAMBA2, num_heads=6, n_groups=3, expand=1, conv_kernel=3, use_conv_bias=False,
                                    tie_word_embeddings=True)),
    "falcon_h1": ("FalconH1", dict(FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False)),
    "falcon_h1_before": ("FalconH1", dict(FALCON, mamba_rms_norm=True, mamba_norm_before_gate=True, mlp_bias=True,
                                          time_step_limit=[0.3, 1.0])),
    "falcon_h1_plain": ("FalconH1", dict(FALCON, mamba_rms_norm=False, mamba_n_groups=1, mamba_d_conv=3,
                                         mamba_conv_bias=False, tie_word_embeddings=True, num_hidden_layers=2,
                                         rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    "qwen3_biases": ("Qwen3", dict(SIZES, head_dim=8, attention_bias=True)),
}

VARIANTS = [name for name in MODELS if MODELS[name][1].get("rms_norm_eps") == 1e-4]  # rows of spec/variants.h


def config_of(name):
    family, settings = MODELS[name]
    settings = dict(settings)
    config_class = getattr(transformers, family + "Config")
    if "rope_parameters" in settings and int(transformers.__version__.split(".")[0]) < 5:
        rope = dict(settings.pop("rope_parameters"))
        settings["rope_theta"] = rope.pop("rope_theta")
        settings["rope_scaling"] = rope
    return config_class(**settings, attn_implementation="eager")


def make_module(name):
    """Random weights; norms and biases are stirred, so that none can be forgotten or swapped unnoticed."""
    torch.manual_seed(SEED)
    module = AutoModelForCausalLM.from_config(config_of(name), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1 or name.endswith("_bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
            if name.endswith("A_log"):  # moderate decays: where they are strong, torch's own f32 is off by 2e-4 in these
                parameter.copy_(0.5 * torch.randn_like(parameter))
        for key, buffer in module.named_buffers():
            if key.endswith(("expert_bias", "e_score_correction_bias")):
                buffer.add_(0.2 * torch.randn_like(buffer))
    return module.eval()


def load_module(directory, dtype="auto"):
    module, info = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager",
                                                        output_loading_info=True, torch_dtype=dtype)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            raise AssertionError(f"{directory}: {kind}: {info[kind]}")
    return module.eval()


def small_tokenizer(ids):
    """The text of a tokenizer.json whose ids are below `ids`."""
    tokenizer = json.loads((pathlib.Path(__file__).parents[2] / "src/tutti/text/testdata/gpt2.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < ids}
    model["merges"] = [merge for merge in model["merges"] if "".join(merge.split(" ")) in model["vocab"]]
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < ids]
    return json.dumps(tokenizer)


def tutti(*arguments):
    result = subprocess.run([TUTTI, *map(str, arguments), "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"tutti {' '.join(map(str, arguments))}: exit code {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout)


def all_tensors(directory):
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def logits(module, windows):
    with torch.no_grad():
        return module(input_ids=torch.as_tensor(windows[:, :-1], dtype=torch.long), use_cache=False).logits.float()


def greedy(module, prompt, count):
    """The plain loop: no cache, no settings of generate()."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt):]


class HuggingFace(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.windows = peer.make_windows(SEQUENCES, SEQ_LEN, 211, SEED)

    def close(self, what, difference):
        print(f"  {what:<60} {difference:9.2e}  (bound {BOUND:.0e})")
        self.assertLessEqual(difference, BOUND, what)

    def dump(self, directory):
        config = peer.config_text({"hf": str(directory)}, train=dict(seq_len=SEQ_LEN, seed=SEED, threads=2),
                                  precision=dict(compute="f32"))
        return peer.Dump(DUMP, "outputs", config, self.windows)

    def compare_outputs(self, name, module, directory):
        """Logits, with and without the cache; the loss; every gradient."""
        ours, theirs = self.dump(directory), peer.Peer.of(module)
        expected = logits(module, self.windows)
        largest, first = expected.abs().max(), SEQ_LEN // 3
        self.close(f"{name}: logits", ((ours.outputs["logits"] - expected).abs().max() / largest).item())
        cached = ours.outputs["cached_logits"][:, first:]
        self.close(f"{name}: logits through the caches", ((cached - expected[:, first:]).abs().max() / largest).item())
        module.zero_grad()
        loss, _ = theirs.loss_sum(self.windows)
        terms = int((self.windows[:, 1:] >= 0).sum())
        total, balancing = loss / terms, theirs.balancing_loss(self.windows)
        if balancing is not None:
            total = total + balancing
            self.close(f"{name}: balancing loss", abs(ours.outputs["aux_loss"].item() / balancing.item() - 1))
        elif "aux_loss" in ours.outputs:
            self.assertEqual(ours.outputs["aux_loss"].item(), 0)
        total.backward()
        self.close(f"{name}: loss", abs(ours.outputs["losses"].double().sum().item() - loss.item()) / loss.item())
        # What stands where the bias of an expert would have its gradient is a count; transformers has a buffer there.
        trained = [key for key in ours.gradients if not key.endswith(("expert_bias", "e_score_correction_bias"))]
        gradients = theirs.gradients(trained)
        stacked = sum(key.endswith(("gate_up_proj", "gate_up_proj.weight", "gate_up_proj_bias")) + 2 * key.endswith("qkv_proj.weight") +
                      peer.parts_of_scan(key, module.config.model_type) +
                      peer.parts_of_delta_rule(key, hasattr(module.config, "linear_num_key_heads"))
                      for key, _ in module.named_parameters())
        self.assertEqual(len(trained), len(list(module.parameters())) + stacked)
        difference = {key: (torch.linalg.vector_norm((ours.gradients[key] - gradients[key]).double()) /
                            torch.linalg.vector_norm(gradients[key].double())).item() for key in gradients}
        worst = max(difference, key=difference.get)
        self.close(f"{name}: worst gradient: {worst}", difference[worst])

    def compare_texts(self, name, module, directory, lengths=(5, 1, 31, 12), count=24):
        """Greedy tokens of prompts of different lengths, together and each as if alone; their log-probabilities."""
        prompts = [list(map(int, self.windows[i % SEQUENCES, :length])) for i, length in enumerate(lengths)]
        arguments = [a for prompt in prompts for a in ("--prompt-ids", ",".join(map(str, prompt)))]
        made = tutti("generate", directory, *arguments, "--ids", "--greedy", "--ignore-eos", "--max-tokens", count,
                     "--prompt-logprobs")
        for prompt, output in zip(prompts, made["outputs"], strict=True):
            self.assertEqual(output["prompt_ids"], prompt)
            self.assertEqual(output["tokens"], greedy(module, prompt, count), f"{name}, prompt of {len(prompt)}")
            whole = torch.tensor([prompt + output["tokens"]])
            with torch.no_grad():
                expected = torch.log_softmax(module(whole[:, :-1]).logits[0].double(), -1).gather(1, whole[0, 1:, None])[:, 0]
            ours = torch.tensor(output["prompt_logprobs"][1:] + output["logprobs"], dtype=torch.float64)
            worst = (ours - expected).abs().max().item()
            self.assertLess(worst, 1e-4, f"{name}: log-probabilities after a prompt of {len(prompt)}")

    def same_bytes(self, a, b):
        first, second = all_tensors(a), all_tensors(b)
        self.assertEqual(sorted(first), sorted(second))
        for name, tensor in first.items():
            self.assertEqual(tensor.dtype, second[name].dtype, name)
            self.assertTrue(torch.equal(tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor,
                                        second[name].contiguous().view(torch.uint8) if tensor.ndim else tensor), name)

    def round_trip(self, name, directory):
        tutti("convert", "--from", directory, "--to", self.folder / "tutti")
        tutti("convert", "--from", self.folder / "tutti", "--to", self.folder / "back")
        self.same_bytes(directory, self.folder / "back")
        self.assertTrue(torch.equal(logits(load_module(directory), self.windows),
                                    logits(load_module(self.folder / "back"), self.windows)), name)

    def test_families(self):
        for name in MODELS:
            with self.subTest(name):
                self.setUp()
                directory = self.folder / "hf"
                module = make_module(name)
                module.save_pretrained(directory)
                self.compare_outputs(name, module, directory)
                self.compare_texts(name, module, directory)
                self.round_trip(name, directory)

    def test_types_and_shards(self):
        for name, dtype, shard in (("llama", torch.bfloat16, "30KB"), ("gpt2", torch.float16, "5GB"),
                                   ("qwen3", torch.bfloat16, "50KB"), ("mistral", torch.float16, "20KB")):
            with self.subTest(name, dtype=dtype):
                self.setUp()
                directory = self.folder / "hf"
                module = make_module(name).to(dtype)
                module.save_pretrained(directory, max_shard_size=shard)
                self.assertEqual((directory / "model.safetensors.index.json").exists(), shard != "5GB")
                self.round_trip(name, directory)
                module = load_module(directory, torch.float32)  # module.float() would keep rounded RoPE frequencies
                self.compare_outputs(f"{name} {dtype}", module, directory)
                # And ours in shards, in another type.
                tutti("convert", "--from", directory, "--to", self.folder / "f32", "--format", "hf", "--dtype", "f32",
                      "--max-shard-size", 40000)
                self.assertTrue((self.folder / "f32" / "model.safetensors.index.json").exists())
                wide = load_module(self.folder / "f32")
                self.assertEqual(wide.dtype, torch.float32)
                self.assertTrue(torch.equal(logits(wide, self.windows), logits(module, self.windows)))

    def test_gpt2_as_published(self):
        """Without the prefix, with the buffers of the attention masks."""
        directory = self.folder / "hf"
        module = make_module("gpt2")
        module.save_pretrained(directory)
        tensors = {key.removeprefix("transformer."): value for key, value in all_tensors(directory).items()}
        for layer in range(3):
            tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, 96, 96))
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        from safetensors.torch import save_file
        save_file({key: value.contiguous() for key, value in tensors.items()}, directory / "model.safetensors",
                  {"format": "pt"})
        self.compare_outputs("gpt2 as published", module, directory)
        tutti("convert", "--from", directory, "--to", self.folder / "back", "--format", "hf")
        self.assertTrue(torch.equal(logits(load_module(self.folder / "back"), self.windows),
                                    logits(module, self.windows)))

    def fine_tune(self, model, out, steps):
        """A run of the program on a token file; returns the metrics."""
        tokens = numpy.asarray(self.windows[:, :-1], dtype=numpy.uint16).repeat(4, axis=0)
        (self.folder / "tokens.bin").write_bytes(tokens.tobytes())
        config = peer.config_text(
            model, data=dict(train=[str(self.folder / "tokens.bin")], format="nanogpt"),
            train=dict(steps=steps, seq_len=32, global_batch=2, micro_batch=1, seed=SEED, threads=1),
            optimizer=dict(lr=1e-3, warmup_steps=0), precision=dict(compute="f32"), log=dict(every=1))
        (self.folder / "run.toml").write_text(config)
        tutti("train", self.folder / "run.toml", "--out", out)
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]

    def test_fine_tuning(self):
        """The first loss is the peer's; the trained weights come back, and transformers continues as Tutti does."""
        for name in ("gpt2", "llama_tied_scaled", "mistral", "qwen2", "qwen3_window_between", "qwen3", "mixtral",
                     "qwen2_moe_sparse", "qwen3_moe", "lfm2", "lfm2_biases"):
            with self.subTest(name):
                self.setUp()
                directory, run, back = (self.folder / part for part in ("hf", "run", "back"))
                module = make_module(name)
                module.save_pretrained(directory)
                (directory / "tokenizer.json").write_text(small_tokenizer(SIZES["vocab_size"]))
                # Without a class transformers gives the tokenizer of a Qwen the pattern of Qwen's, and Tutti refuses it.
                (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
                steps = self.fine_tune({"hf": str(directory)}, run, 3)
                self.assertEqual([step["step"] for step in steps], [1, 2, 3])
                tutti("convert", "--from", run, "--to", back)
                for file in ("tokenizer.json", "generation_config.json"):
                    self.assertEqual((back / file).read_bytes(), (directory / file).read_bytes())
                trained = load_module(back)
                changed = max((a - b).abs().max().item() for a, b in
                              zip(module.parameters(), trained.parameters(), strict=True))
                self.assertGreater(changed, 1e-4, "nothing was trained")
                self.compare_texts(name, trained, run, lengths=(5, 1, 8))  # the run was trained on 32 positions
                self.compare_outputs(f"{name} trained", trained, back)
                # Resuming needs the directory no more.
                directory.rename(self.folder / "gone")
                self.fine_tune({"hf": str(directory), **self.model_fields(run)}, run, 5)

    def model_fields(self, run):
        """What the run's own config.toml says of the model."""
        fields, section = {}, ""
        for line in (run / "config.toml").read_text().splitlines():
            if line.startswith("["):
                section = line
            elif section == "[model]" and line:
                key, value = line.split(" = ", 1)
                if not key.startswith(("preset", "hf")):
                    fields[key] = json.loads(value)
        return fields

    def test_first_loss(self):
        directory = self.folder / "hf"
        module = make_module("qwen3")
        module.save_pretrained(directory)
        first = self.fine_tune({"hf": str(directory)}, self.folder / "run", 1)[0]
        ids = numpy.fromfile(self.folder / "tokens.bin", dtype=numpy.uint16).astype(numpy.int64)
        windows = [ids[start:start + 33] for start in range(0, len(ids) - 32, 32)]
        losses = []
        with torch.no_grad():
            for window in windows:
                scores = module(input_ids=torch.as_tensor(window[None, :-1])).logits[0]
                losses.append(torch.nn.functional.cross_entropy(scores, torch.as_tensor(window[1:])).item())
        means = [(a + b) / 2 for i, a in enumerate(losses) for b in losses[:i]]  # global_batch is 2
        self.close("loss of the first step: the nearest mean of two windows",
                   min(abs(mean - first["loss"]) for mean in means) / first["loss"])

    def test_texts_with_a_tokenizer(self):
        """Prompts as text: bos in front where the directory says so, an end at each eos id that it names."""
        testdata = pathlib.Path(__file__).parents[2] / "src/tutti/text/testdata"
        prompts = ["the cat", "a", "In the beginning God created", "12, é 日本"]
        begin, end = "<|im_start|>", "<|endoftext|>"  # ids 1 and 0
        template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": begin, "type_id": 0}},
                                                             {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {begin: {"id": begin, "ids": [1], "tokens": [begin]}}}
        cases = {  # tokenizer file, its post-processor, tokenizer_config.json, ids in front of each prompt
            "template": ("llama3.json", template, {}, [1]),
            "template against add_bos_token": ("llama3.json", template, {"add_bos_token": False}, [1]),
            "no template": ("gpt2.json", None, {"add_bos_token": True}, []),
            "sentencepiece": ("sentencepiece.model", None, {"add_bos_token": True, "tokenizer_class": "LlamaTokenizer",
                                                            "bos_token": "<s>", "eos_token": "</s>"}, [1]),
            "sentencepiece without": ("sentencepiece.model", None, {"tokenizer_class": "LlamaTokenizer",
                                                                    "bos_token": "<s>", "eos_token": "</s>"}, []),
        }
        for case, (file, processor, tokenizer_config, prefix) in cases.items():
            with self.subTest(case):
                self.setUp()
                directory = self.folder / "hf"
                directory.mkdir()
                if file.endswith(".json"):
                    tokenizer = json.loads((testdata / file).read_text())
                    tokenizer["post_processor"] = processor
                    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
                    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin,
                                        "eos_token": end, **tokenizer_config}
                else:
                    (directory / "tokenizer.model").write_bytes((testdata / file).read_bytes())
                (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
                theirs = transformers.AutoTokenizer.from_pretrained(directory)
                torch.manual_seed(SEED)
                config = transformers.Qwen3Config(**dict(SIZES, vocab_size=len(theirs)))
                module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
                ids = [theirs(prompt).input_ids for prompt in prompts]
                for one in ids:
                    self.assertEqual(one[:len(prefix)], prefix)
                whole = [greedy(module, one, 40) for one in ids]
                # Two ends that the texts reach, and one that they do not.
                module.generation_config = transformers.GenerationConfig(
                    eos_token_id=[whole[0][3], whole[1][9], len(theirs) - 1], pad_token_id=0, do_sample=False)
                module.save_pretrained(directory)
                arguments = [a for prompt in prompts for a in ("--prompt", prompt)]
                made = tutti("generate", directory, *arguments, "--greedy", "--max-tokens", 40)["outputs"]
                ends = set()
                for prompt, one, output in zip(prompts, ids, made, strict=True):
                    self.assertEqual(output["prompt_ids"], one, prompt)
                    expected = module.generate(torch.tensor([one]), max_new_tokens=40)[0, len(one):].tolist()
                    stopped = expected[-1] in module.generation_config.eos_token_id
                    self.assertEqual(output["tokens"], expected[:-1] if stopped else expected, prompt)
                    self.assertEqual(output["ended_by"], "token" if stopped else "length")
                    ends.add(expected[-1])
                self.assertGreaterEqual(len(ends), 2)

    def test_models_of_ones_own(self):
        """A run that began from nothing, whose config.json Tutti writes itself."""
        for name, change in (("gpt2_tied", {}), ("llama_untied_kv3_scaled", {}), ("llama_tied_kv2", dict(window=9)),
                             ("llama_tied_kv2", dict(qkv_bias=True)), ("llama_tied_kv2", dict(qkv_bias=True, window=9)),
                             ("llama_tied_kv2", dict(head_norm=True, head_dim=16)),
                             ("llama_tied_kv2", dict(head_norm=True, window=9)),
                             ("llama_tied_kv2", {"head_norm": True, "window": 9, "window_layers": "0,2"}),
                             ("llama_tied_kv2", dict(qkv_bias=True, output_bias=True, mlp_bias=True)),
                             ("llama_tied_kv2", dict(family="lfm2", head_norm=True, conv_layers="0", conv_kernel=3)),
                             ("llama_tied_kv2", dict(family="lfm2", head_norm=True, conv_layers="0,2", conv_kernel=2,
                                                     conv_bias=True, head_dim=16)),
                             ("llama_tied_kv2", {"rope_scaling.type": "yarn", "rope_scaling.factor": 4.0,
                                                 "rope_scaling.original_max_positions": 64})):
            with self.subTest(name, **change):
                self.setUp()
                run, back = self.folder / "run", self.folder / "back"
                self.fine_tune({**peer.MODELS[name], **change}, run, 2)
                tutti("convert", "--from", run, "--to", back)
                # From the run, whose model was never read from config.json; it was trained on 32 positions.
                self.compare_texts(f"{name} {change}", load_module(back), run, lengths=(5, 1, 8))
                self.compare_outputs(f"{name} {change}", load_module(back), back)


class ConfigKeys(unittest.TestCase):
    """Each key of each family's config.json removed, and changed: Tutti computes what transformers computes, or refuses.

    A key that one class reads and another one of the same family ignores shows here, and so does a default of an absent
    key that is another class's.
    """

    IGNORED = {"architectures", "model_type", "transformers_version", "dtype", "vocab_size", "initializer_range", "use_cache",
               "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout", "output_router_logits",
               "router_aux_loss_coef"}

    @staticmethod
    def changes(value, layers):
        if isinstance(value, bool):
            return [not value]
        if isinstance(value, int):
            return [value + 1, max(1, value // 2), 0]
        if isinstance(value, float):
            return [value * 2, value / 2 if value else 0.5]
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            return [value[::-1], value[1:] + value[:1]]
        if isinstance(value, list):
            return [[], [0], [layers - 1]]
        if value is None:
            return [1, 9]
        return []

    @staticmethod
    def inside(config, path):
        for key in path:
            config = config[key]
        return config

    def variants(self, config):
        layers = config.get("num_hidden_layers", config.get("n_layer", 3))
        yield "as it is", config
        parts = [()]  # paths of objects in objects
        for where in parts:
            part = self.inside(config, where)
            parts += [(*where, key) for key, value in part.items()
                      if isinstance(value, dict) and (where or key.startswith("rope_"))]
            for key, value in part.items():
                if key in self.IGNORED or key.startswith("_") or key.endswith("token_id"):
                    continue
                null = [None] if value is not None else []
                for change in ["absent", *null, *self.changes(value, layers)]:
                    changed = json.loads(json.dumps(config))
                    target = self.inside(changed, where)
                    target.pop(key) if change == "absent" else target.update({key: change})
                    yield f"{'.'.join((*where, key))} = {change}", changed

    def losses(self, folder, window):
        """transformers' and Tutti's loss; None where one of them cannot read the directory."""
        shutil.rmtree(folder.parent / "run", ignore_errors=True)
        result = subprocess.run(
            [TUTTI, "train", folder.parent / "c.toml", "--out", folder.parent / "run", "--resume", "never", "--set", f"model.hf={folder}", "--json"],
            capture_output=True, text=True)
        ours = json.loads(result.stdout)["loss"] if result.returncode == 0 else None
        if ours is None and result.returncode not in (2, 3):
            raise AssertionError(result.stderr)
        try:
            module, info = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
            if any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")):
                return None, ours
            return float(torch.nn.functional.cross_entropy(logits(module.eval(), window)[0], torch.as_tensor(window[0, 1:]))), ours
        except Exception:  # of whatever kind: transformers does not read this config either
            return None, ours

    NAMES = ("gpt2", "llama_yarn", "mistral", "qwen2_window_above", "qwen3_window_between", "mixtral_balanced",
             "qwen2_moe_window", "qwen3_moe_window", "lfm2", "lfm2_moe", "nemotron_h_experts", "mamba2", *VARIANTS)  # each family

    def test_every_key(self):
        silent, refused, same = [], 0, 0
        window = numpy.random.default_rng(SEED).integers(0, 211, (1, 33))
        for name in self.NAMES:
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                (folder / "tokens.bin").write_bytes(window.astype("<u2").tobytes())
                (folder / "c.toml").write_text(
                    f'[data]\ntrain = ["{folder}/tokens.bin"]\n[train]\nsteps = 1\nseq_len = 32\nglobal_batch = 1\n'
                    'micro_batch = 1\ndevice = "cpu"\nthreads = 1\n'
                    '[precision]\ncompute = "f32"\n[checkpoint]\nevery = 0\n')
                make_module(name).save_pretrained(folder / "hf")
                config = json.loads((folder / "hf/config.json").read_text())
                for what, changed in self.variants(config):
                    (folder / "hf/config.json").write_text(json.dumps(changed))
                    theirs, ours = self.losses(folder / "hf", window)
                    refused += ours is None
                    if theirs is None or ours is None or not numpy.isfinite(theirs):
                        continue
                    same += 1
                    if not abs(theirs - ours) < 2e-5 * abs(theirs):
                        silent.append(f"{name}: {what}: transformers {theirs:.6f}, Tutti {ours:.6f}")
        print(f"{same} settings compared, {refused} refused by Tutti")
        self.assertGreater(same, 5 * len(self.NAMES))  # most keys are read, not refused
        self.assertEqual(silent, [])


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all(os.path.isfile(path) for path in sys.argv[1:3]):
        sys.exit(f"test_hf.py: the first arguments are tutti_peer_dump and tutti, got {sys.argv[1:]}")
    DUMP, TUTTI = sys.argv.pop(1), sys.argv.pop(1)
    torch.set_num_threads(1)  # tensors are tiny, and ctest runs other tests beside this one
    transformers.logging.set_verbosity_error()
    unittest.main(verbosity=2)
