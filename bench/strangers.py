#!/usr/bin/env python3
"""Ten thousand strangers at the ports of a run: four ranks in two network and process namespaces (root), in rounds without
strangers and with 2,500 of them (tests/campaign/strangers.py). The ranks have all cores but the last one, the strangers
that one: what is measured is what the ranks do for strangers, not what strangers' own program takes. Prints per round the median step, the processor time of the
ranks per step, and what the ranks hold; and whether any of the strangers' text was shown.

  bench/strangers.py --tutti build/release/tutti --out bench/results/strangers.json
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = """[model]
preset = "llama-tiny"
[data]
train = ["{folder}/text.txt"]
[train]
steps = 1000000
seq_len = 64
global_batch = 8
micro_batch = 1
threads = 1
device = "cpu"
[parallel]
zero = 3
[log]
every = 1
[checkpoint]
every = 0
"""


def ranks(out):
    """Process ids, as this host sees them."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/tutti") and str(out).encode() in words:
            found.append(int(path.name))
    return sorted(found)


def held(pids):
    fds = [len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]
    rss = [int(next(l for l in open(f"/proc/{pid}/status") if l.startswith("VmRSS")).split()[1]) for pid in pids]
    tasks = [task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    cpu = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    return fds, rss, cpu


def steps(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tutti", type=pathlib.Path, default=ROOT / "build/release/tutti")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "needs two cores"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(500)))
        (folder / "run.toml").write_text(CONFIG.format(folder=folder))
        out, log = folder / "out", folder / "log"
        script = subprocess.Popen(["taskset", "-c", ",".join(map(str, cores[:-1])), str(ROOT / "tests/mpi/two_hosts.sh"), "--tcp", str(options.tutti.resolve()), "train",
                                   str(folder / "run.toml"), "--out", str(out)],
                                  stdout=log.open("w"), stderr=subprocess.STDOUT)
        while not (out / "metrics.jsonl").exists() or len(steps(out)) < 20:
            assert script.poll() is None, log.read_text()
            time.sleep(0.2)
        pids, rounds = ranks(out), []
        assert len(pids) == 4, pids
        for i in range(2 * options.rounds):
            with_strangers = i % 2 == 1
            before, (_, _, cpu) = len(steps(out)), held(pids)
            counts = [subprocess.Popen(["taskset", "-c", str(cores[-1]), "ip", "netns", "exec", f"tutti{side}{script.pid}", "python3",
                                        str(ROOT / "tests/campaign/strangers.py"), "--count", "1250", "--rate",
                                        str(1250 / options.seconds), "--log", str(folder / "strangers")])
                      for side in "ab"] if with_strangers else []
            for process in counts:
                process.wait()
            if not counts:
                time.sleep(options.seconds)
            measured = steps(out)[before:]
            now = held(pids)[2]
            time.sleep(6)  # what has not joined is closed after 5 s
            fds, rss, _ = held(pids)
            rounds.append({"strangers": with_strangers, "steps": len(measured),
                           "median_step_ms": round(statistics.median(m["step_ms"] for m in measured), 2),
                           "cpu_ms_per_step": round(1000 * (now - cpu) / len(measured), 2),
                           "descriptors": fds, "rss_kb": rss})
            print(json.dumps(rounds[-1]), flush=True)
        subprocess.run(["kill", "-TERM", str(pids[0])], check=True)
        code = script.wait()
        text = log.read_text()
        said = [json.loads(line) for line in (folder / "strangers").read_text().splitlines()]
        result = {"command": "bench/strangers.py", "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
            "exit_code": code, "connections": sum(s.get("connected", 0) for s in said),
            "tried": sum(s["tried"] for s in said), "text_of_strangers_shown": "stranger" in text or "HTTP" in text,
            "rounds": rounds}
        for key in ("median_step_ms", "cpu_ms_per_step"):
            of = {b: statistics.median(r[key] for r in rounds if r["strangers"] == b) for b in (False, True)}
            result[f"{key}_change"] = round(of[True] / of[False] - 1, 4)
        print(json.dumps({k: v for k, v in result.items() if k != "rounds"}))
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


main()
