#!/usr/bin/env python3
"""From kill -9 of a rank to the next step: a tiny model on 8 processes of this host, killed again and again. For each kill:
seconds until the launcher has named the culprit, until the new generation starts, until the newest checkpoint is loaded and a
step that had not been logged before is logged.

  bench/launch.py --tutti build/release/tutti --kills 20 --out bench/results/launch.json
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import time

CONFIG = """[model]
preset = "llama-tiny"
width = 32
layers = 2
heads = 2
kv_heads = 2
head_dim = 16
ffn = 48
[data]
train = ["{folder}/text.txt"]
[train]
steps = 1000000
seq_len = 16
global_batch = 40
micro_batch = 1
threads = 1
device = "cpu"
[log]
every = 1
[checkpoint]
every = 5
"""


def ranks(out):
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if len(words) < 2 or words[1] != b"train" or str(out).encode() not in words:
                continue
            environment = dict(e.split("=", 1) for e in (path / "environ").read_text().split("\0") if "=" in e)
        except (OSError, ValueError):
            continue
        if "TUTTI_RANK" in environment:
            found[int(environment["TUTTI_RANK"])] = int(path.name)
    return found


def lines(path):
    try:
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except OSError:
        return []


def wait(fact):
    while not fact():
        time.sleep(0.002)
    return time.time()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tutti", required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    random.seed(58)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(500)))
        (folder / "tiny.toml").write_text(CONFIG.format(folder=folder))
        out = folder / "run"
        events = lambda kind: [e for e in lines(out / "events.jsonl") if e["event"] == kind]
        newest = lambda: max((line["step"] for line in lines(out / "metrics.jsonl")), default=0)
        with open(folder / "log", "w") as log:
            run = subprocess.Popen([options.tutti, "launch", "-n", str(options.ranks), str(folder / "tiny.toml"), "--out",
                                    str(out)], stdout=log, stderr=log)
            wait(lambda: newest() >= 7)
            for kill in range(options.kills):
                goal = newest() + 6 + random.randrange(5)  # a new checkpoint, and any place between two
                wait(lambda: newest() >= goal)
                victim = random.randrange(options.ranks)
                pid, step = ranks(out)[victim], newest()
                begin = time.time()
                os.kill(pid, signal.SIGKILL)
                wait(lambda: len(events("started")) > kill + 1)
                step = max(step, newest())
                done = wait(lambda: newest() > step)
                rows.append({"rank": victim, "named_s": round(events("died")[kill]["time"] - begin, 3),
                             "started_s": round(events("started")[kill + 1]["time"] - begin, 3),
                             "next_new_step_s": round(done - begin, 3)})
                print(rows[-1], flush=True)
            run.send_signal(signal.SIGTERM)
            code = run.wait()
    result = {"machine": f"{os.cpu_count()} cores shared with other builds (load {os.getloadavg()[0]:.0f})",
              "command": f"bench/launch.py --kills {options.kills} --ranks {options.ranks}", "exit_code": code,
              "median_next_new_step_s": statistics.median(r["next_new_step_s"] for r in rows),
              "largest_next_new_step_s": max(r["next_new_step_s"] for r in rows), "kills": rows}
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
