#!/usr/bin/env python3
"""A training step of a mixture of experts: Tutti beside transformers, and beside a dense model with the same active
FLOPs, interleaved: for docs/results.md.

    bench/experts_vs_transformers.py [--python VENV/bin/python] [--threads 2] [--rounds 3] [--dtype f32 bf16]

Three programs train on the same tokens, taking turns: `tutti train` of a Mixtral-like model, the same model of
transformers (its default implementation of experts, AdamW, clip 1.0), and `tutti train` of a Llama whose feed-forward is
as wide as the experts of a token together. Times are of steps after the first two. Prints each round and the medians.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"8 experts, 2 of a token": dict(experts=8, top_k=2, ffn=1024),
         "32 experts, 4 of a token": dict(experts=32, top_k=4, ffn=512)}
WIDTH, LAYERS, HEADS, VOCAB, SEQ, BATCH, STEPS = 512, 6, 8, 4096, 512, 4, 8

PEER = """
import json, sys, time, torch
from transformers import MixtralConfig, MixtralForCausalLM
a = json.loads(sys.argv[1])
torch.set_num_threads(a["threads"])
torch.manual_seed(0)
model = MixtralForCausalLM(MixtralConfig(vocab_size=a["vocab"], hidden_size=a["width"], intermediate_size=a["ffn"],
    num_hidden_layers=a["layers"], num_attention_heads=a["heads"], num_key_value_heads=a["heads"],
    num_local_experts=a["experts"], num_experts_per_tok=a["top_k"], max_position_embeddings=a["seq"],
    tie_word_embeddings=True, use_cache=False))
if a["dtype"] == "bf16": model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
times = []
for step in range(a["steps"]):
    tokens = torch.randint(0, a["vocab"], (a["batch"], a["seq"] + 1))
    begin = time.perf_counter()
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - begin)
print(json.dumps(times[2:]))
"""


def tutti(options, folder, dtype, model):
    shutil.rmtree(folder / "run", ignore_errors=True)
    sets = {"model.preset": "moe-tiny", "model.vocab": VOCAB, "model.width": WIDTH, "model.layers": LAYERS,
            "model.heads": HEADS, "model.kv_heads": HEADS, "model.head_dim": WIDTH // HEADS, "train.steps": STEPS,
            "train.seq_len": SEQ, "train.global_batch": BATCH, "train.micro_batch": BATCH, "checkpoint.every": 0,
            "train.threads": options.threads, "log.every": 1, "precision.compute": dtype, **model}
    (folder / "bench.toml").write_text(f'[data]\ntrain = ["{folder / "tokens.bin"}"]\nformat = "nanogpt"\n')
    command = [options.tutti, "train", folder / "bench.toml", "--out", folder / "run", "--json"]
    for key, value in sets.items():
        command += ["--set", f"{key}={value}"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{result.stderr}")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["step_ms"] for line in lines[2:])


def transformers(options, dtype, size):
    arguments = dict(size, dtype=dtype, threads=options.threads, vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS,
                     seq=SEQ, batch=BATCH, steps=STEPS)
    result = subprocess.run([options.python, "-c", PEER, json.dumps(arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    return 1000 * statistics.median(json.loads(result.stdout.splitlines()[-1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutti", default=ROOT / "build" / "release" / "tutti")
    parser.add_argument("--python", default=str(pathlib.Path.home() / ".cache/tutti/peer-venv/bin/python"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", nargs="+", default=["f32", "bf16"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        count = STEPS * BATCH * SEQ + 1
        (folder / "tokens.bin").write_bytes(b"".join(((i * i * 31 + 7 * i) % VOCAB).to_bytes(2, "little")
                                                     for i in range(2 * count)))
        for dtype in options.dtype:
            for title, size in SIZES.items():
                rows = []
                for _ in range(options.rounds):
                    moe = {f"model.moe.{key}": value for key, value in size.items()}
                    dense = {"model.preset": "llama-tiny", "model.ffn": size["top_k"] * size["ffn"]}
                    rows.append((tutti(options, folder, dtype, moe), tutti(options, folder, dtype, dense),
                                 transformers(options, dtype, size)))
                    mixture, plain, theirs = rows[-1]
                    print(f"{dtype}, {title}: {mixture:.0f} ms; dense {plain:.0f} ms ({mixture / plain:.2f}); "
                          f"transformers {theirs:.0f} ms ({theirs / mixture:.2f})", flush=True)
                print(f"{dtype}, {title}: medians: {statistics.median(m / d for m, d, _ in rows):.2f} of the dense model's "
                      f"step; transformers takes {statistics.median(t / m for m, _, t in rows):.2f} times as long",
                      flush=True)


if __name__ == "__main__":
    main()
