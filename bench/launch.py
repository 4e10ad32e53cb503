#!/usr/bin/env python3
"""From kill -9 of a rank to the next step: a tiny model on 8 processes of this host, killed again and again. For each kill:
seconds until the launcher has named the culprit, until the new generation starts, until the newest checkpoint is loaded and a
step that had not been logged before is logged.

  bench/launch.py --tutti build/release/tutti --kills 20 --out bench/results/launch.json
  bench/launch.py --tutti build/release/tutti --torchrun VENV/bin/torchrun --ranks 2 --kills 10 --out ...

With --torchrun each kill is followed by one of a worker of `torchrun --max-restarts`: DistributedDataParallel over gloo, a
model of the same size, a state saved at every step, which is what copies in memory at every step are compared with.
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
every = {every}
memory_every = {memory_every}
"""

WORKER = """import os, sys, time, torch
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
folder = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 64))  # 25,864 parameters
optimizer = torch.optim.AdamW(model.parameters())
step, state = 0, folder + "/state.pt"
if os.path.exists(state):
    saved = torch.load(state)
    step = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
ddp = DistributedDataParallel(model)
rank = torch.distributed.get_rank()
open(f"{folder}/pid-{rank}", "w").write(str(os.getpid()))
while True:
    x = torch.randn(16, 64)
    ddp(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, state + ".tmp")
        os.replace(state + ".tmp", state)
        open(f"{folder}/step", "w").write(f"{step}\\n")
    time.sleep(0.02)
"""


class Torch:
    """A job of torchrun, and the seconds from the kill of a worker to a step that it had not reached before."""

    def __init__(self, torchrun, ranks, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "worker.py").write_text(WORKER)
        self.log = open(folder / "log", "w")
        # Over the agent's own store gloo of PyTorch 2.15 waits for ever in the second attempt.
        environment = dict(os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        self.run = subprocess.Popen([torchrun, "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "1000",
                                     str(folder / "worker.py"), str(folder)], stdout=self.log, stderr=self.log,
                                    env=environment)
        wait(lambda: self.step() > 3)

    def step(self):
        text = (self.folder / "step").read_text() if (self.folder / "step").exists() else ""
        return int(text) if text.endswith("\n") else 0

    def kill(self, rank):
        goal = self.step() + 5
        wait(lambda: self.step() >= goal)
        begin = time.time()
        os.kill(int((self.folder / f"pid-{rank}").read_text()), signal.SIGKILL)
        time.sleep(0.05)  # what the others write until they are stopped
        before = self.step()
        return round(wait(lambda: self.step() > before + 1) - begin, 3)

    def end(self):
        self.run.terminate()
        self.run.wait()


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
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints on disk")
    parser.add_argument("--memory-every", type=int, default=0, help="steps between copies in memory")
    parser.add_argument("--torchrun", help="kill a worker of torchrun after each kill")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    random.seed(58)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(500)))
        (folder / "tiny.toml").write_text(CONFIG.format(folder=folder, every=options.every, memory_every=options.memory_every))
        out = folder / "run"
        events = lambda kind: [e for e in lines(out / "events.jsonl") if e["event"] == kind]
        newest = lambda: max((line["step"] for line in lines(out / "metrics.jsonl")), default=0)
        with open(folder / "log", "w") as log:
            run = subprocess.Popen([options.tutti, "launch", "-n", str(options.ranks), str(folder / "tiny.toml"), "--out",
                                    str(out)], stdout=log, stderr=log)
            wait(lambda: newest() >= 7)
            torch = Torch(options.torchrun, options.ranks, folder / "torch") if options.torchrun else None
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
                if torch:
                    rows[-1]["torchrun_next_step_s"] = torch.kill(victim)
                if options.memory_every:
                    rows[-1]["from"] = events("resumed")[kill + 1]["text"]
                print(rows[-1], flush=True)
            if torch:
                torch.end()
            run.send_signal(signal.SIGTERM)
            code = run.wait()
    result = {"machine": f"{os.cpu_count()} cores shared with other builds (load {os.getloadavg()[0]:.0f})",
              "command": f"bench/launch.py --kills {options.kills} --ranks {options.ranks} --every {options.every} "
                         f"--memory-every {options.memory_every}{' --torchrun' if options.torchrun else ''}",
              "exit_code": code,
              "median_next_new_step_s": statistics.median(r["next_new_step_s"] for r in rows),
              "largest_next_new_step_s": max(r["next_new_step_s"] for r in rows), "kills": rows}
    if options.torchrun:
        result["median_torchrun_s"] = statistics.median(r["torchrun_next_step_s"] for r in rows)
        result["median_ratio"] = statistics.median(r["torchrun_next_step_s"] / r["next_new_step_s"] for r in rows)
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
