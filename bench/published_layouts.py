#!/usr/bin/env python3
"""How well `tutti simulate` ranks measured layouts, and which ones it says do not fit.

    bench/published_layouts.py build/release/tutti LAYOUT_SWEEP.json SINGLE_NODE.json

LAYOUT_SWEEP.json: layouts of nanotron on 8 to 512 H100 (the figure of the Ultrascale Playbook as data): {"meta":
{"models": {NAME: sizes}}, "rows": [{"model", "nodes", "dp", "tp", "pp", "mbs", "gas", "zero", "tokens_per_sec_per_gpu",
"memory_gb", "status"}]}. SINGLE_NODE.json: {"rows": [...]} of measured iteration times on up to eight A100 (vTrain).

Of each model and number of ranks: the throughput that the layout with the least predicted time loses against the best
measured one, beside the rule of thumb: no pipeline, the smallest tp up to 8 that ran, the largest micro batch.
"""
import collections
import json
import math
import statistics
import subprocess
import sys
import tempfile


def simulate(program, rows):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"rows": rows}, file)
        file.flush()
        out = subprocess.run([program, "simulate", "--table", file.name, "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)["rows"]


def sweep_rows(document):
    for row in document["rows"]:
        if not row.get("batch_label_consistent", True):
            continue
        m = document["meta"]["models"][row["model"]]
        yield {"family": row["model"], "model": "llama " + row["model"], "gpu": "H100", "gpus_per_node": 8, "num_gpus": 8 * row["nodes"],
               "tp": row["tp"], "pp": row["pp"], "dp": row["dp"], "vpp": 1, "schedule": "1f1b", "micro_batch": row["mbs"], "grad_accum": row["gas"],
               "global_batch": row["dp"] * row["mbs"] * row["gas"], "zero_stage": row["zero"], "precision": "bf16", "recompute": "none",
               "software": "nanotron 2025-02", "attn_impl": "flash2", "sequence_parallel": True, "mlp": "swiglu",
               "tokens_per_sec_per_gpu": row.get("tokens_per_sec_per_gpu"), "memory_bytes": 1e9 * (row.get("memory_gb") or 0), "ran": row["status"] == "ok",
               **{k: m[k] for k in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "tied", "seq_len")}}


def seconds(row):
    return row["global_batch"] * row["seq_len"] / (row["tokens_per_sec_per_gpu"] * row["num_gpus"])


def with_twin(rows):
    """Crashed layouts that no function of memory tells from one that ran: same tp, pp and micro batch, as many microbatches in flight, and at
    least as much optimizer state."""
    key = lambda row: (row["family"], row["tp"], row["pp"], row["micro_batch"])
    shards = lambda row: row["dp"] if row["zero_stage"] else 1
    flight = lambda row: min(row["grad_accum"], row["pp"] + 1)
    ran = collections.defaultdict(list)
    for row in rows:
        if row["ran"]:
            ran[key(row)].append(row)
    return sum(any(shards(other) <= shards(row) and flight(other) >= flight(row) for other in ran[key(row)]) for row in rows if not row["ran"])


def lost_by_twins(groups):
    """What a choice by the measured time of the twin, which differs in its ZeRO stage alone, loses: the noise of the
    sweep. And the pairs of twins that differ by more than 1.5 times, of all pairs."""
    lost, far, pairs = [], 0, 0
    for _, found in sorted(groups.items()):
        key = lambda row: (row["tp"], row["pp"], row["dp"], row["micro_batch"], row["grad_accum"])
        twins = collections.defaultdict(list)
        for _, measured, row in found:
            twins[key(row)].append(measured)
        couples = [t for t in twins.values() if len(t) == 2]
        far += sum(max(t) > 1.5 * min(t) for t in couples)
        pairs += len(couples)
        # The measured time of the twin, or the layout's own where it has none.
        known = [pair for t in twins.values() for pair in (((t[0], t[1]), (t[1], t[0])) if len(t) == 2 else [(each, each) for each in t])]
        lost.append(1 - min(t for _, t in known) / min(known, key=lambda pair: pair[0])[1])
    return lost, far, pairs


def score_sweep(program, document):
    rows = list(sweep_rows(document))
    capacity = 80e9
    groups, memory, inside = collections.defaultdict(list), [], []
    said, refused, crashed, alarms, ran = 0, 0, 0, 0, 0
    for row, p in zip(rows, simulate(program, rows)):
        too_large = "refused" not in p and p["peak_bytes"] > capacity
        if not row["ran"]:
            crashed += 1
            said += too_large
            refused += "refused" in p
            continue
        ran += 1
        alarms += too_large or "refused" in p
        if "refused" in p:
            continue
        memory.append(abs(p["peak_bytes"] / row["memory_bytes"] - 1))
        inside.append(p["step_time_low_s"] <= seconds(row) <= p["step_time_high_s"])
        if not too_large:
            groups[row["family"], row["num_gpus"]].append((p["step_time_s"], seconds(row), row))
    lost, lost_by_rule = [], []
    print(f"{'model':8}{'ranks':>6}{'layouts':>9}{'lost':>9}{'by rule':>9}")
    for (model, ranks), found in sorted(groups.items()):
        best = min(t for _, t, _ in found)
        lost.append(1 - best / min(found, key=lambda f: f[0])[1])
        flat = [f for f in found if f[2]["pp"] == 1 and f[2]["tp"] <= 8]
        tp = min(f[2]["tp"] for f in flat)
        flat = [f for f in flat if f[2]["tp"] == tp]
        largest = max(f[2]["micro_batch"] for f in flat)
        lost_by_rule.append(1 - best / statistics.mean(f[1] for f in flat if f[2]["micro_batch"] == largest))
        print(f"{model:8}{ranks:6}{len(found):9}{100 * lost[-1]:8.1f}%{100 * lost_by_rule[-1]:8.1f}%")
    by_twin, far, pairs = lost_by_twins(groups)
    for name, values in (("lost", lost), ("lost by rule", lost_by_rule), ("lost by the measured twin", by_twin)):
        within = sum(value <= 0.1 for value in values)
        print(f"{name}: mean {100 * statistics.mean(values):.1f} %, median {100 * statistics.median(values):.1f} %, "
              f"within 10 % in {within} of {len(values)} groups")
    print(f"memory error: mean {100 * statistics.mean(memory):.1f} %, median {100 * statistics.median(memory):.1f} %")
    print(f"noise: {far} of {pairs} pairs that differ in their ZeRO stage alone differ by more than 1.5 times")
    print(f"crashed or out of memory: {said} of {crashed} said to be too large, {refused} refused; false alarms {alarms} of {ran}; "
          f"{with_twin(rows)} are like a layout that ran")
    print(f"steps inside the interval {100 * statistics.mean(inside):.0f} %")


def node_rows(document):
    return [{**row, "family": "node", "gpu": "A100-80", "gpus_per_node": 8, "precision": "fp16", "recompute": "full", "zero_stage": 0, "vpp": 1,
             "software": "Megatron-LM 2022", "attn_impl": "unfused", "sequence_parallel": False, "mlp": "gelu", "model": "GPT", "schedule": "1f1b"}
            for row in document["rows"]]


def score_node(program, document):
    rows = node_rows(document)
    alike, errors = collections.defaultdict(list), []
    for row, p in zip(rows, simulate(program, rows)):
        errors.append(abs(p["step_time_s"] / row["iter_time_s"] - 1))
        alike[row["hidden"], row["layers"], row["num_gpus"], row["global_batch"]].append((row["iter_time_s"], p["step_time_s"]))
    right = pairs = 0
    for found in alike.values():
        for i, (t, p) in enumerate(found):
            for other_t, other_p in found[:i]:
                if abs(math.log(t / other_t)) >= 0.02:
                    pairs += 1
                    right += (t < other_t) == (p < other_p)
    print(f"one node: {len(rows)} layouts, mean error {100 * statistics.mean(errors):.1f} %; {100 * right / pairs:.1f} % of {pairs} pairs in the right order")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    score_sweep(sys.argv[1], json.load(open(sys.argv[2])))
    score_node(sys.argv[1], json.load(open(sys.argv[3])))


if __name__ == "__main__":
    main()
