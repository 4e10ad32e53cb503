#!/usr/bin/env python3
"""What gaps between blocks add to the memory that a rank needs: `tutti rehearse` of layouts of large models on a GPU.

    bench/memory_gaps.py PROGRAM [PROGRAM ...] > bench/results/memory_gaps.txt

Printed for each layout: the peak of the bytes in use, and by how much the memory taken from the GPU is more, by each
program; last their mean, median and most. No GPU is asked.
"""

import json
import statistics
import subprocess
import sys

LONG = "train.seq_len=8192 train.micro_batch=1"
SHORT = "train.seq_len=4096 train.micro_batch=2"
ONE_STAGE = [
    ("llama3-8b", 8, f"parallel.zero=3 {LONG} train.global_batch=8"),
    ("llama3-8b", 8, "parallel.zero=3 train.seq_len=8192 train.micro_batch=2 train.global_batch=64 recompute.policy=full"),
    ("llama3-8b", 8, "parallel.zero=2 train.seq_len=4096 train.micro_batch=1 train.global_batch=64 recompute.policy=selective"),
    ("llama3-8b", 8, f"parallel.zero=1 parallel.tp=2 {LONG} train.global_batch=64"),
    ("llama3-70b", 64, "parallel.zero=3 parallel.tp=8 parallel.cp=2 train.seq_len=16384 train.micro_batch=1 train.global_batch=128"),
    ("qwen3-30b-a3b", 32, "parallel.zero=1 parallel.ep=8 train.seq_len=4096 train.micro_batch=1 train.global_batch=128 recompute.policy=full"),
    ("gpt2-124m", 1, "train.seq_len=1024 train.micro_batch=32 train.global_batch=512"),
    ("llama3.2-3b", 1, "train.seq_len=4096 train.micro_batch=1 train.global_batch=16"),
    ("llama3.2-1b", 8, "parallel.zero=1 train.seq_len=4096 train.micro_batch=4 train.global_batch=64"),
] + [
    ("mixtral-8x22b", 64, f"parallel.zero={zero} parallel.ep=8 train.seq_len=4096 train.micro_batch=1 train.global_batch=1024 recompute.policy={policy}")
    for zero in (1, 2, 3) for policy in ("full", "selective")
] + [
    ("llama3-70b", 64, f"parallel.zero={zero} parallel.tp={tp} {SHORT} train.global_batch=2048 recompute.policy={policy}")
    for zero in (2, 3) for tp in (1, 4) for policy in ("full", "selective")
]
PIPELINES = [
    ("llama3-8b", 16, f"parallel.zero=1 parallel.pp=4 parallel.schedule={schedule} {LONG} train.global_batch=64")
    for schedule in ("1f1b", "interleaved parallel.virtual_stages=2", "zb-v")
] + [
    ("llama3-70b", 64, f"parallel.zero=1 parallel.tp=8 parallel.pp={schedule} {LONG} train.global_batch=128 recompute.policy={policy}")
    for schedule in ("4 parallel.schedule=1f1b", "4 parallel.schedule=zb-v", "4 parallel.schedule=interleaved parallel.virtual_stages=4",
                     "8 parallel.schedule=dualpipe-v", "8 parallel.schedule=zb-h1")
    for policy in ("none", "selective", "full")
] + [
    ("llama3-405b", 1024, f"parallel.zero=1 parallel.tp=8 parallel.pp=16 parallel.schedule={schedule} {LONG} train.global_batch=512")
    for schedule in ("1f1b", "interleaved parallel.virtual_stages=4", "interleaved-zb parallel.virtual_stages=4", "zb-v")
]


def rehearse(program, model, ranks, settings):
    words = [program, "rehearse", "--model", model, "--ranks", str(ranks), "--for", "b200", "--json"]
    for setting in settings.split():
        words += ["--set", setting]
    said = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)
    if "reserved_bytes" not in said:
        raise SystemExit(f"memory_gaps.py: {' '.join(words)}: {said.get('error')}")
    return said["peak_bytes"], said["reserved_bytes"]


def main():
    programs = sys.argv[1:]
    if not programs:
        raise SystemExit(__doc__)
    for program in programs:
        print(program, subprocess.run([program, "version"], capture_output=True, text=True).stdout.splitlines()[0])
    more = [[] for _ in programs]
    for model, ranks, settings in ONE_STAGE + PIPELINES:
        row = [rehearse(program, model, ranks, settings) for program in programs]
        for shares, (peak, reserved) in zip(more, row):
            shares.append(100 * (reserved / peak - 1))
        print(f"{model:13} {ranks:5} {row[0][0] / 2**30:7.2f} GiB", *(f"{shares[-1]:+6.2f} %" for shares in more), settings, flush=True)
    for name, of in (("mean", statistics.fmean), ("median", statistics.median), ("most", max)):
        print(f"{name} of {len(more[0])}", *(f"{of(shares):+.2f} %" for shares in more))


if __name__ == "__main__":
    main()
