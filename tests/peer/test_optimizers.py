#!/usr/bin/env python3
"""Optimizers beside their definition in float64 PyTorch, and beside bitsandbytes: the program trains, these files judge.

    test_optimizers.py TUTTI [Muon | EightBit]

Models are made by transformers, imported, trained by `tutti train` and exported again. The text has the period of a
sample, so that every sample is the same one, whatever their order.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import peer

PROGRAM = None
SEED, LENGTH, STEPS = 20261126, 32, 3
NUMBERS = dict(lr=2e-2, weight_decay=0.1, clip=1.0, beta1=0.9, beta2=0.95, eps=1e-8, muon_momentum=0.95)
SIMPLE = 5 * [(3.4445, -4.7750, 2.0315)]


def tutti(*words):
    result = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"tutti {' '.join(map(str, words))}: exit code {result.returncode}\n{result.stderr}{result.stdout}")


class Trained(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.folder = pathlib.Path(self.place.name)
        tokens = numpy.random.default_rng(SEED).integers(0, 211, LENGTH).astype(numpy.uint16)
        self.window = torch.tensor([*tokens, tokens[0]], dtype=torch.long)[None]
        (self.folder / "tokens.bin").write_bytes(numpy.tile(tokens, 12)[:10 * LENGTH + 1].tobytes())

    def imported(self, model):
        torch.manual_seed(SEED)
        module = peer.make_gpt2(model) if model["family"] == "gpt2" else peer.make_llama(model)
        with torch.no_grad():
            for p in module.parameters():
                p.normal_(1.0 if p.ndim == 1 else 0.0, 0.15)
        module.save_pretrained(self.folder / "hf")
        return module.eval()

    def train(self, out, steps, /, **optimizer):
        config = peer.config_text(
            {"hf": str(self.folder / "hf")}, data=dict(train=[str(self.folder / "tokens.bin")], format="nanogpt"),
            train=dict(steps=steps, seq_len=LENGTH, global_batch=2, micro_batch=1, seed=SEED, threads=1),
            optimizer=dict(NUMBERS, schedule="constant", warmup_steps=0, **optimizer), precision=dict(compute="f32"))
        (self.folder / "run.toml").write_text(config)
        tutti("train", self.folder / "run.toml", "--out", self.folder / out)
        return self.folder / out


def orthogonalised(matrix):
    """Jordan et al. 2024, in float64."""
    x = matrix / (matrix.norm() + 1e-7)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    for a, b, c in SIMPLE:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def is_matrix_of_a_layer(name, p):
    return p.ndim == 2 and not any(part in name for part in ("wte", "wpe", "embed_tokens", "lm_head"))


def muon_steps(module, window, steps):
    """Every parameter of `module` (float64) after so many steps; AdamW for what is no matrix of a layer."""
    n = NUMBERS
    state = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in module.named_parameters()}
    for t in range(1, steps + 1):
        module.zero_grad()
        logits = module(input_ids=window[:, :-1], use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in module.parameters()))
        with torch.no_grad():
            for name, p in module.named_parameters():
                g, (m, v) = p.grad * min(1.0, n["clip"] / (norm.item() + 1e-6)), state[name]
                decay = n["weight_decay"] if p.ndim >= 2 else 0.0
                if is_matrix_of_a_layer(name, p):
                    m.mul_(n["muon_momentum"]).add_(g)
                    # GPT-2's Conv1D (in, out) has q, k and v beside each other; the others are one matrix.
                    parts = 3 if "c_attn" in name else 1
                    update = torch.cat([orthogonalised(x) * 0.2 * math.sqrt(max(x.shape))
                                        for x in (g + n["muon_momentum"] * m).chunk(parts, dim=1)], dim=1)
                else:
                    m.mul_(n["beta1"]).add_(g, alpha=1 - n["beta1"])
                    v.mul_(n["beta2"]).addcmul_(g, g, value=1 - n["beta2"])
                    update = m / (1 - n["beta1"] ** t) / ((v / (1 - n["beta2"] ** t)).sqrt() + n["eps"])
                p.mul_(1 - n["lr"] * decay).sub_(n["lr"] * update)
    return dict(module.named_parameters())


class Muon(Trained):
    """In f32, beside float64: every weight within 1e-4 (relative, L2) after three steps."""

    def compare(self, name):
        module = self.imported(peer.MODELS[name])
        before = {key: p.detach().clone() for key, p in module.named_parameters()}
        run = self.train(name, STEPS, name="muon")
        tutti("convert", "--from", run, "--to", self.folder / f"{name}_back")
        ours = dict(AutoModelForCausalLM.from_pretrained(self.folder / f"{name}_back").named_parameters())
        theirs = muon_steps(module.double(), self.window, STEPS)
        self.assertEqual(set(ours), set(theirs))
        apart = {key: (ours[key].double() - p).detach() for key, p in theirs.items()}
        for key, difference in apart.items():
            if "c_attn.bias" in key:  # the bias of keys has no effect on a softmax: AdamW makes full steps of its rounding
                difference[len(difference) // 3:2 * len(difference) // 3] = 0
        worst = {key: (apart[key].norm() / p.norm()).item() for key, p in theirs.items()}
        moved = min(((p - before[key]).norm() / p.norm()).item() for key, p in theirs.items())
        print(f"  {name}: worst {max(worst.values()):.2e} of {max(worst, key=worst.get)}; least change {moved:.1e}")
        self.assertLess(max(worst.values()), 1e-4, worst)
        self.assertGreater(moved, 1e-2)

    def test_gpt2(self):
        self.compare("gpt2_tied")
        self.compare("gpt2_wide_heads")

    def test_llama(self):
        self.compare("llama_untied_kv3_scaled")
        self.compare("llama_wide_heads_kv1")


class EightBit(Trained):
    """Moments as bytes beside bitsandbytes' own quantisation of the same moments in f32."""

    def state(self, run):
        tensors = {}
        for file in sorted((run / "checkpoints").glob("step-*/*.safetensors")):
            tensors.update(load_file(file))
        return tensors

    def test_codes(self):
        import bitsandbytes.functional as bnb
        self.imported(dict(peer.MODELS["llama_wide_heads_kv1"]))
        wide = self.state(self.train("wide", 1, m="f32", v="f32"))
        bytes_ = self.state(self.train("bytes", 1, m="u8", v="u8"))
        compared = other = 0
        for name, codes in bytes_.items():
            if codes.dtype != torch.uint8:
                continue
            moment = "m" if name.startswith("optimizer.m.") else "v"
            table = bnb.create_dynamic_map(signed=moment == "m")
            x, largest = wide[name].flatten(), bytes_[name.replace(f".{moment}.", f".{moment}_absmax.")].flatten()
            theirs, how = bnb.quantize_blockwise(x, code=table, blocksize=256)
            self.assertTrue(torch.equal(how.absmax, largest), name)
            mine, theirs = codes.flatten().long(), theirs.flatten().long()
            # On a CPU bitsandbytes finds the nearest value by a coarse table and may miss it, near 0 by some codes. Where
            # it does, ours is nearer.
            share = x / largest.repeat_interleave(256)[:x.numel()]
            apart = mine != theirs
            errors = [(table[c] - share).abs()[apart] for c in (mine, theirs)]
            guarded = (mine[apart] == 1) & (theirs[apart] == 0) & (moment == "v")  # a v above 0 is never stored as 0
            self.assertTrue(bool((guarded | (errors[0] <= errors[1])).all()), name)
            compared += x.numel()
            other += int(apart.sum())
        print(f"  {compared} codes, of which {other} ({other / compared:.2%}) are other than bitsandbytes', and nearer")
        self.assertGreater(compared, 200000)
        self.assertLess(other / compared, 0.15)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        sys.exit(f"test_optimizers.py: the first argument is tutti, got {sys.argv[1:]}")
    PROGRAM = sys.argv.pop(1)
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
