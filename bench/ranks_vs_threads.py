#!/usr/bin/env python3
"""Ranks of one core each beside one rank with all cores, interleaved: for docs/results.md.

    bench/ranks_vs_threads.py CONFIG [--tutti build/release/tutti] [--rounds 3] [--steps 6] [--set section.key=value ...]

Each contender is a run of its own of the same global batch (`--micro-batch` sequences a microbatch, two microbatches a
step for one rank, one for each of two); its rate is the median tokens/s of all steps after the second. Contenders take
turns; the ratio is of the medians, with the smallest and largest ratio of one round. Writes one JSON with every rate.
"""

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTENDERS = {
    "one rank, two threads": ["--ranks", "1", "--threads", "2"],
    "two ranks, ZeRO-1": ["--ranks", "2", "--threads", "1", "--set", "parallel.zero=1"],
    "two ranks, ZeRO-3 (FSDP)": ["--ranks", "2", "--threads", "1", "--set", "parallel.zero=3"],
}


def rate(tutti, config, more, settings):
    """Median tokens/s of the steps after the second."""
    with tempfile.TemporaryDirectory() as out:
        command = [tutti, "train", config, "--out", out, "--resume", "never", *more]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        steps = [json.loads(line) for line in open(f"{out}/metrics.jsonl")]
        return statistics.median(step["tokens_per_s"] for step in steps[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--tutti", default=str(ROOT / "build/release/tutti"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--out", default="ranks_vs_threads.json")
    a = parser.parse_args()
    settings = [f"train.steps={a.steps}", f"train.micro_batch={a.micro_batch}", f"train.global_batch={2 * a.micro_batch}",
                "log.every=1", "checkpoint.every=0", "train.eval_every=0", "data.valid_fraction=0", *a.settings]
    rates = {name: [] for name in CONTENDERS}
    for _ in range(a.rounds):
        for name, more in CONTENDERS.items():
            rates[name].append(rate(a.tutti, a.config, more, settings))
    first = next(iter(rates))
    result = {"date": str(datetime.date.today()), "machine": platform.processor() or platform.machine(),
              "commit": subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
              "config": pathlib.Path(a.config).name, "settings": settings, "tokens_per_s": rates}
    print("| | tokens/s, median | of one rank (least, most of a round) |\n|---|---|---|")
    for name, values in rates.items():
        ratios = [v / w for v, w in zip(values, rates[first])]
        share = statistics.median(values) / statistics.median(rates[first])
        result.setdefault("share_of_one_rank", {})[name] = share
        print(f"| {name} | {statistics.median(values):.0f} | {share:.1%} ({min(ratios):.1%}, {max(ratios):.1%}) |")
    pathlib.Path(a.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
