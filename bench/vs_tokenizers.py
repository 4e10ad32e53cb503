#!/usr/bin/env python3
"""Encoding speed of Tutti and of the `tokenizers` package on this machine, interleaved: for docs/results.md.

    bench/vs_tokenizers.py TEXT --peer build/release/tests/peer/tutti_peer_tokenize [--threads 1 2] [--rounds 5]

TEXT is cut at blank lines into documents. Tokenizers with the pre-tokenizers of GPT-2, Llama 3 and Qwen are trained on it
by the package, once; both sides read the same tokenizer.json. Each run is a process of its own, pinned to as many cores
as it has threads; it encodes all documents as one batch several times, and the best time counts (the first one fills
caches and is slower on both sides). Contenders take turns. MB/s are 10^6 bytes of UTF-8 text per second. The ids are
compared before anything is timed.

Needs tokenizers in this Python. Writes one JSON with every raw time and prints a Markdown table.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/peer"))
import test_tokenizers as peer  # noqa: E402  the same tokenizers and frames as the tests

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = """
import sys, time, json, struct
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
data, documents, at = open(sys.argv[2], "rb").read(), [], 0
while at < len(data):
    size, = struct.unpack_from("<I", data, at)
    documents.append(data[at + 4:at + 4 + size].decode())
    at += 4 + size
for _ in range(int(sys.argv[3])):
    begin = time.perf_counter()
    tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    print(time.perf_counter() - begin, flush=True)
"""


def busy_seconds():
    """CPU time that all processes of the machine have used, stolen time included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def timed(command, threads, stdin):
    """The seconds that each repetition took, and how many cores other processes used meanwhile."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": str(threads > 1).lower()}
    cores = sorted(os.sched_getaffinity(0))[:threads]
    busy, own, begin = busy_seconds(), sum(os.times()[2:4]), time.monotonic()
    with open(stdin, "rb") as source:
        result = subprocess.run(command, stdin=source, capture_output=True, text=True, check=True, env=environment,
                                preexec_fn=lambda: os.sched_setaffinity(0, cores))
    seconds = time.monotonic() - begin
    others = (busy_seconds() - busy - (sum(os.times()[2:4]) - own)) / seconds
    return {"seconds": [float(line) for line in result.stdout.split()], "others_cores": round(others, 2)}


def describe_machine(options):
    def output(*command):
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()

    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": output("git", "rev-parse", "HEAD"),
            "uncommitted_changes": output("git", "status", "--porcelain").count("\n"),
            "command": f"bench/vs_tokenizers.py {options.text.name} --threads {' '.join(map(str, options.threads))} "
                       f"--rounds {options.rounds} --repetitions {options.repetitions} --vocab {options.vocab}",
            "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "tokenizers": tokenizers.__version__}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--peer", type=pathlib.Path, default=ROOT / "build/release/tests/peer/tutti_peer_tokenize")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--kinds", nargs="+", default=["gpt2", "llama3", "qwen"])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    peer.PEER = str(options.peer)

    text = options.text.read_bytes().decode()
    documents = [d for d in text.split("\n\n") if d]
    size = sum(len(d.encode()) for d in documents)
    document = {**describe_machine(options), "bytes": size, "documents": len(documents), "cases": []}
    rows = ["| text | pre-tokenizer | threads | Tutti MB/s (min–max) | tokenizers MB/s (min–max) | times as fast |",
            "|---|---|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as temporary:
        frames = pathlib.Path(temporary) / "documents"
        frames.write_bytes(peer.frame([d.encode() for d in documents]))
        for kind in options.kinds:
            tokenizer, path = peer.build(kind, text, temporary, vocab=options.vocab)
            ours = peer.ids_of(peer.peer(path, "encode", frames.read_bytes(), 2))
            if ours != [e.ids for e in tokenizer.encode_batch_fast(documents, add_special_tokens=False)]:
                sys.exit(f"{kind}: the ids differ")
            for threads in options.threads:
                commands = {"tutti": [options.peer, path, "time", str(threads), str(options.repetitions)],
                            "tokenizers": [sys.executable, "-c", PACKAGE, path, frames, str(options.repetitions)]}
                runs = {name: [] for name in commands}
                for _ in range(options.rounds):
                    for name, command in commands.items():
                        runs[name].append(timed(command, threads, frames))
                document["cases"].append({"pre_tokenizer": kind, "threads": threads, "runs": runs})
                speeds = {name: [size / 1e6 / min(r["seconds"]) for r in of] for name, of in runs.items()}
                middle = {name: statistics.median(of) for name, of in speeds.items()}
                cells = [f"{middle[n]:.1f} ({min(speeds[n]):.1f}–{max(speeds[n]):.1f})" for n in ("tutti", "tokenizers")]
                rows.append(f"| {options.text.name} | {kind} | {threads} | {cells[0]} | {cells[1]} | "
                            f"{middle['tutti'] / middle['tokenizers']:.1f} |")
                print(rows[-1], flush=True)
    document["summary"] = rows[2:]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
