"""GPT-2 and Llama against transformers with the same weights: logits, loss, every gradient, and 20 training steps.

    python test_models.py build/release/tests/peer/tutti_peer_dump [Outputs | Bf16 | Training] [unittest options]

Run by ctest with label `peer`. Prints each difference that it measured beside the bound.
"""

import math
import os
import sys
import unittest

import torch

import peer

PROGRAM = None  # tutti_peer_dump, from the command line
OPTIONS = ["--reference"] if os.environ.get("TUTTI_PEER_TABLE") == "reference" else []
SEQ_LEN, SEQUENCES, SEED = 70, 3, 1234  # 70: past one tile of keys

# bf16: 8 significant bits. Each value that is stored is rounded by at most u of itself; over many values the errors act
# as independent with standard deviation below u / sqrt(3).
BF16_ROUNDOFF = 2.0 ** -8


def relative(ours, theirs):
    """L2 of the difference by L2 of the peer's value."""
    return (torch.linalg.vector_norm((ours - theirs).double()) / torch.linalg.vector_norm(theirs.double())).item()


def dump_outputs(model, compute="f32", **sections):
    """Tutti's outputs for one batch, and the batch."""
    windows = peer.make_windows(SEQUENCES, SEQ_LEN, model["vocab"], SEED)
    config = peer.config_text(model, train=dict(seq_len=SEQ_LEN, seed=SEED, threads=2),
                              precision=dict(compute=compute), **sections)
    return peer.Dump(PROGRAM, "outputs", config, windows, OPTIONS), windows


def inputs_of(windows):
    return torch.as_tensor(windows[:, :-1], dtype=torch.long)


def changed(model):
    """Models that differ from `model` in one thing: the comparison has to notice each."""
    yield "norm_eps", dict(model, norm_eps=1e-3)
    if model["family"] == "llama":
        yield "rope_theta", dict(model, rope_theta=model["rope_theta"] * 2)
    if "rope_scaling" in model:
        yield "rope_scaling", dict(model, rope_scaling=dict(model["rope_scaling"], high_freq_factor=2.0))


class Outputs(unittest.TestCase):
    """f32: logits within 1e-4 of the largest, loss and every gradient within 1e-4 (relative L2)."""

    BOUND = 1e-4

    def close(self, what, difference):
        print(f"  {what:<50} {difference:9.2e}  (bound {self.BOUND:.0e})")
        self.assertLessEqual(difference, self.BOUND, what)

    def compare(self, name, **sections):
        model = peer.MODELS[name]
        ours, windows = dump_outputs(model, **sections)
        theirs = peer.Peer(model, ours.weights)
        self.compare_logits(ours, theirs, windows, model)
        loss, losses = theirs.loss_sum(windows)
        terms = int((windows[:, 1:] >= 0).sum())
        (loss / terms).backward()
        self.close("loss", abs(ours.outputs["losses"].double().sum().item() - loss.item()) / loss.item())
        self.close("losses of each token", relative(ours.outputs["losses"], losses.detach()))
        expected = theirs.gradients(ours.gradients)
        worst = max(ours.gradients, key=lambda n: relative(ours.gradients[n], expected[n]))
        for parameter, gradient in ours.gradients.items():
            difference = relative(gradient, expected[parameter])
            self.assertLessEqual(difference, self.BOUND, parameter)
        self.close(f"worst gradient: {worst}", relative(ours.gradients[worst], expected[worst]))

    def compare_logits(self, ours, theirs, windows, model):
        with torch.no_grad():
            expected = theirs.logits(inputs_of(windows))
        largest = expected.abs().max()
        self.close("logits", ((ours.outputs["logits"] - expected).abs().max() / largest).item())
        first = SEQ_LEN // 3  # where the cached run begins
        cached = ours.outputs["cached_logits"][:, first:]
        self.close("logits through the key-value cache", ((cached - expected[:, first:]).abs().max() / largest).item())
        for what, other in changed(model):
            with torch.no_grad():
                wrong = peer.Peer(other, ours.weights).logits(inputs_of(windows))
            self.assertGreater(((ours.outputs["logits"] - wrong).abs().max() / largest).item(), 2 * self.BOUND,
                               f"another {what} passes unnoticed")

    def test_gpt2_tied(self):
        self.compare("gpt2_tied")

    def test_gpt2_untied(self):
        self.compare("gpt2_untied")

    def test_gpt2_wide_heads(self):
        self.compare("gpt2_wide_heads")

    def test_llama_tied_kv2(self):
        self.compare("llama_tied_kv2")

    def test_llama_untied_kv3_scaled(self):
        self.compare("llama_untied_kv3_scaled")

    def test_llama_wide_heads_kv1(self):
        self.compare("llama_wide_heads_kv1")

    def test_recompute(self):
        self.compare("llama_untied_kv3_scaled", recompute=dict(policy="every:2"))
        self.compare("gpt2_tied", recompute=dict(policy="full"))


class Bf16(unittest.TestCase):
    """bf16 logits against the f32 model with the same (bf16) weights."""

    # Stored values between embedding and logits: 13 in a Llama block (norm, q, rope, attention, o, add, norm, gate, up,
    # silu * up, down, add, and the probabilities inside attention), 3 outside. With independent roundings their squares
    # add: u / sqrt(3) sqrt(13 L + 3) of the logits in L2, if no operation enlarges a relative error. Norms and random
    # matrices do not; the product silu * up and the softmax of scores of size s do, by sqrt(2) and by up to s, about 2
    # in these models. Together 3.
    GAIN = 3

    def bound(self, model):
        return self.GAIN * BF16_ROUNDOFF / math.sqrt(3) * math.sqrt(13 * model["layers"] + 3)

    def compare(self, name):
        model = peer.MODELS[name]
        ours, windows = dump_outputs(model, "bf16")
        with torch.no_grad():
            exact = peer.Peer(model, ours.weights).logits(inputs_of(windows))
            rounded_peer = peer.Peer(model, ours.weights)
            rounded_peer.module.bfloat16()
            rounded = rounded_peer.logits(inputs_of(windows))
        error, peer_error = relative(ours.outputs["logits"], exact), relative(rounded, exact)
        print(f"  {name:<30} {error:9.2e}  (bound {self.bound(model):.2e}; PyTorch in bf16 {peer_error:.2e})")
        self.assertLessEqual(error, self.bound(model))
        self.assertGreaterEqual(error, BF16_ROUNDOFF / 10, "this is not bf16: the logits alone are rounded by u / 2.4")
        # PyTorch rounds at nearly the same places. More than half again its error is a sum that is taken in bf16.
        self.assertLessEqual(error, 1.5 * peer_error)

    def test_gpt2(self):
        self.compare("gpt2_tied")
        self.compare("gpt2_wide_heads")

    def test_llama(self):
        self.compare("llama_tied_kv2")
        self.compare("llama_untied_kv3_scaled")
        self.compare("llama_wide_heads_kv1")


class Training(unittest.TestCase):
    """20 updates on the same data: the loss of each step within 1e-4, the rates equal."""

    STEPS, GLOBAL_BATCH, MICRO_BATCH, LENGTH = 20, 6, 2, 33
    # Mistakes that this setting shows by more than 1e-4 (tried on PyTorch's side): no decay, decay on vectors, coupled
    # decay, no clip, a schedule that is one step off.
    ADAMW = dict(name="adamw", lr=1e-2, min_lr=1e-3, schedule="cosine", warmup_steps=5, beta1=0.9, beta2=0.95,
                 eps=1e-8, weight_decay=0.1, clip=2.0)
    # At lr = 0.2 the run is chaotic: PyTorch leaves itself by 5e-3 in 20 steps when its weights change by 1e-7; at 0.05
    # by 5e-6, which is what makes a bound of 1e-4 mean something.
    SGD = dict(name="sgd", lr=0.05, min_lr=0.005, schedule="wsd", warmup_steps=3, decay_steps=6, momentum=0.9,
               weight_decay=0.01, clip=8.0)

    def compare(self, name, optimizer, **sections):
        model = peer.MODELS[name]
        windows = peer.make_windows(self.STEPS * self.GLOBAL_BATCH, self.LENGTH, model["vocab"], SEED + 1)
        config = peer.config_text(
            model, optimizer=optimizer, precision=dict(compute="f32"),
            train=dict(steps=self.STEPS, seq_len=self.LENGTH, global_batch=self.GLOBAL_BATCH,
                       micro_batch=self.MICRO_BATCH, seed=SEED, threads=2), **sections)
        ours = peer.Dump(PROGRAM, "train", config, windows, OPTIONS)
        theirs = peer.train_peer(peer.Peer(model, ours.weights), optimizer, windows, self.STEPS, self.GLOBAL_BATCH,
                                 self.MICRO_BATCH)
        self.assertEqual(len(ours.steps), self.STEPS)
        worst = {"loss": 0.0, "grad_norm": 0.0}
        for mine, other in zip(ours.steps, theirs):
            self.assertEqual((mine["step"], mine["terms"]), (other["step"], other["terms"]))
            self.assertAlmostEqual(mine["lr"], other["lr"], delta=1e-12 * optimizer["lr"])
            for key in worst:
                worst[key] = max(worst[key], abs(mine[key] - other[key]) / other[key])
            self.assertLessEqual(abs(mine["loss"] - other["loss"]) / other["loss"], 1e-4, f"step {mine['step']}")
        print(f"  {name} {optimizer['name']}: loss {theirs[0]['loss']:.3f} -> {theirs[-1]['loss']:.3f}, worst relative "
              f"difference of a step: loss {worst['loss']:.2e}, gradient norm {worst['grad_norm']:.2e}")
        self.assertLessEqual(worst["grad_norm"], 1e-3)  # the norm is less smooth than the loss: ten times its bound
        # The run must use what it is meant to compare: it learns, and some of its steps are clipped but not all.
        self.assertLess(theirs[-1]["loss"], theirs[0]["loss"] - 0.3)
        clipped = sum(step["grad_norm"] > optimizer["clip"] for step in theirs)
        self.assertTrue(0 < clipped < self.STEPS, f"{clipped} of {self.STEPS} steps were clipped: "
                        f"{[round(step['grad_norm'], 2) for step in theirs]}")

    def test_gpt2_adamw(self):
        self.compare("gpt2_tied", dict(self.ADAMW, clip=1.0))

    def test_llama_adamw(self):
        self.compare("llama_untied_kv3_scaled", self.ADAMW, recompute=dict(policy="sqrt"))

    def test_llama_adamw_linear(self):
        self.compare("llama_tied_kv2", dict(self.ADAMW, schedule="linear"))

    def test_llama_sgd(self):
        self.compare("llama_wide_heads_kv1", self.SGD)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        sys.exit(f"test_models.py: the first argument is tutti_peer_dump, got {sys.argv[1:]}")
    PROGRAM = sys.argv.pop(1)
    torch.set_num_threads(1)  # tensors are tiny, and ctest runs other tests beside this one
    unittest.main(verbosity=2)
