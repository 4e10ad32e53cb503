"""How much a watched run slows down: pairs of the same short run, in random order, one of them with `tutti watch --http`
on it, a reader of its page and a scrape of /metrics each second.

    bench/watch.py TUTTI [PAIRS] > bench/results/watch.json
"""

import json
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

CONFIG = """[model]
layers = 4
width = 128
heads = 4
kv_heads = 4
head_dim = 32
ffn = 384
[data]
train = "{text}"
[train]
steps = {steps}
seq_len = 128
global_batch = 4
micro_batch = 4
threads = 1
[checkpoint]
every = 0
[log]
every = 1
sample_tokens = 0
"""


def reader(url, until):
    stream = urllib.request.urlopen(url + "events")
    while not until.is_set() and stream.readline():
        pass


def scraper(url, until):
    while not until.wait(1):
        urllib.request.urlopen(url + "metrics").read()


def run(program, folder, name, watched):
    out = folder / name
    watch = until = None
    begin = time.monotonic()
    training = subprocess.Popen([program, "train", folder / "c.toml", "--out", out], stdout=subprocess.DEVNULL)
    if watched:
        while not (out / "run.lock").exists() and training.poll() is None:  # before it, there is no run to watch
            time.sleep(0.01)
        watch = subprocess.Popen([program, "watch", out, "--http"], stdout=subprocess.PIPE, text=True)
        url = re.search(r"http://\S+", watch.stdout.readline()).group()
        until = threading.Event()
        for work in (reader, scraper):
            threading.Thread(target=work, args=(url, until), daemon=True).start()
    if training.wait() != 0:
        raise SystemExit(f"watch.py: tutti train: exit code {training.returncode}")
    wall = time.monotonic() - begin
    busy = 0
    if watched:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        until.set()
        watch.terminate()
        watch.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    steps = [json.loads(line)["step_ms"] for line in (out / "metrics.jsonl").read_text().splitlines()][20:]
    return {"watched": watched, "median_step_ms": statistics.median(steps), "steps": len(steps), "wall_s": wall,
            "watch_cpu_s": busy, "load": os.getloadavg()[0]}


def main():
    program, pairs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12
    rows, order = [], random.Random(20261127)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("In the beginning was the word. " * 4000)
        (folder / "c.toml").write_text(CONFIG.format(text=folder / "text.txt", steps=220))
        for pair in range(pairs):
            both = [False, True]
            order.shuffle(both)
            for watched in both:
                rows.append({"pair": pair, **run(program, folder, f"{pair}-{watched}", watched)})
    step = {pair: {row["watched"]: row["median_step_ms"] for row in rows if row["pair"] == pair} for pair in range(pairs)}
    slower = [of[True] / of[False] - 1 for of in step.values()]
    busy = [row["watch_cpu_s"] / row["wall_s"] for row in rows if row["watched"]]
    print(json.dumps({"commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
                      "cores": os.cpu_count(), "median_slowdown": statistics.median(slower),
                      "quartiles": statistics.quantiles(slower, n=4), "median_share_of_a_core": statistics.median(busy),
                      "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
