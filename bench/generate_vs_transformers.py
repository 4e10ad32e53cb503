#!/usr/bin/env python3
"""Texts from a GPT-2 of 124M random weights by `tutti generate` and by transformers' generate, taking turns.

    bench/generate_vs_transformers.py [--tutti BUILD/tutti [OLDER/tutti]] [--rounds 5] [--tokens 128] [--out FILE]

One prompt of four tokens, greedy, every contender a process of its own in every round; tokens/s from the prompt to the
last token, without the start of the process and the reading of the weights; transformers' after a first text, which is
not counted. The table has medians over the rounds, slowest to fastest in brackets. Needs torch and transformers in
--python.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = [1, 2, 3, 4]


def make_model(directory):
    """Runs in --python."""
    import torch
    import transformers
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(directory)


def run_transformers(directory, dtype, threads, tokens):
    """Runs in --python: prints tokens/s."""
    import torch
    import transformers
    torch.set_num_threads(threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    model = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=dtype).eval()
    for _ in range(2):
        start = time.perf_counter()
        model.generate(torch.tensor([PROMPT]), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                       pad_token_id=0)
        seconds = time.perf_counter() - start
    print(tokens / seconds)


def main():
    venv = pathlib.Path(os.environ.get("TUTTI_PEER_VENV") or pathlib.Path.home() / ".cache/tutti/peer-venv")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", nargs="+", type=pathlib.Path, default=[ROOT / "build/release/tutti"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtypes", nargs="+", choices=["bf16", "f32"], default=["bf16", "f32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", type=pathlib.Path, default=venv / "bin/python")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/generate_vs_transformers.json")
    options = parser.parse_args()

    def output(*command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, cwd=ROOT,
                              env=dict(os.environ, OMP_NUM_THREADS=str(options.threads))).stdout

    def in_python(call):
        return output(options.python, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); "
                                            f"import generate_vs_transformers as here; here.{call}")

    rows = []
    with tempfile.TemporaryDirectory() as directory:
        in_python(f"make_model({directory!r})")
        for turn in range(options.rounds):
            for dtype in options.dtypes:
                for program in options.tutti:
                    made = json.loads(output(program.resolve(), "generate", directory, "--prompt-ids",
                                             ",".join(map(str, PROMPT)), "--ids", "--ignore-eos", "--greedy", "--json",
                                             "--compute", dtype, "--max-tokens", options.tokens, "--threads",
                                             options.threads))
                    rows.append({"who": program.name, "dtype": dtype, "tokens_per_s": made["tokens_per_s"]})
                theirs = in_python(f"run_transformers({directory!r}, {dtype!r}, {options.threads}, {options.tokens})")
                rows.append({"who": "transformers", "dtype": dtype, "tokens_per_s": float(theirs.split()[-1])})
            print(f"round {turn + 1}", file=sys.stderr, flush=True)
    versions = output(options.python, "-c",
                      "import torch, transformers; print(torch.__version__, transformers.__version__)").strip()
    document = {"command": " ".join(sys.argv[1:]), "commit": output("git", "rev-parse", "HEAD").strip(),
                "torch, transformers": versions, "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")

    print("| dtype | | tokens/s |\n|---|---|---:|")
    for dtype, who in dict.fromkeys((r["dtype"], r["who"]) for r in rows):
        rates = [r["tokens_per_s"] for r in rows if (r["dtype"], r["who"]) == (dtype, who)]
        print(f"| {dtype} | {who} | {statistics.median(rates):.1f} ({min(rates):.1f}–{max(rates):.1f}) |")


if __name__ == "__main__":
    main()
