"""The two sides of the peer tests: Tutti through tutti_peer_dump, and the same model in transformers with its weights.

Stands on torch, transformers, safetensors (the virtual environment of scripts/test.sh --peer); test_models.py calls it.
"""

import inspect
import json
import math
import pathlib
import subprocess
import tempfile

import numpy
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

# Sizes are odd on purpose: no multiple of a vector, a tile or a chunk.
GPT2 = dict(family="gpt2", vocab=211, width=48, layers=3, heads=6, kv_heads=6, head_dim=8, ffn=112, max_positions=96,
            norm_eps=1e-5, rope_theta=0, init_std=0.15)
LLAMA = dict(family="llama", vocab=211, width=48, layers=3, heads=6, kv_heads=2, head_dim=8, ffn=112,
             max_positions=512, norm_eps=1e-5, rope_theta=10000, init_std=0.15)
# With head_dim 8 the wavelengths are 6.3, 63, 628 and 6283: kept, blended and divided for 128 original positions.
SCALING = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128)

MODELS = {
    "gpt2_tied": dict(GPT2, tie_embeddings=True),
    "gpt2_untied": dict(GPT2, tie_embeddings=False),
    "gpt2_wide_heads": dict(GPT2, tie_embeddings=True, width=192, heads=3, kv_heads=3, head_dim=64, ffn=448, layers=2),
    "llama_tied_kv2": dict(LLAMA, tie_embeddings=True),
    "llama_untied_kv3_scaled": dict(LLAMA, tie_embeddings=False, kv_heads=3, rope_scaling=SCALING),
    "llama_wide_heads_kv1": dict(LLAMA, tie_embeddings=True, width=192, heads=3, kv_heads=1, head_dim=64, ffn=320,
                                 layers=2),
}


def toml_value(value):
    return json.dumps(value)  # booleans, numbers and texts are written alike


def config_text(model, **sections):
    """The config of tutti_peer_dump: `model` with preset = "", then one table per keyword."""
    tables = {"model": {"preset": "", "dropout": 0.0}, **sections}
    for key, value in model.items():
        if isinstance(value, dict):
            tables["model"].update({f"{key}.{k}": v for k, v in value.items()})
        else:
            tables["model"][key] = value
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def make_windows(windows, seq_len, vocab, seed):
    """(windows, seq_len + 1) tokens that can be learnt; every third window ends in an ignored target."""
    random = numpy.random.default_rng(seed)
    tokens = numpy.empty((windows, seq_len + 1), dtype=numpy.int32)
    tokens[:, 0] = random.integers(0, vocab, windows)
    for t in range(seq_len):
        tokens[:, t + 1] = (3 * tokens[:, t] + 7 + random.integers(0, 5, windows)) % vocab
    tokens[::3, -1] = -100
    return tokens


class Dump:
    """One run of tutti_peer_dump: `weights`, then either `outputs` and `gradients` or `steps`."""

    def __init__(self, program, mode, config, windows, options=()):
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            (folder / "config.toml").write_text(config)
            windows.astype("<i4").tofile(folder / "tokens.bin")
            command = [program, mode, folder / "config.toml", folder / "tokens.bin", folder, *options]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                raise RuntimeError(f"tutti_peer_dump {mode}: exit code {result.returncode}\n{result.stderr}\n{config}")
            self.weights = load_file(folder / "weights.safetensors")
            if mode == "train":
                self.steps = json.loads(result.stdout)
            else:
                self.outputs = load_file(folder / "outputs.safetensors")
                self.gradients = load_file(folder / "gradients.safetensors")


class Peer:
    """transformers' model of the same sizes, with Tutti's weights; speaks Tutti's parameter names."""

    def __init__(self, model, weights):
        self._wrap(make_gpt2(model) if model["family"] == "gpt2" else make_llama(model))
        own = dict(self.module.named_parameters())
        if set(own) != {self._name(name) for name in weights}:
            raise AssertionError(f"parameters differ: {set(own) ^ {self._name(n) for n in weights}}")
        with torch.no_grad():
            for name, value in weights.items():
                target = own[self._name(name)]
                value = self._orient(name, value)
                if target.shape != value.shape:
                    raise AssertionError(f"{name}: shape {tuple(value.shape)}, transformers has {tuple(target.shape)}")
                target.copy_(value)

    @classmethod
    def of(cls, module):
        """A model of transformers with weights of its own."""
        self = cls.__new__(cls)
        self._wrap(module)
        return self

    def _wrap(self, module):
        self.module = module
        self.gpt2 = isinstance(module, GPT2LMHeadModel)
        self.module.eval()  # no dropout in either; gradients are taken all the same

    def _name(self, name):
        return f"transformer.{name}" if self.gpt2 and not name.startswith("lm_head") else name

    def _orient(self, name, value):
        """GPT-2's Conv1D is stored (in, out); Tutti's linears are (out, in)."""
        conv = self.gpt2 and any(part in name for part in (".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
        return value.t() if conv else value

    def logits(self, tokens):
        return self.module(input_ids=tokens, use_cache=False).logits.float()

    def loss_sum(self, windows):
        """Sum of the losses of the valid targets, and each (B, T); windows (B, T + 1)."""
        windows = torch.as_tensor(windows, dtype=torch.long)
        targets = windows[:, 1:]
        logits = self.logits(windows[:, :-1])
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100,
                                                   reduction="none")
        return losses.sum(), losses.view(targets.shape)

    def balancing_loss(self, windows):
        """What transformers adds to the mean loss of the batch; None where its config asks for nothing."""
        config = self.module.config
        if not getattr(config, "output_router_logits", False):
            return None
        tokens = torch.as_tensor(windows, dtype=torch.long)[:, :-1]
        return config.router_aux_loss_coef * self.module(input_ids=tokens, use_cache=False).aux_loss

    def gradients(self, names):
        own = {name.replace(".mlp.router.", ".mlp.gate."): p for name, p in self.module.named_parameters()}
        gated = hasattr(self.module.config, "linear_num_key_heads")
        scans = self.module.config.model_type in SCANS
        return {name: self._scan_gradient(name, own) if scans else
                self._expert_gradient(name, own) if ".experts." in name else
                self._delta_gradient(name, own) if gated and (".linear_attn." in name or ".self_attn." in name) else
                self._rows_gradient(name, own) if self._name(name) not in own else
                self._orient(name, own[self._name(name)].grad) for name in names}

    def _scan_gradient(self, name, own):
        """Mamba-2 keeps its projections in one matrix, and its convolutions; Granite 4 gate and up."""
        if not any(key.startswith("backbone.") for key in own):  # Nemotron-H, whose files have another prefix
            name = name.replace("backbone.", "model.")
        block, part, kind = name.rsplit(".", 2) if name.count(".") > 1 else ("", "", name)
        config = self.module.config
        if part in ("z_proj", "x_proj", "B_proj", "C_proj", "dt_proj", "x_conv", "B_conv", "C_conv"):
            heads = own[f"{block}.A_log"].shape[0]
            channels = own[f"{block}.out_proj.weight"].shape[1]
            conv = own[f"{block}.conv1d.weight"].shape[0]
            groups = (conv - channels) // 2
            if part.endswith("_conv"):
                return own[f"{block}.conv1d.{kind}"].grad.split([channels, groups, groups])[
                    ("x_conv", "B_conv", "C_conv").index(part)]
            return own[f"{block}.in_proj.{kind}"].grad.split([channels, channels, groups, groups, heads])[
                ("z_proj", "x_proj", "B_proj", "C_proj", "dt_proj").index(part)]
        if config.model_type == "granitemoehybrid" and ".mlp." in name:
            layer = name[:name.index(".mlp.")]
            if name.endswith(".mlp.gate.weight"):
                return own[f"{layer}.block_sparse_moe.router.weight"].grad
            if ".experts." in name:
                block = f"{layer}.block_sparse_moe.experts"
            else:
                whole = own[f"{layer}.shared_mlp.{'output' if part == 'down_proj' else 'input'}_linear.weight"].grad
                return whole if part == "down_proj" else whole.chunk(2)[part == "up_proj"]
        if ".experts." in name:
            gated = f"{block}.gate_up_proj" in own and part != "down_proj"
            return own[f"{block}.gate_up_proj"].grad.chunk(2, 1)[part == "up_proj"] if gated else own[f"{block}.{part}"].grad
        return own[name].grad

    def _delta_gradient(self, name, own):
        """Qwen3-Next keeps the projections of its delta rule in two matrices, by key head, Qwen3.5 three of them in one;
        both its convolutions in one, and queries and gates of attention, by head."""
        config, (block, part) = self.module.config, name.removesuffix(".weight").rsplit(".", 1)
        heads, group = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
        key, values = config.linear_key_head_dim, group * config.linear_value_head_dim

        def grad(matrix):
            return own[f"{block}.{matrix}.weight"].grad

        def of_head(matrix, parts, sizes):  # rows of a head side by side
            whole = grad(matrix).unflatten(0, (-1, sum(sizes)))
            return whole.split(sizes, dim=1)[parts.index(part)].flatten(0, 1)

        if block.endswith("self_attn") and part in ("q_proj", "gate_proj"):
            return of_head("q_proj", ("q_proj", "gate_proj"), 2 * [config.head_dim])
        if part in ("q_conv", "k_conv", "v_conv"):
            return grad("conv1d").split([heads * key, heads * key, heads * values])[
                ("q_conv", "k_conv", "v_conv").index(part)]
        if block + ".in_proj_qkvz.weight" in own and part in ("q_proj", "k_proj", "v_proj", "in_proj_z"):
            return of_head("in_proj_qkvz", ("q_proj", "k_proj", "v_proj", "in_proj_z"), [key, key, values, values])
        if block + ".in_proj_ba.weight" in own and part in ("in_proj_b", "in_proj_a"):
            return of_head("in_proj_ba", ("in_proj_b", "in_proj_a"), [group, group])
        if block.endswith("linear_attn") and part in ("q_proj", "k_proj", "v_proj"):
            return grad("in_proj_qkv").split([heads * key, heads * key, heads * values])[
                ("q_proj", "k_proj", "v_proj").index(part)]
        return own[name].grad

    def _rows_gradient(self, name, own):
        """Phi-3 keeps q, k and v in one matrix, and GLM gate and up; Tutti has a matrix of each."""
        matrix, config = name.removesuffix(".weight").rsplit(".", 1)[1], self.module.config
        whole = own[name.replace(matrix, "qkv_proj" if matrix in ("q_proj", "k_proj", "v_proj") else
                                 "gate_up_proj")].grad
        if matrix in ("gate_proj", "up_proj"):
            return whole.chunk(2)[matrix == "up_proj"]
        size = whole.shape[0] // (config.num_attention_heads + 2 * config.num_key_value_heads)
        sizes = [heads * size for heads in (config.num_attention_heads, *2 * [config.num_key_value_heads])]
        return whole.split(sizes)[("q_proj", "k_proj", "v_proj").index(matrix)]

    def _expert_gradient(self, name, own):
        """transformers 5 keeps an expert's gate and up in one matrix; Tutti has a stack of each."""
        block = name[:name.index(".experts.")] + ".experts."
        matrix, kind = name.rsplit(".", 2)[1:]
        if block + "gate_up_proj_bias" in own:  # gpt-oss: (in, out), gate and up alternate
            whole = own[block + ("down_proj" if matrix == "down_proj" else "gate_up_proj") +
                        ("_bias" if kind == "bias" else "")].grad
            whole = whole if kind == "bias" else whole.transpose(1, 2)
            return whole if matrix == "down_proj" else whole[:, matrix == "up_proj"::2]
        if matrix in ("down_proj", "w2"):
            return own[block + "down_proj"].grad
        gate, up = own[block + "gate_up_proj"].grad.chunk(2, dim=1)
        return gate if matrix in ("gate_proj", "w1") else up


SCANS = ("granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2")  # with the scan of Mamba-2


def parts_of_scan(name, model_type):
    """How many parameters more than this one Tutti has in its place."""
    more = {"in_proj.weight": 4, "conv1d.weight": 2, "conv1d.bias": 2, "shared_mlp.input_linear.weight": 1}
    return next((count for end, count in more.items() if model_type in SCANS and name.endswith(end)), 0)


def parts_of_delta_rule(name, gated):
    """How many parameters more than this one Tutti has in its place."""
    more = {"in_proj_qkvz.weight": 3, "in_proj_qkv.weight": 2, "in_proj_ba.weight": 1, "conv1d.weight": 2,
            "self_attn.q_proj.weight": 1} if gated else {}
    return next((count for end, count in more.items() if name.endswith(end)), 0)


def make_gpt2(model):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=model["vocab"], n_positions=model["max_positions"], n_embd=model["width"], n_layer=model["layers"],
        n_head=model["heads"], n_inner=model["ffn"], activation_function="gelu_new",
        layer_norm_epsilon=model["norm_eps"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=0, tie_word_embeddings=model["tie_embeddings"], attn_implementation="eager"))


def make_llama(model):
    scaling = model.get("rope_scaling")
    rope = {"rope_type": "default"}
    if scaling:
        rope = {"rope_type": "llama3", "factor": scaling["factor"], "low_freq_factor": scaling["low_freq_factor"],
                "high_freq_factor": scaling["high_freq_factor"],
                "original_max_position_embeddings": scaling["original_max_positions"]}
    if "rope_parameters" in inspect.signature(LlamaConfig.__init__).parameters:  # transformers 5
        places = {"rope_parameters": {**rope, "rope_theta": float(model["rope_theta"])}}
    else:
        places = {"rope_scaling": rope, "rope_theta": float(model["rope_theta"])}
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=model["vocab"], hidden_size=model["width"], intermediate_size=model["ffn"],
        num_hidden_layers=model["layers"], num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"], max_position_embeddings=model["max_positions"], rms_norm_eps=model["norm_eps"],
        attention_bias=False, mlp_bias=False, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=model["tie_embeddings"], attn_implementation="eager", **places))


def learning_rate(optimizer, steps, step):
    """The rate of update `step` (from 1), written apart from src/tutti/spec/learning_rate.cpp."""
    high, low, warmup = optimizer["lr"], optimizer["min_lr"], optimizer["warmup_steps"]
    if step <= warmup:
        return high * step / warmup
    progress = (step - warmup) / (steps - warmup)
    if optimizer["schedule"] == "cosine":
        return low + 0.5 * (high - low) * (1 + math.cos(math.pi * progress))
    if optimizer["schedule"] == "linear":
        return high - (high - low) * progress
    last = optimizer["decay_steps"]  # wsd
    return high - (high - low) * max(0, step - (steps - last)) / last


def make_optimizer(peer, optimizer):
    """torch's own, with weight decay on matrices only."""
    parameters = list(peer.module.parameters())
    groups = [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optimizer["weight_decay"]},
              {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]
    if optimizer["name"] == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=optimizer["momentum"])
    return torch.optim.AdamW(groups, lr=0.0, betas=(optimizer["beta1"], optimizer["beta2"]), eps=optimizer["eps"])


def train_peer(peer, optimizer, windows, steps, global_batch, micro_batch):
    """Loss and gradient norm of each step of the same run in PyTorch."""
    updater = make_optimizer(peer, optimizer)
    history = []
    for step in range(1, steps + 1):
        batch = windows[(step - 1) * global_batch:step * global_batch]
        terms = int((batch[:, 1:] >= 0).sum())
        updater.zero_grad()
        total = 0.0
        for first in range(0, global_batch, micro_batch):
            loss, _ = peer.loss_sum(batch[first:first + micro_batch])
            (loss / terms).backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(peer.module.parameters(), optimizer["clip"]).item()
        rate = learning_rate(optimizer, steps, step)
        for group in updater.param_groups:
            group["lr"] = rate
        updater.step()
        history.append({"step": step, "loss": total / terms, "grad_norm": norm, "lr": rate, "terms": terms})
    return history
