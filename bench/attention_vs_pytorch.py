#!/usr/bin/env python3
"""Causal attention of Tutti and of PyTorch's scaled_dot_product_attention on this CPU, taking turns.

    bench/attention_vs_pytorch.py [--rounds 3] [--seconds 40] [--dtype bf16] [--threads 2] [--out FILE]

A round is `tutti bench attention` with a patience of --seconds, then the same shapes in PyTorch, at least two calls and
a second of each; batch 1, forward alone and forward with backward. The table has medians over all rounds, fastest to
slowest in brackets. Needs torch in --python.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytorch(options):
    """Runs in --python: one JSON line of seconds for each shape of --shapes."""
    import torch
    torch.set_num_threads(options.threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
    for T, H, D in json.loads(options.shapes):
        q, k, v, dy = (torch.randn(1, T, H, D).to(dtype).transpose(1, 2) for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_(True)

        def forward():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def inference():
            with torch.no_grad():
                forward()

        passes = {"forward": inference, "forward, backward": lambda: forward().backward(dy)}
        for name, call in passes.items():
            call()
            times, begin = [], time.perf_counter()
            while len(times) < 2 or time.perf_counter() - begin < 1:
                for x in (q, k, v):
                    x.grad = None
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            print(json.dumps({"T": T, "H": H, "D": D, "pass": name, "times": times}), flush=True)


def main():
    venv = pathlib.Path(os.environ.get("TUTTI_PEER_VENV") or pathlib.Path.home() / ".cache/tutti/peer-venv")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40, help="patience of one round of Tutti's")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tutti", type=pathlib.Path, default=ROOT / "build/release/tutti")
    parser.add_argument("--python", type=pathlib.Path, default=venv / "bin/python")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/attention_vs_pytorch.json")
    parser.add_argument("--shapes", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shapes:
        return pytorch(options)

    def output(*command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, cwd=ROOT,
                              env=dict(os.environ, OMP_NUM_THREADS=str(options.threads))).stdout

    common = ["--dtype", options.dtype, "--threads", options.threads]
    rounds = []
    for turn in range(options.rounds):
        ours = json.loads(output(options.tutti, "bench", "attention", "--json", "--seconds", options.seconds, *common))
        shapes = list(dict.fromkeys((r["T"], r["H"], r["D"]) for r in ours["rows"]))
        theirs = [json.loads(line) for line in output(options.python, __file__, "--shapes", json.dumps(shapes),
                                                      *common).splitlines()]
        rounds.append({"tutti": ours, "pytorch": theirs})
        print(f"round {turn + 1}: {len(shapes)} shapes", file=sys.stderr, flush=True)
    document = {"command": " ".join(sys.argv[1:]), "commit": output("git", "rev-parse", "HEAD").strip(),
                "torch": output(options.python, "-c", "import torch; print(torch.__version__)").strip(),
                "rounds": rounds}
    options.out.write_text(json.dumps(document, indent=1).replace(str(ROOT) + "/", "") + "\n")

    print("| T, H, D | | Tutti, ms | SDPA, ms | times as fast |\n|---|---|---:|---:|---:|")
    for key in dict.fromkeys((r["T"], r["H"], r["D"], r["pass"]) for x in rounds for r in x["tutti"]["rows"]):
        def of(rows):
            return [r for r in rows if (r["T"], r["H"], r["D"], r["pass"]) == key]
        ours = [1e3 * r["median_s"] for x in rounds for r in of(x["tutti"]["rows"])]
        theirs = [1e3 * statistics.median(r["times"]) for x in rounds for r in of(x["pytorch"])]

        def cell(times):
            return f"{statistics.median(times):.1f} ({min(times):.1f}–{max(times):.1f})"
        print(f"| {key[0]}, {key[1]}, {key[2]} | {key[3]} | {cell(ours)} | {cell(theirs)} | "
              f"{statistics.median(theirs) / statistics.median(ours):.2f} |")


if __name__ == "__main__":
    main()
