#!/usr/bin/env python3
"""Step times of many layouts of thread ranks on this machine, beside what `tutti simulate --profile` says of them.

    bench/simulate_layouts.py build/release/tutti [--rounds 3] [--only REGEX] [--steps 12] [--profile here.json]

Each round calibrates the machine (or reads --profile) and then measures every layout once: the median step, without the
first three. Prints ranks, measured and predicted step and their ratio; after several rounds the median ratio of each
layout and how far apart its measured steps lay, which is the noise of the machine; at the end the median and the mean
of the absolute errors.
"""
import argparse
import json
import math
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

CONFIG = """
[model]
preset = "{preset}"
[data]
train = ["{text}"]
[train]
steps = {steps}
seq_len = 128
global_batch = 16
micro_batch = 2
[optimizer]
warmup_steps = 2
[checkpoint]
every = 0
[log]
every = 1
"""


def layouts():
    """Pairs of ranks and settings over all axes."""
    for compute in ("bf16", "f32"):
        yield "llama-tiny", 1, [f"precision.compute={compute}"]
        for zero in (0, 1, 2, 3):
            yield "llama-tiny", 2, [f"precision.compute={compute}", f"parallel.zero={zero}"]
        yield "llama-tiny", 2, [f"precision.compute={compute}", "parallel.tp=2"]
        yield "llama-tiny", 2, [f"precision.compute={compute}", "parallel.cp=2"]
        yield "llama-tiny", 2, [f"precision.compute={compute}", "parallel.pp=2"]
    for zero in (0, 1, 2, 3):
        yield "llama-tiny", 4, [f"parallel.zero={zero}"]
    yield "llama-tiny", 4, ["parallel.dp_replicate=2", "parallel.zero=3"]
    yield "llama-tiny", 8, ["parallel.zero=1"]
    yield "llama-tiny", 2, ["parallel.zero=3", "parallel.accumulate=full"]
    for micro in (1, 4, 8):
        yield "llama-tiny", 2, [f"train.micro_batch={micro}"]
    for policy in ("selective", "full", "every:2"):
        yield "llama-tiny", 2, [f"recompute.policy={policy}"]
    yield "llama-tiny", 2, ["parallel.tp=2", "parallel.sequence_parallel=false"]
    yield "llama-tiny", 4, ["parallel.tp=2"]
    yield "llama-tiny", 4, ["parallel.tp=4"]
    yield "llama-tiny", 4, ["parallel.tp=2", "parallel.zero=3"]
    yield "llama-tiny", 2, ["parallel.cp=2", "parallel.cp_method=all_gather"]
    yield "llama-tiny", 2, ["parallel.cp=2", "parallel.cp_method=ulysses"]
    yield "llama-tiny", 4, ["parallel.cp=2", "parallel.tp=2"]
    yield "llama-tiny", 4, ["parallel.cp=4", "train.seq_len=256"]
    for schedule in ("gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe-v"):
        yield "llama-tiny", 2, ["parallel.pp=2", f"parallel.schedule={schedule}"]
        if schedule in ("1f1b", "zb-h1"):
            yield "llama-tiny", 4, ["parallel.pp=2", f"parallel.schedule={schedule}"]
            yield "llama-tiny", 4, ["parallel.pp=4", f"parallel.schedule={schedule}"]
    yield "llama-tiny", 2, ["parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"]
    yield "llama-tiny", 8, ["parallel.pp=2", "parallel.tp=2", "parallel.zero=1"]
    small = ["model.width=128", "model.heads=4", "model.kv_heads=4", "model.head_dim=32", "model.ffn=512", "model.layers=4", "model.vocab=256"]
    yield "gpt2-124m", 1, small
    for setting in (["parallel.zero=1"], ["parallel.tp=2"], ["parallel.pp=2"], ["parallel.zero=3"]):
        yield "gpt2-124m", 2, small + setting
    yield "moe-tiny", 1, []
    for setting in (["parallel.zero=1"], ["parallel.ep=2"], ["parallel.tp=2"], ["parallel.pp=2"], ["parallel.zero=3", "parallel.ep=2"]):
        yield "moe-tiny", 2, setting
    yield "moe-tiny", 4, ["parallel.ep=4"]
    yield "moe-tiny", 4, ["parallel.ep=2", "parallel.tp=2"]
    yield "lfm2-tiny", 1, []
    yield "lfm2-tiny", 2, ["parallel.zero=2"]
    yield "llama-5m", 1, []
    yield "llama-5m", 2, ["parallel.zero=1"]
    yield "llama-5m", 2, ["parallel.tp=2"]
    yield "llama-5m", 2, ["parallel.pp=2"]


def measured(program, config, ranks, settings, out):
    subprocess.run([program, "train", config, "--ranks", str(ranks), "--out", out, "--force"] + settings, check=True, capture_output=True, text=True)
    times = [json.loads(line) for line in open(f"{out}/metrics.jsonl")]
    times = [row["step_ms"] / 1e3 for row in times]
    return statistics.median(times[3:])


def words_of(path):
    words = "the of and a to in is that it was for on are as with his they at be this from have or by one had not but what all".split()
    draw = random.Random(1)
    path.write_text("".join(draw.choice(words) + (".\n" if draw.random() < 0.1 else " ") for _ in range(60000)))


def summary(errors):
    absolute = [abs(e) for e in errors]
    return f"{len(errors)} layouts: median error {100 * statistics.median(absolute):.1f} %, mean {100 * statistics.mean(absolute):.1f} %, bias {100 * statistics.mean(errors):+.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--profile")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=12)
    a = parser.parse_args()
    rounds = {}  # name: measured and predicted seconds of each round
    with tempfile.TemporaryDirectory() as folder:
        text, config = pathlib.Path(folder) / "text.txt", pathlib.Path(folder) / "run.toml"
        profile = a.profile or f"{folder}/here.json"
        words_of(text)
        for number in range(a.rounds):
            if not a.profile:
                subprocess.run([a.program, "bench", "calibrate", profile], check=True, capture_output=True)
            for place, (preset, ranks, sets) in enumerate(layouts()):
                name = f"{preset} x{ranks} " + " ".join(sets)
                if not re.search(a.only, name):
                    continue
                config.write_text(CONFIG.format(preset=preset, text=text, steps=a.steps))
                settings = [word for s in sets for word in ("--set", s)]
                simulated = subprocess.run([a.program, "simulate", config, "--profile", profile, "--ranks", str(ranks), "--json"] + settings, capture_output=True, text=True)
                if simulated.returncode:
                    print(f"{name}: {simulated.stderr.strip()}")
                    continue
                predicted = json.loads(simulated.stdout)["step_time_s"]
                real = measured(a.program, config, ranks, settings, f"{folder}/run-{number}-{place}")
                rounds.setdefault(name, []).append((real, predicted))
                print(f"{name:80} measured {1e3 * real:8.2f} ms  predicted {1e3 * predicted:8.2f} ms  {100 * (predicted / real - 1):+6.1f} %", flush=True)
            print(f"round {number + 1}: {summary([times[-1][1] / times[-1][0] - 1 for times in rounds.values()])}")
    if a.rounds == 1:
        return
    errors, spreads = [], []
    for name, times in rounds.items():
        errors.append(statistics.median(predicted / real for real, predicted in times) - 1)
        spreads.append(max(real for real, _ in times) / min(real for real, _ in times) - 1)
        print(f"{name:80} median of {len(times)} rounds {100 * errors[-1]:+6.1f} %  measured steps apart {100 * spreads[-1]:5.1f} %")
    print(f"medians of rounds: {summary(errors)}; measured steps of a layout are {100 * statistics.median(spreads):.1f} % apart in the median")


if __name__ == "__main__":
    main()
