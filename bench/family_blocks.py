#!/usr/bin/env python3
"""bench/family_blocks.py PROGRAM OUT [--rounds N] [--seconds S]: training steps of blocks of several families beside
Llama's, of one width, on one thread: `tutti bench step --kernels`, in turns, its output in OUT.

Printed for each: FLOPs of the model a second, as a share of the rate of its large products in the same run (gemm of
at least 1024 x 1024 x 2816). Other work on the machine slows both, so that the share does not depend on it; a share of
the best product would.
"""
import argparse
import collections
import re
import statistics
import subprocess

ALL = {"model.width": 1024, "model.layers": 2, "model.vocab": 4096, "model.ffn": 2816, "train.seq_len": 1024,
       "train.global_batch": 1, "train.micro_batch": 1}
BLOCKS = {
    "llama": ("llama-tiny", {"model.heads": 16, "model.kv_heads": 16, "model.head_dim": 64}),
    "gemma 2": ("gemma2-tiny", {"model.heads": 8, "model.kv_heads": 4, "model.head_dim": 128, "model.window": 512,
                                "model.window_layers": 0, "model.score_scale": 0.0883}),
    "latent": ("llama-tiny", {"model.heads": 16, "model.kv_heads": 16, "model.head_dim": 96, "model.value_dim": 64,
                              "model.rope_dims": 32, "model.rope_adjacent": "true", "model.kv_latent": 256,
                              "model.q_latent": 512}),
    "delta rule": ("qwen3.5-tiny", {"model.heads": 8, "model.kv_heads": 2, "model.head_dim": 128, "model.rope_dims": 32,
                                    "model.delta_layers": "0-1", "model.delta_key_heads": 8,
                                    "model.delta_value_heads": 16, "model.delta_key_dim": 128,
                                    "model.delta_value_dim": 128}),
    "scan": ("falcon-h1-tiny", {"model.scan_beside": "false", "model.variant": "auto", "model.multipliers": "",
                                "model.heads": 8, "model.kv_heads": 2, "model.head_dim": 128, "model.scan_layers": "0-1",
                                "model.scan_heads": 32, "model.scan_head_dim": 64, "model.scan_state": 128}),
}


def share(text):
    """The model's rate over that of its large products."""
    flops = float(re.search(r"FLOPs of the model\s+([\d.]+) GFLOP", text)[1])
    whole = products = seconds = 0.0
    for kernel, shape, calls, ms in re.findall(r"^(\w+)\s{2,}(.*?)\s{2,}(\d+)\s+([\d.]+)\s+[\d.]+ %", text, re.M):
        whole += float(ms)
        sizes = [int(n) for n in re.findall(r"\d+", shape)[:3]]
        if kernel == "gemm" and len(sizes) == 3 and max(sizes) >= 2816 and min(sizes) >= 1024:
            products += 2e-9 * sizes[0] * sizes[1] * sizes[2] * int(calls)
            seconds += float(ms)
    return flops / whole * seconds / products


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    a = parser.parse_args()
    shares = collections.defaultdict(list)
    with open(a.out, "w", encoding="utf-8") as out:
        for _ in range(a.rounds):
            for dtype in ("bf16", "f32"):
                for name, (preset, own) in BLOCKS.items():
                    command = [a.program, "bench", "step", "--dtype", dtype, "--threads", "1", "--seconds", str(a.seconds),
                               "--model", preset, "--kernels"]
                    for key, value in (ALL | own).items():
                        command += ["--set", f"{key}={value}"]
                    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    out.write(f"== {name} {dtype}\n{text}")
                    shares[name, dtype].append(share(text))
    for (name, dtype), values in shares.items():
        print(f"{name:<12}{dtype}  {100 * statistics.median(values):5.1f} %   {100 * min(values):.1f} to {100 * max(values):.1f} %")


main()
